//! A map of texts in two blocks of memory. The operator keeps thousands of nodes with dozens of labels each, and copies and
//! compares them at every event: two blocks are cheaper than a string for each key and each value (`docs/benchmarks.md`).

use std::{collections::BTreeMap, fmt};

/// Texts by key, in the order of the keys.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct PackedMap {
    /// Each key with its text behind it.
    block: String,
    /// Start and end of each key and its text.
    spans: Vec<EntrySpan>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct EntrySpan {
    key: usize,
    text: usize,
    end: usize,
}

impl PackedMap {
    /// Returns the text of a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        let found = self.spans.binary_search_by(|span| self.key(*span).cmp(key)).ok()?;
        self.spans.get(found).map(|span| self.text(*span))
    }

    /// Returns true if the key exists.
    pub fn contains_key(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// Returns true if the map is empty.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Returns all keys with their texts.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.spans.iter().map(|span| (self.key(*span), self.text(*span)))
    }

    /// Copies the map into separate strings.
    pub fn to_map(&self) -> BTreeMap<String, String> {
        self.iter()
            .map(|(key, text)| (key.to_owned(), text.to_owned()))
            .collect()
    }

    fn key(&self, span: EntrySpan) -> &str {
        self.block.get(span.key..span.text).unwrap_or_default()
    }

    fn text(&self, span: EntrySpan) -> &str {
        self.block.get(span.text..span.end).unwrap_or_default()
    }
}

impl<K: AsRef<str>, V: AsRef<str>> From<&BTreeMap<K, V>> for PackedMap {
    fn from(map: &BTreeMap<K, V>) -> Self {
        let length = map
            .iter()
            .map(|(key, text)| key.as_ref().len() + text.as_ref().len())
            .sum();
        let (mut block, mut spans) = (String::with_capacity(length), Vec::with_capacity(map.len()));
        for (key, text) in map {
            let start = block.len();
            block.push_str(key.as_ref());
            let middle = block.len();
            block.push_str(text.as_ref());
            spans.push(EntrySpan {
                key: start,
                text: middle,
                end: block.len(),
            });
        }
        Self { block, spans }
    }
}

impl fmt::Debug for PackedMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_is_found_by_its_key_and_no_other() {
        let map = BTreeMap::from([("", "empty"), ("a", ""), ("ab", "c"), ("ä", "ö")]);
        let texts = PackedMap::from(&map);
        for (key, text) in &map {
            assert_eq!(texts.get(key), Some(*text));
        }
        assert_eq!(
            (texts.get("b"), texts.contains_key("abc"), texts.is_empty()),
            (None, false, false)
        );
        assert_eq!(PackedMap::from(&texts.to_map()), texts);
        assert_ne!(
            PackedMap::from(&BTreeMap::from([("ab", "c")])),
            PackedMap::from(&BTreeMap::from([("a", "bc")]))
        );
    }
}
