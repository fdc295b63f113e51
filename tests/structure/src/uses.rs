//! Modules that use a name of another module. A re-exported name leads to the module that defines it.

use crate::{
    paths::Paths,
    source::{Module, Tree, is_for_tests, item_attributes},
};
use std::collections::{BTreeMap, BTreeSet};
use syn::Item;

/// Names that one module takes from another, by the two modules' places in the tree.
pub struct Uses<'a> {
    pub(crate) tree: &'a Tree,
    pub(crate) names: BTreeMap<(usize, usize), BTreeSet<String>>,
}

enum Definition {
    /// With parts that a path can go on to: a type, a trait.
    Type,
    Other,
    Module(usize),
    Import(Vec<String>),
}

#[derive(Default)]
struct Scope {
    names: BTreeMap<String, Vec<Definition>>,
    globs: Vec<Vec<String>>,
}

/// A module and the name of an item in it.
type Targets = BTreeSet<(usize, String)>;
/// Modules and imported names on the way: in `use anyhow::anyhow` the first one is not what the `use` itself imports.
type Asked = BTreeSet<(usize, String)>;

struct Resolver<'a> {
    tree: &'a Tree,
    scopes: Vec<Scope>,
}

impl<'a> Uses<'a> {
    /// Resolves every path in the code of `tree`.
    pub fn of(tree: &'a Tree) -> Self {
        let paths: Vec<Paths> = tree.modules.iter().map(Paths::of).collect();
        let scopes = tree
            .modules
            .iter()
            .zip(&paths)
            .map(|(module, paths)| scope(tree, module, paths))
            .collect();
        let resolver = Resolver { tree, scopes };
        let mut names: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for (index, _) in tree.product() {
            let Paths { paths, imports } = &paths[index];
            let imported = imports.iter().filter(|import| !import.is_reexport);
            for path in paths.iter().chain(imported.map(|import| &import.path)) {
                for (target, name) in resolver.resolve(index, path, &mut Asked::new()) {
                    if target != index && !tree.modules[target].is_test {
                        names.entry((index, target)).or_default().insert(name);
                    }
                }
            }
        }
        Self { tree, names }
    }

    /// The same between files; a module in braces belongs to the file around it.
    pub(crate) fn between_files(&self) -> BTreeMap<(&str, &str), BTreeSet<&str>> {
        let mut files: BTreeMap<_, BTreeSet<&str>> = BTreeMap::new();
        for ((from, to), names) in &self.names {
            let [from, to] = [from, to].map(|module| self.tree.modules[*module].file.as_str());
            if from != to {
                files
                    .entry((from, to))
                    .or_default()
                    .extend(names.iter().map(String::as_str));
            }
        }
        files
    }
}

fn scope(tree: &Tree, module: &Module, paths: &Paths) -> Scope {
    let mut scope = Scope::default();
    let mut define = |name: String, definition| scope.names.entry(name).or_default().push(definition);
    for child in &module.children {
        define(tree.modules[*child].name().to_owned(), Definition::Module(*child));
    }
    for item in &module.items {
        if is_for_tests(item_attributes(item)) {
            continue;
        }
        match item {
            Item::Struct(item) => define(item.ident.to_string(), Definition::Type),
            Item::Enum(item) => define(item.ident.to_string(), Definition::Type),
            Item::Union(item) => define(item.ident.to_string(), Definition::Type),
            Item::Trait(item) => define(item.ident.to_string(), Definition::Type),
            Item::Type(item) => define(item.ident.to_string(), Definition::Type),
            Item::Fn(item) => define(item.sig.ident.to_string(), Definition::Other),
            Item::Const(item) => define(item.ident.to_string(), Definition::Other),
            Item::Static(item) => define(item.ident.to_string(), Definition::Other),
            Item::Macro(item) => {
                if let Some(name) = &item.ident {
                    define(name.to_string(), Definition::Other);
                }
            }
            _ => {}
        }
    }
    for import in &paths.imports {
        if import.name == "*" {
            scope.globs.push(import.path.clone());
        } else if import.name != "_" {
            scope
                .names
                .entry(import.name.clone())
                .or_default()
                .push(Definition::Import(import.path.clone()));
        }
    }
    scope
}

impl Resolver<'_> {
    /// Items that `path` leads to when it stands in `module`. Empty for a module and for names of other crates.
    fn resolve(&self, module: usize, path: &[String], asked: &mut Asked) -> Targets {
        let Some((first, rest)) = path.split_first() else {
            return Targets::new();
        };
        match first.as_str() {
            "crate" => self.within(0, rest, asked),
            "self" => self.within(module, rest, asked),
            "super" => {
                let mut module = self.tree.modules[module].parent;
                let mut rest = rest;
                while let Some(("super", further)) = rest.split_first().map(|(name, further)| (name.as_str(), further))
                {
                    module = module.and_then(|module| self.tree.modules[module].parent);
                    rest = further;
                }
                module.map_or_else(Targets::new, |module| self.within(module, rest, asked))
            }
            _ => self.find(module, path, asked).unwrap_or_default(),
        }
    }

    /// A name that no item of `module` has comes from a macro there.
    fn within(&self, module: usize, path: &[String], asked: &mut Asked) -> Targets {
        match path.first() {
            None => Targets::new(),
            Some(name) if name == "*" => Targets::new(),
            Some(name) => self
                .find(module, path, asked)
                .unwrap_or_else(|| Targets::from([(module, name.clone())])),
        }
    }

    fn find(&self, module: usize, path: &[String], asked: &mut Asked) -> Option<Targets> {
        let (name, rest) = path.split_first()?;
        let scope = &self.scopes[module];
        let here = || Targets::from([(module, name.clone())]);
        let Some(definitions) = scope.names.get(name) else {
            return self.find_in_globs(module, path, asked);
        };
        let mut targets = Targets::new();
        for definition in definitions {
            match definition {
                Definition::Module(child) if !rest.is_empty() => return Some(self.within(*child, rest, asked)),
                Definition::Module(_) => {}
                Definition::Other if !rest.is_empty() => {}
                Definition::Type | Definition::Other => targets.extend(here()),
                Definition::Import(import) => {
                    if asked.insert((module, name.clone())) {
                        let path = [import.as_slice(), rest].concat();
                        targets.extend(self.resolve(module, &path, asked));
                        asked.remove(&(module, name.clone()));
                    }
                }
            }
        }
        Some(targets)
    }

    fn find_in_globs(&self, module: usize, path: &[String], asked: &mut Asked) -> Option<Targets> {
        if !asked.insert((module, "*".to_owned())) {
            return None;
        }
        let found = self.scopes[module].globs.iter().find_map(|glob| {
            let path = [glob.as_slice(), path].concat();
            let targets = self.resolve(module, &path, asked);
            // A glob of a module gives names that are there, not what a macro may have made.
            let known = targets
                .iter()
                .any(|(target, name)| self.scopes[*target].names.contains_key(name));
            known.then_some(targets)
        });
        asked.remove(&(module, "*".to_owned()));
        found
    }
}
