//! Fields of the record that this version does not know: a later version wrote them, and they survive a write.
//!
//! Fields of the record itself and of its sections stay for ever, those of one label or taint as long as its entry.

use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Fields that this version does not know, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnknownFields(BTreeMap<String, UnknownField>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum UnknownField {
    /// A field that this version does not know.
    Value(Value),
    /// A known object with such fields, or a list of taints with such fields by key and effect.
    Within(UnknownFields),
}

/// Sections of the record: objects with labels and taints.
const SECTIONS: [&str; 3] = ["before", "restored", "conceded"];

impl UnknownFields {
    /// Returns the fields of `text` that are not in `known`, which is everything that this version reads from it.
    pub fn between(text: &str, known: &str) -> Result<Self, serde_json::Error> {
        if text == known {
            return Ok(Self::default());
        }
        let (text, known): (Value, Value) = (serde_json::from_str(text)?, serde_json::from_str(known)?);
        Ok(Self::of(text, &known))
    }

    fn of(value: Value, known: &Value) -> Self {
        let field = |(name, value): (String, Value)| {
            let field = match member(known, &name) {
                // This version writes no section without entries.
                None if SECTIONS.contains(&name.as_str()) => UnknownField::Within(Self::of(value, &Value::Null)),
                None => UnknownField::Value(value),
                Some(known) => UnknownField::Within(Self::of(value, known)),
            };
            (name, field)
        };
        // A known field with its default is not written either.
        let is_unknown = |field: &UnknownField| match field {
            UnknownField::Value(value) => !is_default(value),
            UnknownField::Within(within) => !within.is_empty(),
        };
        let fields = members(value).into_iter().map(field);
        Self(fields.filter(|(_, field)| is_unknown(field)).collect())
    }

    /// Returns true if this version knows every field.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns true if the record or one of its sections has such fields, which stay without any entry.
    pub fn outlive_entries(&self) -> bool {
        let is_value = |field: &UnknownField| matches!(field, UnknownField::Value(_));
        self.0.values().any(|field| match field {
            UnknownField::Value(_) => true,
            UnknownField::Within(section) => section.is_section() && section.0.values().any(is_value),
        })
    }

    /// Returns true for the fields of a section, such as `before`, and false for those of a list of taints.
    fn is_section(&self) -> bool {
        !self.0.keys().any(|name| name.contains(SEPARATOR))
    }

    /// Returns a written record together with these fields.
    pub fn added_to(&self, written: &str) -> Result<String, serde_json::Error> {
        let mut record: Map<String, Value> = serde_json::from_str(written)?;
        for (name, field) in &self.0 {
            if let UnknownField::Within(section) = field
                && section.is_section()
                && !record.contains_key(name)
            {
                let mut missing = Value::Object(Map::new());
                section.add_to(&mut missing);
                if missing.as_object().is_some_and(|object| !object.is_empty()) {
                    record.insert(name.clone(), missing);
                }
            }
        }
        let mut record = Value::Object(record);
        self.add_to(&mut record);
        serde_json::to_string(&record)
    }

    /// Adds the fields to what is there.
    fn add_to(&self, target: &mut Value) {
        match target {
            Value::Object(object) => {
                for (name, field) in &self.0 {
                    match (field, object.get_mut(name)) {
                        (UnknownField::Value(value), None) => drop(object.insert(name.clone(), value.clone())),
                        (UnknownField::Value(value), Some(inner)) => add_missing(value, inner),
                        (UnknownField::Within(fields), Some(inner)) => fields.add_to(inner),
                        (UnknownField::Within(_), None) => {}
                    }
                }
            }
            Value::Array(items) => {
                for item in items {
                    if let Some(UnknownField::Within(fields)) = id_of(item).and_then(|id| self.0.get(&id)) {
                        fields.add_to(item);
                    }
                }
            }
            _ => {}
        }
    }
}

/// Adds the members of an object that the target does not have.
fn add_missing(value: &Value, target: &mut Value) {
    if let (Value::Object(value), Value::Object(target)) = (value, target) {
        for (name, value) in value {
            match target.get_mut(name) {
                None => drop(target.insert(name.clone(), value.clone())),
                Some(inner) => add_missing(value, inner),
            }
        }
    }
}

fn is_default(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
        Value::Bool(true) | Value::Number(_) => false,
    }
}

/// Separates key and effect of a taint; neither can contain it.
const SEPARATOR: char = '\n';

/// Returns the identity of a taint in a list.
fn id_of(taint: &Value) -> Option<String> {
    let (key, effect) = (taint.get("key")?.as_str()?, taint.get("effect")?.as_str()?);
    Some(format!("{key}{SEPARATOR}{effect}"))
}

/// Returns the members of an object, or the taints of a list by identity.
fn members(value: Value) -> Vec<(String, Value)> {
    match value {
        Value::Object(object) => object.into_iter().collect(),
        Value::Array(items) => items
            .into_iter()
            .filter_map(|item| id_of(&item).map(|id| (id, item)))
            .collect(),
        _ => Vec::new(),
    }
}

fn member<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    match value {
        Value::Object(object) => object.get(name),
        Value::Array(items) => items.iter().find(|item| id_of(item).as_deref() == Some(name)),
        _ => None,
    }
}

/// Returns true if both texts say the same, in whatever order.
pub fn is_same_record(one: Option<&str>, other: Option<&str>) -> bool {
    let parsed = |text: &str| serde_json::from_str::<Value>(text).ok();
    match (one, other) {
        (Some(one), Some(other)) => one == other || parsed(one).is_some_and(|it| Some(it) == parsed(other)),
        (one, other) => one == other,
    }
}
