//! Layout of the product's crates. One test per crate, to be run alone: `cargo test --workspace --test structure plan`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use gpunode_structure_tests::{
    Files, PRODUCT, ProductCrate, Uses, circles, foreign_references, headless_docs, missing_files, missing_tests,
    repository, rust_files, shared_names, string_errors, table_problems, type_names, unused_exports,
    upward_dependencies,
};
use std::fmt::Write as _;

fn read(package: &str) -> ProductCrate {
    let (package, folder) = PRODUCT.into_iter().find(|(name, _)| *name == package).unwrap();
    ProductCrate::read(&repository(), package, folder).unwrap()
}

/// Fails with all problems of a crate's layout at once.
fn check(package: &str) {
    let product = read(package);
    let mut problems = String::new();
    let mut report = |rule: &str, found: Vec<String>| {
        if !found.is_empty() {
            let _ = write!(problems, "\n\n{rule}:\n{}", found.join("\n"));
        }
    };
    let of_all = |check: &dyn Fn(&gpunode_structure_tests::Tree) -> Vec<String>| {
        product.trees.iter().flat_map(check).collect::<Vec<_>>()
    };
    report("circles", of_all(&|tree| circles(&Uses::of(tree))));
    report("tables of modules", of_all(&table_problems));
    let types: Vec<_> = product.trees.iter().flat_map(type_names).collect();
    report("names of more than one type", shared_names(&types));
    report("errors that are only text", of_all(&string_errors));
    let named_mod = |path: &&String| path.ends_with("/mod.rs");
    report(
        "modules are `name.rs` with `name/`, without `mod.rs`",
        product.sources.keys().filter(named_mod).cloned().collect(),
    );
    report(
        "files that no `mod` reaches",
        product.unlinked().map(str::to_owned).collect(),
    );
    report(
        "doc comments that begin with What, Whether, How, Why, Who, When, Where or Which",
        product
            .sources
            .iter()
            .chain(&product.tests)
            .flat_map(|(file, text)| {
                headless_docs(text)
                    .into_iter()
                    .map(move |line| format!("{file}:{line}"))
            })
            .collect(),
    );
    report(
        "comments that refer to what the repository does not hold",
        product
            .sources
            .iter()
            .chain(&product.tests)
            .flat_map(|(file, text)| foreign_references(text).into_iter().map(move |found| (file, found)))
            .map(|(file, (line, text))| format!("{file}:{line}: {text}"))
            .collect(),
    );
    report("layers", upward_dependencies(package, &product.manifest));
    assert!(problems.is_empty(), "{package}:{problems}");
}

#[test]
fn config() {
    check("gpunode-config");
}

#[test]
fn crds() {
    check("gpunode-crds");
}

#[test]
fn process() {
    check("gpunode-process");
}

#[test]
fn gpu() {
    check("gpunode-gpu");
}

#[test]
fn cdi() {
    check("gpunode-cdi");
}

#[test]
fn mig() {
    check("gpunode-mig");
}

#[test]
fn hook() {
    check("gpunode-hook");
}

#[test]
fn plan() {
    check("gpunode-plan");
}

#[test]
fn operator() {
    check("gpunode-operator");
}

#[test]
fn kubectl() {
    check("kubectl-gpunode");
}

#[test]
fn agent() {
    check("gpunode-agent");
}

#[test]
fn no_crate_depends_on_one_above_it() {
    for (package, _) in PRODUCT {
        let found = upward_dependencies(package, &read(package).manifest);
        assert!(found.is_empty(), "{found:?}");
    }
}

#[test]
fn names_of_types_are_unique_in_the_whole_product() {
    let types: Vec<_> = PRODUCT
        .iter()
        .flat_map(|(package, _)| read(package).trees)
        .flat_map(|tree| type_names(&tree))
        .collect();
    let shared = shared_names(&types);
    assert!(shared.is_empty(), "{}", shared.join("\n"));
}

#[test]
fn no_doc_comment_of_a_test_begins_with_a_question_word() {
    check_tests(|text| headless_docs(text).iter().map(usize::to_string).collect());
}

#[test]
fn no_comment_of_a_test_refers_to_what_the_repository_does_not_hold() {
    check_tests(|text| {
        let found = foreign_references(text).into_iter();
        found.map(|(line, text)| format!("{line}: {text}")).collect()
    });
}

/// Fails with what `problems` finds in the text of any file of the tests, each with its line first.
fn check_tests(problems: impl Fn(&str) -> Vec<String>) {
    let found: Vec<_> = rust_files(&repository(), "tests")
        .unwrap()
        .iter()
        .flat_map(|(file, text)| {
            problems(text)
                .into_iter()
                .map(move |problem| format!("{file}:{problem}"))
        })
        .collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// A library's items are public for the other crates; one that none of them uses is private.
#[test]
fn every_public_item_of_a_library_is_used_by_another_crate() {
    let all: Vec<ProductCrate> = PRODUCT.iter().map(|(package, _)| read(package)).collect();
    let tests = rust_files(&repository(), "tests").unwrap();
    let mut unused = Vec::new();
    for library in &all {
        let own = format!("{}/src/", library.folder);
        // A program is not the library that stands beside it.
        let is_other = |file: &str| !file.starts_with(&own) || file == format!("{own}main.rs");
        let others: Files = all
            .iter()
            .flat_map(|other| other.sources.iter().chain(&other.tests))
            .chain(&tests)
            .filter(|(file, _)| is_other(file))
            .map(|(file, text)| (file.clone(), text.clone()))
            .collect();
        for tree in library.trees.iter().filter(|tree| tree.root().ends_with("lib.rs")) {
            unused.extend(unused_exports(tree, &others));
        }
    }
    assert!(unused.is_empty(), "{}", unused.join("\n"));
}

#[test]
fn documents_name_files_and_tests_that_exist() {
    let root = repository();
    let folders = ["config", "crds", "mig", "process", "node-agent", "operator", "tests"];
    let sources: Vec<String> = folders
        .iter()
        .flat_map(|folder| rust_files(&root, folder).unwrap().into_values())
        .collect();
    let sources: Vec<&str> = sources.iter().map(String::as_str).collect();
    let documents = [
        "docs/api-stability.md",
        "docs/architecture.md",
        "docs/comparison.md",
        "docs/threat-model.md",
        "docs/troubleshooting.md",
        "CONTRIBUTING.md",
    ];
    for name in documents {
        let document = std::fs::read_to_string(root.join(name)).unwrap();
        assert_eq!(missing_files(&document, &root), Vec::<String>::new(), "files in {name}");
        let missing = missing_tests(&document, &sources);
        assert_eq!(missing, Vec::<String>::new(), "tests in {name}");
    }
}
