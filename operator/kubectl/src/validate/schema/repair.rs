//! Values in place of those with a wrong shape, so that the rules about other fields can be checked.

use super::{
    fields::field,
    shape::{INT_OR_STRING, bound, is_right_type, wanted_type},
};
use serde_json::{Map, Value, json};

/// Number of ways to repair an object. A rule that is broken in all of them is broken whatever stands in the misshapen fields.
pub const CHOICES: usize = 6;

/// Texts that fields of policies accept, besides the written one.
const TEXTS: [&str; 4] = ["a.b/c", "1Gi", "30s", "10%"];

/// Numbers that fields of policies accept.
const NUMBERS: [i32; 5] = [1, 2, 0, 10, 60];

/// Returns a copy in which each misshapen value is replaced by one of the right shape, another one for each `choice`.
pub fn repaired(schema: &Value, value: &Value, choice: usize) -> Value {
    if is_misshapen(schema, value) {
        return sample(schema, value, choice);
    }
    let most = |name: &str| bound(schema, name).unwrap_or(usize::MAX);
    match value {
        Value::Array(items) => {
            let item = |item: &Value| match schema.get("items") {
                Some(schema) => repaired(schema, item, choice),
                None => item.clone(),
            };
            items.iter().take(most("maxItems")).map(item).collect()
        }
        Value::Object(fields) => object(schema, fields, most("maxProperties"), choice),
        _ => value.clone(),
    }
}

fn object(schema: &Value, fields: &Map<String, Value>, most: usize, choice: usize) -> Value {
    let required = schema.get("required").and_then(Value::as_array);
    let required: Vec<&str> = required.into_iter().flatten().filter_map(Value::as_str).collect();
    let mut repaired_fields = Map::new();
    for (name, value) in fields.iter().take(most) {
        let value = match field(schema, name) {
            // The last choice is to leave it out.
            Some(schema)
                if choice + 1 == CHOICES && is_misshapen(schema, value) && !required.contains(&name.as_str()) =>
            {
                continue;
            }
            Some(schema) => repaired(schema, value, choice),
            None => value.clone(),
        };
        repaired_fields.insert(name.clone(), value);
    }
    for name in required {
        if let Some(schema) = field(schema, name) {
            let missing = || sample(schema, &Value::Null, choice);
            repaired_fields.entry(name).or_insert_with(missing);
        }
    }
    Value::Object(repaired_fields)
}

/// Returns true where a value itself, and not only a part of it, has the wrong shape.
fn is_misshapen(schema: &Value, value: &Value) -> bool {
    let allowed = schema.get("enum").and_then(Value::as_array);
    let text = value.as_str();
    let is_too_long = text
        .zip(bound(schema, "maxLength"))
        .is_some_and(|(text, most)| text.chars().count() > most);
    !is_right_type(schema, value) || allowed.is_some_and(|allowed| !allowed.contains(value)) || is_too_long
}

fn sample(schema: &Value, written: &Value, choice: usize) -> Value {
    let nth = |values: &[Value]| values.get(choice % values.len().max(1)).cloned().unwrap_or_default();
    if let Some(allowed) = schema.get("enum").and_then(Value::as_array) {
        return nth(allowed);
    }
    match wanted_type(schema) {
        "boolean" => Value::Bool(choice.is_multiple_of(2)),
        "integer" | "number" => {
            let edge = |name: &str| schema.get(name).and_then(Value::as_f64);
            let (least, most) = (edge("minimum"), edge("maximum"));
            let fits = |number: &i32| {
                let number = f64::from(*number);
                least.is_none_or(|least| number >= least) && most.is_none_or(|most| number <= most)
            };
            let written = written.as_str().and_then(|text| text.trim().parse().ok());
            let numbers = written.into_iter().chain(NUMBERS).filter(fits);
            nth(&numbers.map(Value::from).collect::<Vec<_>>())
        }
        INT_OR_STRING => nth(&[json!(1), json!("10%")]),
        "string" => {
            let written = match written {
                Value::Number(_) | Value::Bool(_) => written.to_string(),
                _ => "a".to_owned(),
            };
            let texts = std::iter::once(written.as_str()).chain(TEXTS);
            nth(&texts.map(Value::from).collect::<Vec<_>>())
        }
        "array" => json!([]),
        "object" => object(schema, &Map::new(), 0, choice),
        _ => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_misshapen_is_replaced_and_each_time_by_something_else() {
        let schema = json!({"type": "object", "required": ["mode"], "properties": {
            "mode": {"type": "string", "enum": ["A", "B"]},
            "count": {"type": "integer", "minimum": 2.0},
            "labels": {"type": "object", "additionalProperties": {"type": "string", "maxLength": 3}},
            "list": {"type": "array", "maxItems": 1, "items": {"type": "boolean"}},
        }});
        let value = json!({"count": "4", "labels": {"a": "b", "long": "abcd"}, "list": ["yes", true], "more": 1});
        assert_eq!(
            repaired(&schema, &value, 0),
            json!({"mode": "A", "count": 4, "labels": {"a": "b", "long": "a"}, "list": [true], "more": 1})
        );
        assert_eq!(
            repaired(&schema, &value, 1),
            json!({"mode": "B", "count": 2, "labels": {"a": "b", "long": "a.b/c"}, "list": [false], "more": 1})
        );
        assert_eq!(
            repaired(&schema, &value, CHOICES - 1),
            json!({"mode": "B", "labels": {"a": "b"}, "list": [false], "more": 1})
        );
        let right = json!({"mode": "B", "count": 3});
        assert_eq!(repaired(&schema, &right, 0), right);
    }
}
