//! Patterns of label and taint keys and values, and schemas of label maps with Kubernetes' bounds.
//!
//! The schemas are written by hand, because schemars has no attribute for the values of a map.

use schemars::{Schema, SchemaGenerator, json_schema};

/// Pattern of a label or taint key: a name of at most 63 characters, optionally with a DNS prefix. Source:
/// `IsQualifiedName` in Kubernetes `apimachinery/pkg/util/validation`. The limit of 253 characters for the prefix holds
/// because the whole key is limited to 253.
pub(crate) const KEY_PATTERN: &str = "^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$";

/// Pattern of a label or taint value; its length is limited separately. Source: `IsValidLabelValue` in Kubernetes
/// `apimachinery/pkg/util/validation`.
pub(crate) const VALUE_PATTERN: &str = "^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$";

/// CEL rule that every key of a map is a label key.
pub(crate) fn key_rule() -> String {
    format!("self.all(key, size(key) <= 253 && key.matches('{KEY_PATTERN}'))")
}

/// Schema of label values by key: at most 32 labels.
pub(crate) fn label_map(_: &mut SchemaGenerator) -> Schema {
    bounded_label_map(32)
}

/// Schema of the labels of several policies together: at most 128 labels.
pub(crate) fn merged_label_map(_: &mut SchemaGenerator) -> Schema {
    bounded_label_map(128)
}

fn bounded_label_map(most: u32) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": most,
        "additionalProperties": {
            "type": "string",
            "maxLength": 63,
            "pattern": VALUE_PATTERN,
        },
    })
}
