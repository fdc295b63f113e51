//! Fuzz tests of the files that people name. `cargo test` runs each for a moment, `make soak` for as long as it is told.

use crate::validate::{KnownKinds, SourceText, ValidationResult};
use gpunode_fuzz::{Mutation, fuzz};
use std::{fs, path::Path};

/// Returns the good policies of the table.
fn policies() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/policies");
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut good: Vec<String> = files
        .filter(|path| {
            path.file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with("good-"))
        })
        .map(|path| fs::read_to_string(path).unwrap())
        .collect();
    good.sort();
    good
}

#[test]
fn validate_judges_any_file_and_gives_a_reason_where_it_refuses() {
    let (kinds, policies) = (KnownKinds::new().unwrap(), policies());
    let policies: Vec<&str> = policies.iter().map(String::as_str).collect();
    fuzz(|mutation: Mutation| {
        let file = SourceText {
            name: "policy.yaml".to_owned(),
            contents: mutation.text(&policies),
        };
        let reports = kinds.validate(&file);
        assert!(!reports.is_empty());
        for report in reports {
            let is_refused = report.result == ValidationResult::Invalid;
            assert_eq!(is_refused, !report.problems.is_empty(), "{report:?}");
        }
    });
}
