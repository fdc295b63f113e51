//! Schemas of a time and of a list of conditions.
//!
//! Written by hand: the generated schemas have no bounds, and their `date-time` accepts offsets such as `+99:99`, which no
//! client can parse.

use schemars::{Schema, SchemaGenerator, json_schema};

/// Pattern of times that every client can parse.
const TIME: &str =
    "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$";

/// Schema of a time.
pub(crate) fn time(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "format": "date-time", "maxLength": 40, "pattern": TIME})
}

/// Schema of a time that may be absent.
pub(crate) fn optional_time(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = time(generator);
    schema.insert("nullable".to_owned(), true.into());
    schema
}

/// Schema of conditions by the rules of `metav1.Condition` (Kubernetes `apimachinery/pkg/apis/meta/v1/types.go`), with
/// shorter messages and with times that RFC 3339 allows.
pub(crate) fn conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 16,
        "items": {
            "type": "object",
            "required": ["type", "status", "lastTransitionTime", "reason", "message"],
            "properties": {
                "type": {"type": "string", "maxLength": 64, "description": "Type of the condition."},
                "status": {"type": "string", "enum": ["True", "False", "Unknown"], "description": "Status of the condition."},
                "observedGeneration": {
                    "type": "integer", "format": "int64", "minimum": 0,
                    "description": "Generation of the spec that the condition is based on.",
                },
                "lastTransitionTime": {
                    "type": "string", "format": "date-time", "maxLength": 40, "pattern": TIME,
                    "description": "Last time the status changed.",
                },
                "reason": {"type": "string", "minLength": 1, "maxLength": 64, "description": "Reason for the status, as one word for programs."},
                "message": {"type": "string", "maxLength": 4096, "description": "Details for people."},
            },
        },
    })
}
