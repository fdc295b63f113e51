//! The paths that the code of a module mentions.

use crate::source::{Module, is_for_tests, item_attributes};
use proc_macro2::{TokenStream, TokenTree};
use syn::{
    Attribute, Field, ImplItem, Item, ItemMod, ItemUse, Local, Macro, Meta, Path, TraitItem, UseTree, Variant,
    Visibility,
    visit::{self, Visit},
};

/// A name that a `use` brings into a module.
#[derive(Debug)]
pub struct Import {
    /// `*` for all names of the module `path`.
    pub name: String,
    pub path: Vec<String>,
    /// Made visible to others: going through it leads to the file that defines the name.
    pub is_reexport: bool,
}

/// Paths and imports of a module's own items, tests left out.
#[derive(Debug, Default)]
pub struct Paths {
    pub paths: Vec<Vec<String>>,
    pub imports: Vec<Import>,
}

impl Paths {
    pub fn of(module: &Module) -> Self {
        let mut found = Self::default();
        for item in &module.items {
            found.visit_item(item);
        }
        found
    }

    fn tokens(&mut self, tokens: TokenStream, is_attribute: bool) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        self.end(&mut path);
                    }
                    path.push(ident.to_string());
                    colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                other => {
                    colons = 0;
                    self.end(&mut path);
                    match other {
                        TokenTree::Group(group) => self.tokens(group.stream(), is_attribute),
                        // `#[serde(default = "path::of::function")]`
                        TokenTree::Literal(literal) if is_attribute => {
                            let text = literal.to_string();
                            let text = text.trim_matches('"');
                            let is_path = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
                            if text.contains("::") && text.chars().all(is_path) {
                                self.paths.push(text.split("::").map(str::to_owned).collect());
                            }
                        }
                        _ => {}
                    }
                }
            }
        }
        self.end(&mut path);
    }

    /// A name alone may be a field or a variable; only a type's name says that it is used.
    fn end(&mut self, path: &mut Vec<String>) {
        let is_type = path.first().is_some_and(|name| name.starts_with(char::is_uppercase));
        if path.len() > 1 || is_type {
            self.paths.push(std::mem::take(path));
        }
        path.clear();
    }

    fn import(&mut self, tree: &UseTree, prefix: &[String], is_reexport: bool) {
        let with = |name: String| [prefix, &[name]].concat();
        let (name, path) = match tree {
            UseTree::Path(path) => return self.import(&path.tree, &with(path.ident.to_string()), is_reexport),
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.import(tree, prefix, is_reexport);
                }
                return;
            }
            UseTree::Glob(_) => ("*".to_owned(), prefix.to_vec()),
            UseTree::Name(name) if name.ident == "self" => {
                (prefix.last().cloned().unwrap_or_default(), prefix.to_vec())
            }
            UseTree::Name(name) => (name.ident.to_string(), with(name.ident.to_string())),
            UseTree::Rename(rename) if rename.ident == "self" => (rename.rename.to_string(), prefix.to_vec()),
            UseTree::Rename(rename) => (rename.rename.to_string(), with(rename.ident.to_string())),
        };
        self.imports.push(Import {
            name,
            path,
            is_reexport,
        });
    }
}

impl<'ast> Visit<'ast> for Paths {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_for_tests(item_attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, _: &'ast ItemMod) {}

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        if item.leading_colon.is_none() {
            self.import(&item.tree, &[], !matches!(item.vis, Visibility::Inherited));
        }
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        let attributes = match item {
            ImplItem::Const(item) => &item.attrs,
            ImplItem::Fn(item) => &item.attrs,
            ImplItem::Type(item) => &item.attrs,
            ImplItem::Macro(item) => &item.attrs,
            _ => return,
        };
        if !is_for_tests(attributes) {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_trait_item(&mut self, item: &'ast TraitItem) {
        let is_test = matches!(item, TraitItem::Fn(item) if is_for_tests(&item.attrs));
        if !is_test {
            visit::visit_trait_item(self, item);
        }
    }

    fn visit_field(&mut self, field: &'ast Field) {
        if !is_for_tests(&field.attrs) {
            visit::visit_field(self, field);
        }
    }

    fn visit_variant(&mut self, variant: &'ast Variant) {
        if !is_for_tests(&variant.attrs) {
            visit::visit_variant(self, variant);
        }
    }

    fn visit_local(&mut self, local: &'ast Local) {
        if !is_for_tests(&local.attrs) {
            visit::visit_local(self, local);
        }
    }

    fn visit_path(&mut self, path: &'ast Path) {
        if path.leading_colon.is_none() {
            self.paths
                .push(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, called: &'ast Macro) {
        self.tokens(called.tokens.clone(), false);
        visit::visit_macro(self, called);
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        // A path of an attribute names a macro, mostly of another crate.
        if let Meta::List(list) = &attribute.meta {
            self.tokens(list.tokens.clone(), true);
        }
    }
}
