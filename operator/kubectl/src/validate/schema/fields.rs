//! Unknown fields, and fields that are dropped before the checks.

use crate::validate::problem::{DocumentProblem, child, parent};
use gpunode_config::unknown_field_message;
use serde_json::{Map, Value};

fn properties(schema: &Value) -> Option<&Map<String, Value>> {
    schema.get("properties")?.as_object()
}

/// Returns the schema of the field `name`, if the schema has such a field.
pub fn field<'a>(schema: &'a Value, name: &str) -> Option<&'a Value> {
    properties(schema)
        .and_then(|known| known.get(name))
        .or_else(|| schema.get("additionalProperties"))
}

/// Adds every field of `value` that its schema does not know.
pub fn unknown_fields(schema: &Value, value: &Value, path: &str, problems: &mut Vec<DocumentProblem>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let path = child(path, name);
                match (field(schema, name), properties(schema)) {
                    (Some(schema), _) => unknown_fields(schema, value, &path, problems),
                    (None, None) if is_open(&path) => {}
                    (None, None) => {
                        let wanted = schema.get("type").and_then(Value::as_str).unwrap_or("another type");
                        let message = format!("unknown field; {} must be of type {wanted}, not object", parent(&path));
                        problems.push(DocumentProblem::new(path, message));
                    }
                    (None, Some(known)) => {
                        let known: Vec<&str> = known.keys().map(String::as_str).collect();
                        problems.push(DocumentProblem::new(path, unknown_field_message(name, &known)));
                    }
                }
            }
        }
        Value::Array(items) => {
            let Some(schema) = schema.get("items") else { return };
            for (index, item) in items.iter().enumerate() {
                unknown_fields(schema, item, &format!("{path}[{index}]"), problems);
            }
        }
        _ => {}
    }
}

/// Returns true where objects without a schema are accepted as they are, such as in `metadata.managedFields`.
pub fn is_open(path: &str) -> bool {
    path == "metadata" || path.starts_with("metadata.")
}

/// Drops every field whose value is null.
pub fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

/// Drops unknown fields, and nulls where null is no value.
pub fn prune(schema: &Value, value: &mut Value) {
    match value {
        Value::Object(fields) => fields.retain(|name, value| match field(schema, name) {
            Some(schema) if value.is_null() => is_nullable(schema),
            Some(schema) => {
                prune(schema, value);
                true
            }
            None => properties(schema).is_none(),
        }),
        Value::Array(items) => {
            if let Some(schema) = schema.get("items") {
                for item in items {
                    prune(schema, item);
                }
            }
        }
        _ => {}
    }
}

/// Returns true where null is a value.
pub fn is_nullable(schema: &Value) -> bool {
    schema.get("nullable").and_then(Value::as_bool).unwrap_or(false)
}
