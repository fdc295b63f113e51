//! Blocks of a policy that are null, which counts as left out.

use super::problem::{DocumentProblem, child};
use serde_json::Value;

/// Blocks of a policy's spec for which `{}` means something, with its meaning.
const BLOCKS: [(&str, &str); 5] = [
    ("nodeSelector", "write `nodeSelector: {}` to select every node"),
    ("gpuSelector", "write a condition, such as `gpuSelector: {minCount: 1}`"),
    (
        "devicePlugin",
        "write `devicePlugin: {}` to run the device plugin with its defaults",
    ),
    (
        "startupTaint",
        "write `startupTaint: {}` for the taint with its defaults",
    ),
    (
        "unhealthyTaint",
        "write `unhealthyTaint: {}` for the taint with its defaults",
    ),
];

/// Returns a warning for each of these blocks that is null.
pub fn warnings(object: &Value) -> Vec<DocumentProblem> {
    let is_null = |name: &str| object.get("spec").and_then(|spec| spec.get(name)) == Some(&Value::Null);
    let blank = BLOCKS.into_iter().filter(|(name, _)| is_null(name));
    let warning = |(name, meant)| {
        let message = format!("is null, which counts as left out; {meant}, or remove the line");
        DocumentProblem::new(child("spec", name), message)
    };
    blank.map(warning).collect()
}
