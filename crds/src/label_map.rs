//! Schemas of maps of labels, bounded as Kubernetes bounds labels.
//!
//! Written by hand, because schemars has no attribute for the values of a map.

use schemars::{Schema, SchemaGenerator, json_schema};

/// Label values by key: at most 32, each of at most 63 letters, digits, `-`, `_` and `.`.
/// Source: `IsValidLabelValue` in Kubernetes `apimachinery/pkg/util/validation`.
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
            "pattern": "^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$",
        },
    })
}
