//! Documents: source files and tests that they name.

use std::path::Path;

/// Returns the source files and folders that a document names in backticks, such as `crds/src/taint.rs`, and that `repository`
/// does not have.
pub fn missing_files(document: &str, repository: &Path) -> Vec<String> {
    let is_source = |name: &&str| name.contains('/') && Path::new(name).extension().is_some_and(|end| end == "rs");
    quoted(document)
        .filter(is_source)
        .filter(|name| !repository.join(name).is_file())
        .map(str::to_owned)
        .collect()
}

/// Returns the tests that a document names in backticks and that none of the `sources` defines. A name of four or more words is
/// that of a test.
pub fn missing_tests(document: &str, sources: &[&str]) -> Vec<String> {
    let is_test = |name: &&str| {
        let is_snake = name
            .chars()
            .all(|char| char.is_ascii_lowercase() || char.is_ascii_digit() || char == '_');
        is_snake && name.split('_').count() >= 4
    };
    let is_defined = |name: &&str| sources.iter().any(|source| source.contains(&format!("fn {name}(")));
    quoted(document)
        .filter(is_test)
        .filter(|name| !is_defined(name))
        .map(str::to_owned)
        .collect()
}

/// Returns the texts between backticks, code blocks left out.
fn quoted(document: &str) -> impl Iterator<Item = &str> {
    let mut in_block = false;
    let lines = document.lines().filter(move |line| {
        let is_fence = line.starts_with("```");
        in_block ^= is_fence;
        !is_fence && !in_block
    });
    lines.flat_map(|line| line.split('`').skip(1).step_by(2))
}
