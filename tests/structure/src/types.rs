//! Names of types, and `Result<_, String>`.

use crate::source::{Tree, is_for_tests, item_attributes};
use std::collections::BTreeMap;
use syn::{
    GenericArgument, ImplItem, Item, ItemMod, PathArguments, PathSegment, Type,
    spanned::Spanned as _,
    visit::{self, Visit},
};

/// A struct, enum, union, trait or alias of the product.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TypeName {
    /// Without its module.
    pub name: String,
    /// Path from the repository's root.
    pub file: String,
    /// Line in `file`, from 1.
    pub line: usize,
}

/// Types of a crate, those of tests left out.
pub fn type_names(tree: &Tree) -> Vec<TypeName> {
    tree.product()
        .flat_map(|(_, module)| {
            let mut found = Types::default();
            for item in &module.items {
                found.visit_item(item);
            }
            found.names.into_iter().map(|(name, line)| TypeName {
                name,
                file: module.file.clone(),
                line,
            })
        })
        .collect()
}

/// Returns the names that more than one type has, with their places.
pub fn shared_names(types: &[TypeName]) -> Vec<String> {
    let mut places: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for found in types {
        places
            .entry(&found.name)
            .or_default()
            .push(format!("{}:{}", found.file, found.line));
    }
    places
        .into_iter()
        .filter(|(_, places)| places.len() > 1)
        .map(|(name, places)| format!("{name}: {}", places.join(", ")))
        .collect()
}

/// Places of the type `Result<_, String>`.
pub fn string_errors(tree: &Tree) -> Vec<String> {
    tree.product()
        .flat_map(|(_, module)| {
            let mut found = Types::default();
            for item in &module.items {
                found.visit_item(item);
            }
            found
                .string_errors
                .into_iter()
                .map(|line| format!("{}:{line}: Result<_, String>", module.file))
        })
        .collect()
}

#[derive(Default)]
struct Types {
    names: Vec<(String, usize)>,
    string_errors: Vec<usize>,
}

impl<'ast> Visit<'ast> for Types {
    fn visit_item(&mut self, item: &'ast Item) {
        if is_for_tests(item_attributes(item)) {
            return;
        }
        let name = match item {
            Item::Struct(item) => Some(&item.ident),
            Item::Enum(item) => Some(&item.ident),
            Item::Union(item) => Some(&item.ident),
            Item::Trait(item) => Some(&item.ident),
            Item::Type(item) => Some(&item.ident),
            _ => None,
        };
        if let Some(name) = name {
            self.names.push((name.to_string(), name.span().start().line));
        }
        visit::visit_item(self, item);
    }

    fn visit_item_mod(&mut self, _: &'ast ItemMod) {}

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        if !matches!(item, ImplItem::Fn(item) if is_for_tests(&item.attrs)) {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_path_segment(&mut self, segment: &'ast PathSegment) {
        if segment.ident == "Result"
            && let PathArguments::AngleBracketed(arguments) = &segment.arguments
            && let Some(GenericArgument::Type(Type::Path(error))) = arguments.args.iter().nth(1)
            && error.path.is_ident("String")
        {
            self.string_errors.push(segment.span().start().line);
        }
        visit::visit_path_segment(self, segment);
    }
}
