//! The JSON schema of the values. It refuses what the chart does not know. Pure.

use crate::chart_value::{ChartValue, ValueContent};
use anyhow::{Result, bail};
use serde_json::{Map, Value, json};

/// Returns the schema of values.
///
/// # Errors
/// When the type of a value does not follow from its default.
pub fn schema(values: &[ChartValue]) -> Result<Value> {
    let mut schema = Map::from_iter([(
        "$schema".to_owned(),
        json!("https://json-schema.org/draft/2020-12/schema"),
    )]);
    schema.extend(object(values)?);
    Ok(Value::Object(schema))
}

fn object(values: &[ChartValue]) -> Result<Map<String, Value>> {
    let mut properties = Map::new();
    for value in values {
        properties.insert(value.key.clone(), Value::Object(property(value)?));
    }
    Ok(Map::from_iter([
        ("type".to_owned(), json!("object")),
        ("additionalProperties".to_owned(), json!(false)),
        ("properties".to_owned(), Value::Object(properties)),
    ]))
}

fn property(value: &ChartValue) -> Result<Map<String, Value>> {
    let mut property = match &value.content {
        ValueContent::Group(values) => object(values)?,
        ValueContent::Default(default, _) => {
            let name = match default {
                Value::Bool(_) => "boolean",
                Value::Number(_) => "integer",
                Value::String(_) => "string",
                Value::Array(_) => "array",
                Value::Object(_) => "object",
                Value::Null => bail!("{} has no default", value.key),
            };
            Map::from_iter([
                ("type".to_owned(), json!(name)),
                ("default".to_owned(), default.clone()),
            ])
        }
    };
    property.insert("description".to_owned(), json!(value.description));
    property.extend(value.schema.clone());
    let is_open = property["type"] == "object" && !property.contains_key("additionalProperties");
    let is_untyped = property["type"] == "array" && !property.contains_key("items");
    if is_open || is_untyped {
        bail!("the schema of {} says nothing of its content", value.key);
    }
    Ok(property)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_keys_are_refused_in_every_group() {
        let values = ChartValue::parse("# A.\na:\n  # B.\n  # @schema {minimum: 0}\n  b: 2\n").unwrap();
        let b = json!({"type": "integer", "default": 2, "minimum": 0, "description": "B."});
        let a = json!({"type": "object", "additionalProperties": false, "properties": {"b": b}, "description": "A."});
        assert_eq!(
            schema(&values).unwrap(),
            json!({"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object", "additionalProperties": false,
                "properties": {"a": a}})
        );
    }

    #[test]
    fn a_list_or_map_says_what_may_be_in_it() {
        for text in ["# A.\na: []\n", "# A.\na: {}\n", "# A.\na: null\n"] {
            assert!(schema(&ChartValue::parse(text).unwrap()).is_err(), "{text}");
        }
    }
}
