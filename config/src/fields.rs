//! Fields of the configuration, so that an operator sends no agent a document that it cannot read.
//!
//! A field is its path without indices, such as `resources.sharing.replicas`. A value of an enum counts too, as
//! `resources.sharing.strategy=Mps`: an older agent refuses both.

use crate::AgentConfig;
use schemars::generate::SchemaSettings;
use serde_json::Value;
use std::{collections::BTreeSet, sync::LazyLock};

/// Fields and values that this version knows.
static KNOWN: LazyLock<BTreeSet<String>> = LazyLock::new(|| {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    let schema: Value = settings.into_generator().into_root_schema_for::<AgentConfig>().into();
    let mut known = BTreeSet::new();
    collect_known(&schema, "", &mut known);
    known
});

/// Returns the fields and values of enums that this version knows.
pub fn known_fields() -> &'static BTreeSet<String> {
    &KNOWN
}

/// Returns the fields and values of enums of a configuration.
pub fn fields_of(config: &AgentConfig) -> BTreeSet<String> {
    let mut fields = BTreeSet::new();
    collect_used(&serde_json::to_value(config).unwrap_or_default(), "", &mut fields);
    fields
}

fn child(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}.{name}")
    }
}

fn collect_known(schema: &Value, path: &str, known: &mut BTreeSet<String>) {
    for alternatives in ["anyOf", "oneOf"] {
        for schema in schema.get(alternatives).and_then(Value::as_array).into_iter().flatten() {
            collect_known(schema, path, known);
        }
    }
    let values = schema.get("enum").and_then(Value::as_array).into_iter().flatten();
    let values = values.chain(schema.get("const")).filter_map(Value::as_str);
    known.extend(values.map(|value| format!("{path}={value}")));
    if let Some(items) = schema.get("items") {
        collect_known(items, path, known);
    }
    let fields = schema.get("properties").and_then(Value::as_object);
    for (name, field) in fields.into_iter().flatten() {
        let path = child(path, name);
        known.insert(path.clone());
        collect_known(field, &path, known);
    }
}

fn collect_used(value: &Value, path: &str, used: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let path = child(path, name);
                used.insert(path.clone());
                collect_used(value, &path, used);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect_used(item, path, used)),
        Value::String(text) => {
            let value = format!("{path}={text}");
            // Other texts, such as names, are no values of an enum.
            if known_fields().contains(&value) {
                used.insert(value);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: &str =
        "{resources: [{name: a.b/c, devices: {architectures: [volta], kind: FullGpu}, allocation: Packed,
        sharing: {strategy: TimeSlicing, replicas: 4}}], health: {recovery: Manual, ignoreXids: [1]}}";

    #[test]
    fn each_field_and_value_of_a_configuration_is_known() {
        let config = crate::load(FULL).expect("a configuration");
        let used = fields_of(&config);
        assert_eq!(
            used.iter().map(String::as_str).collect::<Vec<_>>(),
            [
                "health",
                "health.ignoreXids",
                "health.recovery",
                "health.recovery=Manual",
                "resources",
                "resources.allocation",
                "resources.allocation=Packed",
                "resources.devices",
                "resources.devices.architectures",
                "resources.devices.architectures=volta",
                "resources.devices.kind",
                "resources.devices.kind=FullGpu",
                "resources.name",
                "resources.sharing",
                "resources.sharing.replicas",
                "resources.sharing.strategy",
                "resources.sharing.strategy=TimeSlicing",
            ]
        );
        assert!(used.is_subset(known_fields()), "{:?}", used.difference(known_fields()));
    }

    #[test]
    fn known_fields_fit_into_the_status_of_a_node() {
        assert!((40..=512).contains(&known_fields().len()), "{}", known_fields().len());
        assert!(known_fields().iter().all(|field| field.len() <= 128));
    }
}
