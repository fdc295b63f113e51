//! Keys and values of labels and taints: patterns, and schemas of maps of labels, bounded as Kubernetes bounds labels.
//!
//! The maps are written by hand, because schemars has no attribute for the values of a map.

use schemars::{Schema, SchemaGenerator, json_schema};

/// A key of a label or taint: a name of at most 63 characters, with or without a DNS name before it.
/// Source: `IsQualifiedName` in Kubernetes `apimachinery/pkg/util/validation`. Its limit of 253 characters for the DNS
/// name is kept by bounding the whole key to 253.
pub(crate) const KEY_PATTERN: &str = "^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$";

/// A value of a label or taint; its length is bounded apart.
/// Source: `IsValidLabelValue` in Kubernetes `apimachinery/pkg/util/validation`.
pub(crate) const VALUE_PATTERN: &str = "^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$";

/// The CEL rule that every key of a map is a label key.
pub(crate) fn key_rule() -> String {
    format!("self.all(key, size(key) <= 253 && key.matches('{KEY_PATTERN}'))")
}

/// Label values by key: at most 32, each of at most 63 letters, digits, `-`, `_` and `.`.
pub(crate) fn label_map(_: &mut SchemaGenerator) -> Schema {
    bounded_label_map(32)
}

/// As [`label_map`], for what several policies contribute together.
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
