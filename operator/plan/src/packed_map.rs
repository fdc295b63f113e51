//! Texts by key in two blocks of memory. Thousands of nodes are kept, each with dozens of labels, and are copied and compared
//! at every event: two blocks are cheaper than a string for every key and every value (`docs/benchmarks.md`).

use std::{collections::BTreeMap, fmt};

/// Texts by key, in the order of the keys.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct PackedMap {
    /// Each key with its text behind it.
    block: String,
    /// Where each key and its text begin and end.
    places: Vec<Place>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Place {
    key: usize,
    text: usize,
    end: usize,
}

impl PackedMap {
    /// The text of a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        let found = self.places.binary_search_by(|place| self.key(*place).cmp(key)).ok()?;
        self.places.get(found).map(|place| self.text(*place))
    }

    /// Whether there is a text of this key.
    pub fn contains_key(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// Whether there is none at all.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Every key and its text.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.places.iter().map(|place| (self.key(*place), self.text(*place)))
    }

    /// The same as strings of their own.
    pub fn to_map(&self) -> BTreeMap<String, String> {
        self.iter()
            .map(|(key, text)| (key.to_owned(), text.to_owned()))
            .collect()
    }

    fn key(&self, place: Place) -> &str {
        self.block.get(place.key..place.text).unwrap_or_default()
    }

    fn text(&self, place: Place) -> &str {
        self.block.get(place.text..place.end).unwrap_or_default()
    }
}

impl<K: AsRef<str>, V: AsRef<str>> From<&BTreeMap<K, V>> for PackedMap {
    fn from(map: &BTreeMap<K, V>) -> Self {
        let length = map
            .iter()
            .map(|(key, text)| key.as_ref().len() + text.as_ref().len())
            .sum();
        let (mut block, mut places) = (String::with_capacity(length), Vec::with_capacity(map.len()));
        for (key, text) in map {
            let start = block.len();
            block.push_str(key.as_ref());
            let middle = block.len();
            block.push_str(text.as_ref());
            places.push(Place {
                key: start,
                text: middle,
                end: block.len(),
            });
        }
        Self { block, places }
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
