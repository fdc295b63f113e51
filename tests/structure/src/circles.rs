//! Files and sibling modules that use each other.

use crate::{source::Tree, uses::Uses};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

/// Circles between the files of a crate, and between sibling modules with all that is below them, one text each.
pub fn circles(uses: &Uses) -> Vec<String> {
    let files = uses.between_files();
    let mut found = between("files", &files);
    for (index, module) in uses.tree.product() {
        let mut siblings: BTreeMap<_, BTreeSet<String>> = BTreeMap::new();
        for ((from, to), names) in &uses.names {
            let [Some(sibling), Some(other)] = [*from, *to].map(|module| child_above(uses.tree, index, module)) else {
                continue;
            };
            if sibling != other {
                let [from, to] = [*from, *to].map(|module| uses.tree.modules[module].file.as_str());
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                siblings
                    .entry((uses.tree.modules[sibling].name(), uses.tree.modules[other].name()))
                    .or_default()
                    .insert(format!("{from} -> {to}: {}", names.join(", ")));
            }
        }
        let siblings = siblings
            .iter()
            .map(|(arrow, names)| (*arrow, names.iter().map(String::as_str).collect()))
            .collect();
        found.extend(between(&format!("modules of {}", module.file), &siblings));
    }
    found
}

/// The child of `parent` that is `module` or above it.
fn child_above(tree: &Tree, parent: usize, mut module: usize) -> Option<usize> {
    loop {
        let above = tree.modules[module].parent?;
        if above == parent {
            return Some(module);
        }
        module = above;
    }
}

type Arrows<'a> = BTreeMap<(&'a str, &'a str), BTreeSet<&'a str>>;

fn between(kind: &str, arrows: &Arrows) -> Vec<String> {
    let mut found = Vec::new();
    let mut told: BTreeSet<&str> = BTreeSet::new();
    for (from, _) in arrows.keys() {
        if told.contains(from) {
            continue;
        }
        let after = reachable(from, arrows);
        let circle: BTreeSet<&str> = after
            .iter()
            .filter(|other| reachable(other, arrows).contains(from))
            .copied()
            .collect();
        if circle.is_empty() {
            continue;
        }
        let members: Vec<&str> = circle.iter().copied().collect();
        let mut text = format!("{kind} that use each other: {}", members.join(", "));
        for ((from, to), names) in arrows {
            if circle.contains(from) && circle.contains(to) {
                let names: Vec<&str> = names.iter().copied().collect();
                let _ = write!(text, "\n  {from} -> {to}: {}", names.join("; "));
            }
        }
        told.extend(circle);
        found.push(text);
    }
    found
}

/// All that `start` leads to over one or more arrows.
fn reachable<'a>(start: &str, arrows: &Arrows<'a>) -> BTreeSet<&'a str> {
    let mut seen = BTreeSet::new();
    let mut next = vec![start];
    while let Some(from) = next.pop() {
        for (_, to) in arrows.keys().filter(|(other, _)| *other == from) {
            if seen.insert(*to) {
                next.push(to);
            }
        }
    }
    seen
}
