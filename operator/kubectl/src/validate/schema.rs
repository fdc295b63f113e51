//! The generated schema of a CRD, checked as the API server checks it.
//!
//! Order and paths follow `customResourceStrategy.Validate` in apiextensions-apiserver and the validator of kube-openapi:
//! fields that no schema knows, nulls dropped where a field is not nullable, types and bounds, duplicate entries of
//! list-maps, and CEL rules only where the shape of the object is right. Rules about a change (`oldSelf`) are left out,
//! as at a create.

use super::problem::{Problem, child, parent};
use gpunode_config::unknown_field_message;
use k8s_openapi::{
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::core::cel::Validator;
use regex::Regex;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

/// The schema of one kind, with `metadata` as every kind has it.
#[derive(Debug)]
pub struct Schema(Value);

/// What the schema says about an object.
#[derive(Debug, Default)]
pub struct Findings {
    /// Everything that is wrong.
    pub problems: Vec<Problem>,
    /// The problems kept the rules from being checked.
    pub rules_unchecked: bool,
    /// The object as it would be stored.
    pub object: Value,
}

impl Schema {
    /// The schema of the version of `crd` that is stored; nothing where the CRD has none.
    pub fn of(crd: &CustomResourceDefinition) -> Option<Self> {
        let version = crd.spec.versions.iter().find(|version| version.storage)?;
        let mut schema = serde_json::to_value(version.schema.as_ref()?.open_api_v3_schema.as_ref()?).ok()?;
        let fields = schema.get_mut("properties")?.as_object_mut()?;
        fields.insert("apiVersion".to_owned(), json!({"type": "string"}));
        fields.insert("kind".to_owned(), json!({"type": "string"}));
        let settings = SchemaSettings::openapi3().with(|settings| settings.inline_subschemas = true);
        let mut metadata = Value::from(settings.into_generator().into_root_schema_for::<ObjectMeta>());
        metadata.as_object_mut()?.insert("required".to_owned(), json!(["name"]));
        fields.insert("metadata".to_owned(), metadata);
        Some(Self(schema))
    }

    /// Everything that the API server would say about `object` at a create with strict field validation, but for its
    /// metadata's values.
    pub fn check(&self, mut object: Value) -> Findings {
        let mut problems = Vec::new();
        unknown_fields(&self.0, &object, "", &mut problems);
        prune(&self.0, &mut object);
        if let Some(fields) = object.as_object_mut() {
            // A create drops the status of a kind that has it as a subresource before anything is checked.
            fields.remove("status");
            fields.entry("metadata").or_insert_with(|| json!({}));
        }
        let mut checked = Checked::default();
        checked.value(&self.0, &object, "");
        if !checked.wrong_shape {
            checked.problems.extend(self.broken_rules(&object, None));
        }
        problems.extend(checked.problems);
        Findings { problems, rules_unchecked: checked.wrong_shape, object }
    }
}

impl Schema {
    /// The CEL rules that `object` breaks; those about a change only with the object as it was.
    pub fn broken_rules(&self, object: &Value, old: Option<&Value>) -> Vec<Problem> {
        // `has` is false for nulls, and no rule tells them from fields that are left out.
        let without_nulls = |object: &Value| {
            let mut object = object.clone();
            drop_nulls(&mut object);
            object
        };
        let failed = Validator::new().validate(&self.0, &without_nulls(object), old.map(without_nulls).as_ref()).err();
        let failed = failed.into_iter().flatten();
        failed.map(|error| Problem::new(error.field_path, error.message)).collect()
    }
}

fn properties(schema: &Value) -> Option<&Map<String, Value>> {
    schema.get("properties")?.as_object()
}

/// The schema of the field `name`, if there can be such a field.
fn field<'a>(schema: &'a Value, name: &str) -> Option<&'a Value> {
    properties(schema).and_then(|known| known.get(name)).or_else(|| schema.get("additionalProperties"))
}

fn unknown_fields(schema: &Value, value: &Value, path: &str, problems: &mut Vec<Problem>) {
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
                        problems.push(Problem::new(path, message));
                    }
                    (None, Some(known)) => {
                        let known: Vec<&str> = known.keys().map(String::as_str).collect();
                        problems.push(Problem::new(path, unknown_field_message(name, &known)));
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

/// Whether objects without a schema are taken as they are, as those in `metadata.managedFields`.
fn is_open(path: &str) -> bool {
    path == "metadata" || path.starts_with("metadata.")
}

fn drop_nulls(value: &mut Value) {
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
fn prune(schema: &Value, value: &mut Value) {
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

fn is_nullable(schema: &Value) -> bool {
    schema.get("nullable").and_then(Value::as_bool).unwrap_or(false)
}

#[derive(Default)]
struct Checked {
    problems: Vec<Problem>,
    /// Something is missing, too long or of another type: the API server then runs no rule (`hasBlockingErr`).
    wrong_shape: bool,
}

impl Checked {
    fn invalid(&mut self, path: &str, message: impl Into<String>) {
        self.problems.push(Problem::new(path, message));
    }

    fn misshapen(&mut self, path: &str, message: impl Into<String>) {
        self.wrong_shape = true;
        self.invalid(path, message);
    }

    fn value(&mut self, schema: &Value, value: &Value, path: &str) {
        let wanted = schema.get("type").and_then(Value::as_str).unwrap_or_default();
        if !(is_type(wanted, value) || (value.is_null() && is_nullable(schema))) {
            // Each field of an object where there can be none has been called unknown.
            if value.as_object().is_some_and(|fields| !fields.is_empty()) && !is_open(path) {
                self.wrong_shape = true;
                return;
            }
            let hint = if wanted == "string" { "; put it in quotes" } else { "" };
            return self.misshapen(path, format!("must be of type {wanted}, not {}{hint}", type_name(value)));
        }
        if let Some(allowed) = schema.get("enum").and_then(Value::as_array)
            && !allowed.contains(value)
        {
            let names: Vec<&str> = allowed.iter().filter_map(Value::as_str).collect();
            self.misshapen(path, format!("{value} is not supported; supported are {}", names.join(", ")));
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
            self.misshapen(path, format!("{length} characters are more than {most}"));
        }
        if let Some(least) = bound(schema, "minLength").filter(|least| length < *least) {
            self.invalid(path, format!("{length} characters are fewer than {least}"));
        }
        let Some(pattern) = schema.get("pattern").and_then(Value::as_str) else { return };
        // A pattern that cannot be read is a fault of gpunode, and a test reads them all.
        if !Regex::new(pattern).is_ok_and(|pattern| pattern.is_match(text)) {
            self.invalid(path, format!("{text:?} does not match {pattern}"));
        }
    }

    fn number(&mut self, schema: &Value, number: f64, path: &str) {
        let least = schema.get("minimum").and_then(Value::as_f64);
        let most = schema.get("maximum").and_then(Value::as_f64);
        if let Some(least) = least.filter(|least| number < *least) {
            self.invalid(path, format!("{number} is less than {least}"));
        }
        if let Some(most) = most.filter(|most| number > *most) {
            self.invalid(path, format!("{number} is more than {most}"));
        }
    }

    fn list(&mut self, schema: &Value, items: &[Value], path: &str) {
        if let Some(schema) = schema.get("items") {
            for (index, item) in items.iter().enumerate() {
                self.value(schema, item, &format!("{path}[{index}]"));
            }
        }
        if let Some(most) = bound(schema, "maxItems").filter(|most| items.len() > *most) {
            self.misshapen(path, format!("{} entries are more than {most}", items.len()));
        }
        if let Some(least) = bound(schema, "minItems").filter(|least| items.len() < *least) {
            self.invalid(path, format!("{} entries are fewer than {least}", items.len()));
        }
        let Some(names) = schema.get("x-kubernetes-list-map-keys").and_then(Value::as_array) else { return };
        let names: Vec<&str> = names.iter().filter_map(Value::as_str).collect();
        let keys: Vec<Vec<Option<&Value>>> =
            items.iter().map(|item| names.iter().map(|name| item.get(name)).collect()).collect();
        for (index, key) in keys.iter().enumerate() {
            // The API server names the first repetition alone.
            if keys.iter().take(index).filter(|earlier| *earlier == key).count() == 1 {
                let message = format!("the same {} as an entry above; keep one of them", names.join(" and "));
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
        for name in schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str) {
            if !fields.contains_key(name) {
                self.misshapen(&child(path, name), "is required");
            }
        }
        if let Some(most) = bound(schema, "maxProperties").filter(|most| fields.len() > *most) {
            self.misshapen(path, format!("{} entries are more than {most}", fields.len()));
        }
    }
}

fn bound(schema: &Value, name: &str) -> Option<usize> {
    schema.get(name)?.as_u64().and_then(|bound| usize::try_from(bound).ok())
}

fn is_type(wanted: &str, value: &Value) -> bool {
    match wanted {
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

#[cfg(test)]
mod tests {
    use super::*;
    use gpunode_crds::{GpuNode, GpuNodePolicy};
    use kube::CustomResourceExt;

    /// Every keyword of the generated schemas, so that none is left unchecked by accident.
    fn visit(schema: &Value, keywords: &mut std::collections::BTreeSet<String>) {
        for (name, value) in schema.as_object().expect("schemas are objects") {
            keywords.insert(name.clone());
            match (name.as_str(), value) {
                ("properties", Value::Object(fields)) => fields.values().for_each(|schema| visit(schema, keywords)),
                ("items" | "additionalProperties", schema) => visit(schema, keywords),
                ("pattern", Value::String(pattern)) => {
                    Regex::new(pattern).expect("patterns compile");
                }
                _ => {}
            }
        }
    }

    #[test]
    fn every_keyword_of_the_generated_schemas_is_known_here() {
        let mut keywords = std::collections::BTreeSet::new();
        for crd in [GpuNodePolicy::crd(), GpuNode::crd()] {
            let version = &crd.spec.versions[0];
            let schema = version.schema.as_ref().and_then(|schema| schema.open_api_v3_schema.as_ref());
            visit(&serde_json::to_value(schema).expect("JSON"), &mut keywords);
        }
        let checked = [
            "additionalProperties",
            "enum",
            "items",
            "maxItems",
            "maxLength",
            "maxProperties",
            "maximum",
            "minItems",
            "minLength",
            "minimum",
            "nullable",
            "pattern",
            "properties",
            "required",
            "type",
            "x-kubernetes-list-map-keys",
            "x-kubernetes-list-type",
            "x-kubernetes-validations",
        ];
        // Formats bound only numbers, which have a minimum and maximum wherever a user writes them.
        let silent = ["description", "format", "title"];
        let unknown: Vec<_> = keywords
            .iter()
            .filter(|word| !checked.contains(&word.as_str()) && !silent.contains(&word.as_str()))
            .collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }
}
