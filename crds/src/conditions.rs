//! The schemas of a moment and of a list of conditions.
//!
//! Written by hand: the generated ones bound nothing, and their `date-time` takes offsets such as `+99:99`, which no client
//! can read again.

use schemars::{Schema, SchemaGenerator, json_schema};

/// A time that clients can read again.
const TIME: &str =
    "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$";

/// A moment.
pub(crate) fn time(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "format": "date-time", "maxLength": 40, "pattern": TIME})
}

/// A moment that may be left out.
pub(crate) fn optional_time(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = time(generator);
    schema.insert("nullable".to_owned(), true.into());
    schema
}

/// Conditions by the rules of `metav1.Condition` (Kubernetes `apimachinery/pkg/apis/meta/v1/types.go`), with shorter
/// messages and with times that RFC 3339 knows.
pub(crate) fn conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 16,
        "items": {
            "type": "object",
            "required": ["type", "status", "lastTransitionTime", "reason", "message"],
            "properties": {
                "type": {"type": "string", "maxLength": 64, "description": "What the condition is about."},
                "status": {"type": "string", "enum": ["True", "False", "Unknown"], "description": "Whether it holds."},
                "observedGeneration": {
                    "type": "integer", "format": "int64", "minimum": 0,
                    "description": "The generation of the spec that it was found for.",
                },
                "lastTransitionTime": {
                    "type": "string", "format": "date-time", "maxLength": 40, "pattern": TIME,
                    "description": "When its status changed last.",
                },
                "reason": {"type": "string", "minLength": 1, "maxLength": 64, "description": "One word for programs."},
                "message": {"type": "string", "maxLength": 4096, "description": "A sentence for people."},
            },
        },
    })
}
