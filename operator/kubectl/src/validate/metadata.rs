//! The API server's checks of `metadata`.

use super::problem::DocumentProblem;
use gpunode_config::{is_dns_subdomain, is_name_part};
use serde_json::{Map, Value};

/// Returns the problems in the metadata of a cluster-scoped object, which needs a name.
/// Source: `ValidateObjectMetaAccessor` in Kubernetes `apimachinery/pkg/api/validation`.
pub fn check(object: &Value) -> Vec<DocumentProblem> {
    let mut problems = Vec::new();
    let metadata = object.get("metadata");
    match metadata.and_then(|metadata| metadata.get("name")) {
        None | Some(Value::Null) => problems.push(DocumentProblem::new("metadata.name", "is required")),
        Some(Value::String(name)) if name.is_empty() => {
            problems.push(DocumentProblem::new("metadata.name", "is required"));
        }
        Some(Value::String(name)) if !is_dns_subdomain(name) => problems.push(DocumentProblem::new(
            "metadata.name",
            format!("{name:?} is not a valid name: use lowercase letters, digits, `-` and `.`, with a letter or digit at both ends"),
        )),
        Some(_) => {}
    }
    let map = |name: &str| {
        metadata
            .and_then(|metadata| metadata.get(name))
            .and_then(Value::as_object)
    };
    if let Some(key) = first_bad_key(map("labels"), is_qualified_name) {
        problems.push(DocumentProblem::new(
            "metadata.labels",
            format!("{key:?} is not a valid label key"),
        ));
    }
    let values = map("labels")
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| Some((key, value.as_str()?)));
    for (key, value) in values {
        if !value.is_empty() && !is_name_part(value) {
            problems.push(DocumentProblem::new(
                "metadata.labels",
                format!("{value:?} is not a valid value for label {key}"),
            ));
        }
    }
    if let Some(key) = first_bad_key(map("annotations"), |key| is_qualified_name(&key.to_lowercase())) {
        problems.push(DocumentProblem::new(
            "metadata.annotations",
            format!("{key:?} is not a valid annotation key"),
        ));
    }
    problems
}

fn first_bad_key(map: Option<&Map<String, Value>>, is_good: impl Fn(&str) -> bool) -> Option<&String> {
    map?.keys().find(|key| !is_good(key))
}

fn is_qualified_name(key: &str) -> bool {
    match key.split_once('/') {
        Some((prefix, name)) => is_dns_subdomain(prefix) && is_name_part(name),
        None => is_name_part(key),
    }
}
