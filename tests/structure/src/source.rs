//! The tree of modules of one crate, parsed.

use std::{collections::BTreeMap, ops::RangeInclusive};
use syn::{Attribute, Item, Meta, Visibility, spanned::Spanned as _};

/// Text by path, as `src/lib.rs`.
pub type Files = BTreeMap<String, String>;

/// A file that cannot be read as Rust, or that a `mod` declares and is not there.
#[derive(Debug, thiserror::Error)]
pub enum ParseError {
    /// Path, and the place of the mistake.
    #[error("{0}: {1}")]
    Syntax(String, syn::Error),
    /// Path, and the name of the module.
    #[error("{0} declares `mod {1};`, for which there is no file")]
    Missing(String, String),
}

/// The modules under one crate root. The first one is the root.
pub struct Tree {
    pub(crate) modules: Vec<Module>,
}

/// A module without its child modules.
pub struct Module {
    /// Empty for the crate root.
    pub(crate) names: Vec<String>,
    pub(crate) file: String,
    pub(crate) parent: Option<usize>,
    pub(crate) children: Vec<usize>,
    pub(crate) is_test: bool,
    /// Stands in braces within its parent's file.
    pub(crate) is_inline: bool,
    /// Declared with `pub`.
    pub(crate) is_public: bool,
    pub(crate) attributes: Vec<Attribute>,
    pub(crate) items: Vec<Item>,
    /// Lines of its file that only tests see.
    pub(crate) test_lines: Vec<RangeInclusive<usize>>,
}

impl Module {
    pub(crate) fn name(&self) -> &str {
        self.names.last().map_or("crate", String::as_str)
    }
}

impl Tree {
    /// Parses the crate with the root file `root` and every file its `mod` declarations reach.
    pub fn parse(root: &str, files: &Files) -> Result<Self, ParseError> {
        let mut tree = Self { modules: Vec::new() };
        let text = files
            .get(root)
            .ok_or_else(|| ParseError::Missing(root.to_owned(), "crate".to_owned()))?;
        let syntax = syn::parse_file(text).map_err(|error| ParseError::Syntax(root.to_owned(), error))?;
        let folder = root.rsplit_once('/').map_or("", |(folder, _)| folder).to_owned();
        tree.add(
            files,
            Declaration {
                names: Vec::new(),
                file: root.to_owned(),
                folder,
                parent: None,
                is_test: false,
                is_inline: false,
                is_public: true,
                attributes: syntax.attrs,
            },
            syntax.items,
        )?;
        Ok(tree)
    }

    /// Path of the crate root.
    pub fn root(&self) -> &str {
        &self.modules[0].file
    }

    /// Modules of the product, tests left out.
    pub(crate) fn product(&self) -> impl Iterator<Item = (usize, &Module)> {
        self.modules.iter().enumerate().filter(|(_, module)| !module.is_test)
    }

    /// Lines of `file` that only tests see.
    pub(crate) fn is_test_line(&self, file: &str, line: usize) -> bool {
        self.modules
            .iter()
            .filter(|module| module.file == file)
            .any(|module| module.test_lines.iter().any(|lines| lines.contains(&line)))
    }

    /// Returns whether `file` is a test as a whole.
    pub(crate) fn is_test_file(&self, file: &str) -> bool {
        self.modules
            .iter()
            .any(|module| module.file == file && module.is_test && !module.is_inline)
    }

    fn add(&mut self, files: &Files, declaration: Declaration, items: Vec<Item>) -> Result<usize, ParseError> {
        let index = self.modules.len();
        let Declaration {
            names,
            file,
            folder,
            parent,
            is_test,
            is_inline,
            is_public,
            attributes,
        } = declaration;
        self.modules.push(Module {
            names: names.clone(),
            file: file.clone(),
            parent,
            children: Vec::new(),
            is_test,
            is_inline,
            is_public,
            attributes,
            items: Vec::new(),
            test_lines: Vec::new(),
        });
        let mut own = Vec::new();
        for item in items {
            if is_for_tests(item_attributes(&item)) {
                let span = item.span();
                self.modules[index].test_lines.push(span.start().line..=span.end().line);
            }
            let Item::Mod(declared) = item else {
                own.push(item);
                continue;
            };
            let name = declared.ident.to_string();
            let is_test = is_test || is_for_tests(&declared.attrs);
            let is_public = matches!(declared.vis, Visibility::Public(_));
            let mut names = names.clone();
            names.push(name.clone());
            let folder = format!("{folder}/{name}");
            let child = if let Some((_, items)) = declared.content {
                let declaration = Declaration {
                    names,
                    file: file.clone(),
                    folder,
                    parent: Some(index),
                    is_test,
                    is_inline: true,
                    is_public,
                    attributes: declared.attrs,
                };
                self.add(files, declaration, items)?
            } else {
                let path = [format!("{folder}.rs"), format!("{folder}/mod.rs")]
                    .into_iter()
                    .find(|path| files.contains_key(path))
                    .ok_or_else(|| ParseError::Missing(file.clone(), name.clone()))?;
                let syntax = syn::parse_file(&files[&path]).map_err(|error| ParseError::Syntax(path.clone(), error))?;
                let declaration = Declaration {
                    names,
                    file: path,
                    folder,
                    parent: Some(index),
                    is_test,
                    is_inline: false,
                    is_public,
                    attributes: syntax.attrs,
                };
                self.add(files, declaration, syntax.items)?
            };
            self.modules[index].children.push(child);
        }
        self.modules[index].items = own;
        Ok(index)
    }
}

struct Declaration {
    names: Vec<String>,
    file: String,
    /// Folder of its child modules.
    folder: String,
    parent: Option<usize>,
    is_test: bool,
    is_inline: bool,
    is_public: bool,
    attributes: Vec<Attribute>,
}

/// `#[test]`, `#[tokio::test]` or a `#[cfg]` that only tests fulfil.
pub fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::Path(path) => path.segments.last().is_some_and(|last| last.ident == "test"),
        Meta::List(list) if list.path.is_ident("cfg") => {
            let condition = list.tokens.to_string().replace(' ', "");
            condition == "test" || condition.starts_with("all(test,") || condition.starts_with("any(test,")
        }
        Meta::List(list) => list.path.segments.last().is_some_and(|last| last.ident == "test"),
        Meta::NameValue(_) => false,
    })
}

pub fn item_attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::TraitAlias(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}
