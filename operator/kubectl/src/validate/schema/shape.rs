//! Types and bounds, checked as in the validator of kube-openapi.

use super::fields::{field, is_nullable, is_open};
use crate::{
    output::plural,
    validate::problem::{DocumentProblem, child},
};
use gpunode_config::nearest_name;
use regex::Regex;
use serde_json::{Map, Value};
use std::collections::HashMap;

/// The problems in an object's values.
#[derive(Default)]
pub struct ShapeCheck {
    pub problems: Vec<DocumentProblem>,
    /// Paths of values that are missing, too long or of another type. The API server then runs no rule (`hasBlockingErr`).
    pub misshapen: Vec<String>,
    /// Compiled patterns: a list may have thousands of values of one pattern, and compilation takes longer than a match.
    patterns: HashMap<String, Option<Regex>>,
}

impl ShapeCheck {
    fn invalid(&mut self, path: &str, message: impl Into<String>) {
        self.problems.push(DocumentProblem::new(path, message));
    }

    fn misshapen(&mut self, path: &str, message: impl Into<String>) {
        self.misshapen.push(path.to_owned());
        self.invalid(path, message);
    }

    /// Checks a value against its schema.
    pub fn value(&mut self, schema: &Value, value: &Value, path: &str) {
        let wanted = wanted_type(schema);
        if !is_right_type(schema, value) {
            // The fields of this object have already been reported as unknown.
            if value.as_object().is_some_and(|fields| !fields.is_empty()) && !is_open(path) {
                self.misshapen.push(path.to_owned());
                return;
            }
            let hint = if wanted == "string" { "; put it in quotes" } else { "" };
            return self.misshapen(
                path,
                format!("must be of type {wanted}, not {}{hint}", type_name(value)),
            );
        }
        if let Some(allowed) = schema.get("enum").and_then(Value::as_array)
            && !allowed.contains(value)
        {
            let names: Vec<&str> = allowed.iter().filter_map(Value::as_str).collect();
            let nearest = value.as_str().and_then(|written| nearest_name(written, &names));
            let hint = nearest.map_or_else(
                || format!("supported values: {}", names.join(", ")),
                |name| format!("did you mean `{name}`?"),
            );
            self.misshapen(path, format!("{value} is not supported; {hint}"));
        }
        match value {
            Value::String(text) => self.text(schema, text, path),
            Value::Number(number) => self.number(schema, number.as_f64().unwrap_or_default(), path),
            Value::Array(items) => self.list(schema, items, path),
            Value::Object(fields) => self.object(schema, fields, path),
            _ => {}
        }
    }

    fn text(&mut self, schema: &Value, text: &str, path: &str) {
        let length = text.chars().count();
        if let Some(most) = bound(schema, "maxLength").filter(|most| length > *most) {
            self.misshapen(path, format!("{length} characters exceed the maximum of {most}"));
        }
        if let Some(least) = bound(schema, "minLength").filter(|least| length < *least) {
            return self.invalid(
                path,
                format!("needs at least {}", plural(least, "character", "characters")),
            );
        }
        let Some(pattern) = schema.get("pattern").and_then(Value::as_str) else {
            return;
        };
        // A test compiles every pattern, so none fails here.
        let compiled = self.patterns.entry(pattern.to_owned());
        let compiled = compiled.or_insert_with(|| Regex::new(pattern).ok());
        if !compiled.as_ref().is_some_and(|pattern| pattern.is_match(text)) {
            let wanted = pattern_words(path)
                .map(|words| format!("is not {words}; it "))
                .unwrap_or_default();
            self.invalid(path, format!("{text:?} {wanted}does not match {pattern}"));
        }
    }

    fn number(&mut self, schema: &Value, number: f64, path: &str) {
        let least = schema.get("minimum").and_then(Value::as_f64);
        let most = schema.get("maximum").and_then(Value::as_f64);
        if let Some(least) = least.filter(|least| number < *least) {
            self.invalid(path, format!("{number} is less than the minimum of {least}"));
        }
        if let Some(most) = most.filter(|most| number > *most) {
            self.invalid(path, format!("{number} is more than the maximum of {most}"));
        }
    }

    fn list(&mut self, schema: &Value, items: &[Value], path: &str) {
        if let Some(schema) = schema.get("items") {
            for (index, item) in items.iter().enumerate() {
                self.value(schema, item, &format!("{path}[{index}]"));
            }
        }
        if let Some(most) = bound(schema, "maxItems").filter(|most| items.len() > *most) {
            self.misshapen(path, format!("{} entries exceed the maximum of {most}", items.len()));
        }
        if let Some(least) = bound(schema, "minItems").filter(|least| items.len() < *least) {
            self.invalid(path, format!("needs at least {}", plural(least, "entry", "entries")));
        }
        let Some(names) = schema.get("x-kubernetes-list-map-keys").and_then(Value::as_array) else {
            return;
        };
        let names: Vec<&str> = names.iter().filter_map(Value::as_str).collect();
        let keys: Vec<Vec<Option<&Value>>> = items
            .iter()
            .map(|item| names.iter().map(|name| item.get(name)).collect())
            .collect();
        for (index, key) in keys.iter().enumerate() {
            // The API server names the first repetition alone.
            if keys.iter().take(index).filter(|earlier| *earlier == key).count() == 1 {
                let message = format!("the same {} as an earlier entry; keep one of them", names.join(" and "));
                self.invalid(&format!("{path}[{index}]"), message);
            }
        }
    }

    fn object(&mut self, schema: &Value, fields: &Map<String, Value>, path: &str) {
        for (name, value) in fields {
            if let Some(schema) = field(schema, name) {
                self.value(schema, value, &child(path, name));
            }
        }
        for name in schema
            .get("required")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
        {
            if !fields.contains_key(name) {
                self.misshapen(&child(path, name), "is required");
            }
        }
        if let Some(most) = bound(schema, "maxProperties").filter(|most| fields.len() > *most) {
            self.misshapen(path, format!("{} entries exceed the maximum of {most}", fields.len()));
        }
    }
}

/// Describes a pattern by its field, because a schema has no place for a message about the values of a list or map.
fn pattern_words(path: &str) -> Option<&'static str> {
    const VALUE: &str =
        "a valid label or taint value: letters, digits, `-`, `_` and `.`, with a letter or digit at both ends";
    // A label key may contain dots, so the last field does not tell here.
    if path.starts_with("spec.labels.") || path.contains(".matchLabels.") {
        return Some(VALUE);
    }
    match path.rsplit('.').next()?.split('[').next()? {
        "products" => Some("a glob for product names, such as `Tesla-V100*`"),
        "migProfiles" => Some("a glob for MIG profiles, such as `1g.*`"),
        "uuids" => Some("the UUID of a GPU or MIG device; `nvidia-smi -L` lists them as GPU-... and MIG-..."),
        "image" => Some("an image name, such as `registry.example/agent:1.0`"),
        "key" => Some("a valid label or taint key, such as `example.com/pool`"),
        "value" | "values" => Some(VALUE),
        _ => None,
    }
}

pub fn bound(schema: &Value, name: &str) -> Option<usize> {
    schema.get(name)?.as_u64().and_then(|bound| usize::try_from(bound).ok())
}

/// The API server's name for a type that is an integer or a string.
pub const INT_OR_STRING: &str = "integer,string";

/// Returns the type that a schema wants; empty for any.
pub fn wanted_type(schema: &Value) -> &str {
    match schema.get("x-kubernetes-int-or-string") {
        Some(Value::Bool(true)) => INT_OR_STRING,
        _ => schema.get("type").and_then(Value::as_str).unwrap_or_default(),
    }
}

/// Returns true for a value of the schema's type, or null where that is a value.
pub fn is_right_type(schema: &Value, value: &Value) -> bool {
    is_type(wanted_type(schema), value) || (value.is_null() && is_nullable(schema))
}

fn is_type(wanted: &str, value: &Value) -> bool {
    match wanted {
        INT_OR_STRING => is_type("integer", value) || is_type("string", value),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "" => true,
        wanted => type_name(value) == wanted,
    }
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}
