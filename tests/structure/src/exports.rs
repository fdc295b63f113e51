//! Public items of a library that no other crate uses.

use crate::{
    paths::Paths,
    source::{Files, Module, Tree, is_for_tests, item_attributes},
};
use proc_macro2::{Ident, TokenStream, TokenTree};
use std::{collections::BTreeSet, str::FromStr as _};
use syn::{
    Fields, ImplItem, Item, PathSegment, Type, Visibility,
    visit::{self, Visit},
};

/// Public functions, methods, constants and types of `library` whose names occur nowhere in the code of `others`. A type
/// counts as used when a used item mentions it, because it can be had without its name.
pub fn unused_exports(library: &Tree, others: &Files) -> Vec<String> {
    let mut used = BTreeSet::new();
    for text in others.values() {
        if let Ok(tokens) = TokenStream::from_str(text) {
            identifiers(tokens, &mut used);
        }
    }
    let mut names = BTreeSet::new();
    exported_names(library, &library.modules[0], &mut names);
    let exports: Vec<Export> = library
        .product()
        .flat_map(|(_, module)| exports(module, &names))
        .collect();
    loop {
        let before = used.len();
        for export in &exports {
            if used.contains(&export.name) {
                used.extend(export.mentions.iter().cloned());
            }
        }
        if used.len() == before {
            break;
        }
    }
    exports
        .into_iter()
        .filter(|export| !used.contains(&export.name))
        .map(|export| format!("{}:{}: {}", export.file, export.line, export.name))
        .collect()
}

struct Export {
    name: String,
    file: String,
    line: usize,
    /// Types in its signature or its public fields.
    mentions: BTreeSet<String>,
}

/// Names that others reach from the crate root.
fn exported_names(tree: &Tree, module: &Module, names: &mut BTreeSet<String>) {
    for import in Paths::of(module).imports {
        if import.is_reexport {
            names.extend(import.path.last().cloned());
        }
    }
    for item in &module.items {
        let (visibility, name) = match item {
            Item::Struct(item) => (&item.vis, &item.ident),
            Item::Enum(item) => (&item.vis, &item.ident),
            Item::Trait(item) => (&item.vis, &item.ident),
            Item::Type(item) => (&item.vis, &item.ident),
            Item::Const(item) => (&item.vis, &item.ident),
            Item::Fn(item) => (&item.vis, &item.sig.ident),
            _ => continue,
        };
        if is_public(visibility) {
            names.insert(name.to_string());
        }
    }
    for child in &module.children {
        let child = &tree.modules[*child];
        if child.is_public && !child.is_test {
            exported_names(tree, child, names);
        }
    }
}

/// Those of `names` that `module` defines, and the public methods of its types among them.
fn exports(module: &Module, names: &BTreeSet<String>) -> Vec<Export> {
    let mut found = Vec::new();
    let mut add = |name: &Ident, mentions: Mentions| {
        found.push(Export {
            name: name.to_string(),
            file: module.file.clone(),
            line: name.span().start().line,
            mentions: mentions.0,
        });
    };
    let is_exported =
        |visibility: &Visibility, name: &Ident| is_public(visibility) && names.contains(&name.to_string());
    for item in module.items.iter().filter(|item| !is_for_tests(item_attributes(item))) {
        let mut mentions = Mentions::default();
        match item {
            Item::Struct(item) if is_exported(&item.vis, &item.ident) => {
                mentions.public_fields(&item.fields);
                add(&item.ident, mentions);
            }
            Item::Enum(item) if is_exported(&item.vis, &item.ident) => {
                mentions.visit_item_enum(item);
                add(&item.ident, mentions);
            }
            Item::Trait(item) if is_exported(&item.vis, &item.ident) => {
                mentions.visit_item_trait(item);
                add(&item.ident, mentions);
            }
            Item::Type(item) if is_exported(&item.vis, &item.ident) => {
                mentions.visit_item_type(item);
                add(&item.ident, mentions);
            }
            Item::Const(item) if is_exported(&item.vis, &item.ident) => add(&item.ident, mentions),
            Item::Fn(item) if is_exported(&item.vis, &item.sig.ident) => {
                mentions.visit_signature(&item.sig);
                add(&item.sig.ident, mentions);
            }
            Item::Impl(block) if block.trait_.is_none() => {
                let Type::Path(own) = &*block.self_ty else { continue };
                let own = own.path.segments.last().map(|segment| segment.ident.to_string());
                if !own.is_some_and(|own| names.contains(&own)) {
                    continue;
                }
                for item in &block.items {
                    match item {
                        ImplItem::Fn(item) if is_public(&item.vis) && !is_for_tests(&item.attrs) => {
                            let mut mentions = Mentions::default();
                            mentions.visit_signature(&item.sig);
                            add(&item.sig.ident, mentions);
                        }
                        ImplItem::Const(item) if is_public(&item.vis) => add(&item.ident, Mentions::default()),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    found
}

fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

#[derive(Default)]
struct Mentions(BTreeSet<String>);

impl Mentions {
    fn public_fields(&mut self, fields: &Fields) {
        for field in fields.iter().filter(|field| is_public(&field.vis)) {
            self.visit_type(&field.ty);
        }
    }
}

impl<'ast> Visit<'ast> for Mentions {
    fn visit_path_segment(&mut self, segment: &'ast PathSegment) {
        self.0.insert(segment.ident.to_string());
        visit::visit_path_segment(self, segment);
    }
}

fn identifiers(tokens: TokenStream, found: &mut BTreeSet<String>) {
    for token in tokens {
        match token {
            TokenTree::Ident(name) => {
                found.insert(name.to_string());
            }
            TokenTree::Group(group) => identifiers(group.stream(), found),
            _ => {}
        }
    }
}
