//! The table of child modules in a module's doc.

use crate::source::{Module, Tree};
use std::collections::BTreeSet;
use syn::{Expr, Lit, Meta};

const HEADER: &str = "| module | what it does |";
const RULE: &str = "|---|---|";

/// Modules with child modules whose doc does not list exactly these.
pub fn table_problems(tree: &Tree) -> Vec<String> {
    tree.product()
        .flat_map(|(_, module)| {
            let problems = problems(tree, module);
            problems
                .into_iter()
                .map(move |problem| format!("{}: {problem}", module.file))
        })
        .collect()
}

fn problems(tree: &Tree, module: &Module) -> Vec<String> {
    let children: BTreeSet<&str> = module
        .children
        .iter()
        .map(|child| &tree.modules[*child])
        .filter(|child| !child.is_test)
        .map(Module::name)
        .collect();
    if children.is_empty() {
        return Vec::new();
    }
    let doc = doc(module);
    let Some(start) = doc.iter().position(|line| line == HEADER) else {
        return vec![format!("its doc has no table of modules, which begins with `{HEADER}`")];
    };
    let mut problems = Vec::new();
    if doc[..start].iter().all(String::is_empty) {
        problems.push("no sentence stands before the table of modules".to_owned());
    }
    if doc.get(start + 1).map(String::as_str) != Some(RULE) {
        problems.push(format!("below the table's header belongs `{RULE}`"));
    }
    let mut listed = BTreeSet::new();
    for row in doc[start + 1..].iter().take_while(|line| line.starts_with('|')).skip(1) {
        let Some((name, text)) = row
            .strip_prefix("| `")
            .and_then(|row| row.strip_suffix(" |"))
            .and_then(|row| row.split_once("` | "))
            .filter(|(name, _)| !name.contains('`'))
        else {
            problems.push(format!("a row of the table is not \"| `name` | text |\": {row}"));
            continue;
        };
        if text.trim().is_empty() {
            problems.push(format!("the table says nothing about `{name}`"));
        }
        if !listed.insert(name) {
            problems.push(format!("the table lists `{name}` twice"));
        }
    }
    let missing = children
        .difference(&listed)
        .map(|name| format!("the table does not list `{name}`"));
    let strangers = listed
        .difference(&children)
        .map(|name| format!("the table lists `{name}`, which is no child module"));
    problems.extend(missing.chain(strangers));
    problems
}

fn doc(module: &Module) -> Vec<String> {
    module
        .attributes
        .iter()
        .filter_map(|attribute| {
            let Meta::NameValue(pair) = &attribute.meta else {
                return None;
            };
            let Expr::Lit(text) = &pair.value else { return None };
            match &text.lit {
                Lit::Str(text) if pair.path.is_ident("doc") => Some(text.value().trim().to_owned()),
                _ => None,
            }
        })
        .collect()
}
