//! Values of YAML from documents of other programs, with bounds on nesting and on what aliases make of them.

use serde::{
    Deserializer,
    de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor},
};
use serde_yaml::{Mapping, Value};
use std::{cell::Cell, fmt};

/// Number of bytes of all texts and entries of a document, aliases taken apart. A document within
/// [`MAX_DOCUMENT_BYTES`](crate::MAX_DOCUMENT_BYTES) needs no more without aliases.
const MAX_EXPANDED_BYTES: usize = 4 * 1024 * 1024;
/// Bytes that an entry counts besides its text.
const ENTRY_BYTES: usize = 16;

/// Number of brackets that may be open at once. At each token, libyaml goes through all that are open (`scanner.c`,
/// `yaml_parser_stale_simple_keys`): some 100,000 of them take a minute.
const MAX_OPEN_BRACKETS: usize = 200;
/// Maximum number of opening brackets: one that only a text closes stays open. A DaemonSet in JSON has some hundreds.
const MAX_BRACKETS: usize = 5_000;

/// Checks that a document is not nested so deeply that its parser takes long. Brackets in texts and comments count, too.
///
/// # Errors
/// When too many brackets are open at once.
pub(crate) fn check_nesting(text: &str) -> Result<(), serde_yaml::Error> {
    let (mut open, mut all) = (0_usize, 0_usize);
    for byte in text.bytes() {
        match byte {
            b'[' | b'{' => (open, all) = (open + 1, all + 1),
            b']' | b'}' => open = open.saturating_sub(1),
            _ => {}
        }
        if all > MAX_BRACKETS {
            return Err(Error::custom(format!(
                "there are more than {MAX_BRACKETS} opening brackets; write blocks"
            )));
        }
        if open > MAX_OPEN_BRACKETS {
            return Err(Error::custom(format!(
                "more than {MAX_OPEN_BRACKETS} brackets are open at once"
            )));
        }
    }
    Ok(())
}

/// Parses a document, with its merge keys applied (`<<`, as in YAML 1.1).
///
/// # Errors
/// When it is not YAML, is nested too deeply, has tags of its own, or its aliases make it too large.
pub fn yaml_value(text: &str) -> Result<Value, serde_yaml::Error> {
    check_nesting(text)?;
    let budget = Cell::new(MAX_EXPANDED_BYTES);
    let mut value = BoundedValue(&budget).deserialize(serde_yaml::Deserializer::from_str(text))?;
    value.apply_merge()?;
    Ok(value)
}

#[derive(Clone, Copy)]
struct BoundedValue<'a>(&'a Cell<usize>);

impl BoundedValue<'_> {
    fn spend<E: Error>(self, bytes: usize) -> Result<(), E> {
        let left = self.0.get().checked_sub(bytes + ENTRY_BYTES);
        let left = left.ok_or_else(|| E::custom("its aliases make the document too large; write them out"))?;
        self.0.set(left);
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for BoundedValue<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for BoundedValue<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value without a tag of its own")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        self.spend(0)?;
        Ok(Value::Null)
    }

    fn visit_none<E: Error>(self) -> Result<Value, E> {
        self.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.deserialize(deserializer)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        self.spend(0)?;
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        self.spend(0)?;
        Ok(Value::from(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        self.spend(0)?;
        Ok(Value::from(value))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        self.spend(0)?;
        Ok(Value::from(value))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
        self.spend(text.len())?;
        Ok(Value::String(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        self.spend(0)?;
        let mut list = Vec::new();
        while let Some(entry) = entries.next_element_seed(self)? {
            list.push(entry);
        }
        Ok(Value::Sequence(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        self.spend(0)?;
        let mut mapping = Mapping::new();
        while let Some(key) = entries.next_key_seed(self)? {
            let value = entries.next_value_seed(self)?;
            if mapping.contains_key(&key) {
                let name = key.as_str().unwrap_or("that is no text");
                return Err(A::Error::custom(format!("the key {name} is there twice")));
            }
            mapping.insert(key, value);
        }
        Ok(Value::Mapping(mapping))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aliases_and_merge_keys_are_taken_apart() {
        let value = yaml_value("base: &b {one: 1, two: [a]}\nother: {<<: *b, two: 2}\n").unwrap();
        assert_eq!(
            value["other"],
            serde_yaml::from_str::<Value>("{two: 2, one: 1}").unwrap()
        );
        for text in ["", "1", "[a, ~, 1.5, -2, true]", "a: {b: \"c\"}"] {
            assert_eq!(
                yaml_value(text).unwrap(),
                serde_yaml::from_str::<Value>(text).unwrap(),
                "{text}"
            );
        }
    }

    #[test]
    fn a_document_that_aliases_make_large_is_refused() {
        let text = format!("a: &a {}\nb: [{}]\n", "x".repeat(100_000), vec!["*a"; 40_000].join(","));
        let error = yaml_value(&text).unwrap_err().to_string();
        assert!(error.contains("its aliases make the document too large"), "{error}");
        for text in ["{a: 1, a: 2}", "!tag a", "a: ["] {
            assert!(yaml_value(text).is_err(), "{text}");
        }
        let error = yaml_value(&"[".repeat(201)).unwrap_err().to_string();
        assert_eq!(error, "more than 200 brackets are open at once");
        let error = yaml_value(&"[\"]\",".repeat(40_000)).unwrap_err().to_string();
        assert_eq!(error, "there are more than 5000 opening brackets; write blocks");
    }
}
