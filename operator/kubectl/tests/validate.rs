//! `validate` on the table of policies. `tests/api_server.rs` asks a real API server the same.
#![allow(clippy::expect_used, clippy::panic, reason = "a test")]

mod table;

use kubectl_gpunode::validate::{Kinds, Text};

#[test]
fn every_policy_of_the_table_gets_its_verdict() {
    let kinds = Kinds::new().expect("generated schemas");
    table::compare("validate", &table::cases(), |case| {
        let text = Text { name: case.name.clone(), contents: case.yaml.clone() };
        let problems: Vec<_> = kinds.validate(&text).into_iter().flat_map(|report| report.problems).collect();
        let words: Vec<_> = problems.iter().map(|problem| problem.message.clone()).collect();
        (problems.into_iter().map(|problem| problem.path).collect(), words.join("; "))
    });
}
