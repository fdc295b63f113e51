//! A map of texts in few blocks of memory. The operator keeps thousands of nodes with dozens of labels each, and copies
//! and compares them at every event: few blocks are cheaper than a string for each key and each value
//! (`docs/benchmarks.md`). Maps with the same keys share them, since the labels of a fleet have the same keys.

use crate::interned::{InternPool, Interned};
use std::{
    cmp::Ordering,
    collections::BTreeMap,
    fmt,
    hash::{DefaultHasher, Hash},
    sync::{Arc, Mutex},
};

/// Texts by key, in the order of the keys.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct PackedMap {
    keys: Arc<PackedTexts>,
    /// The text of each key, in the order of the keys.
    texts: Arc<PackedTexts>,
}

impl PackedMap {
    /// Packs a map whose texts many nodes have alike, too, and shares them.
    pub(crate) fn shared<K: AsRef<str>, V: AsRef<str>>(map: &BTreeMap<K, V>) -> Self {
        Self {
            keys: PackedTexts::of(map.keys()).interned(),
            texts: PackedTexts::of(map.values()).interned(),
        }
    }

    /// Returns the text of a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.texts.get(self.keys.position(key)?)
    }

    /// Returns true if the key exists.
    pub fn contains_key(&self, key: &str) -> bool {
        self.keys.position(key).is_some()
    }

    /// Returns true if the map is empty.
    pub fn is_empty(&self) -> bool {
        self.keys.ends.is_empty()
    }

    /// Returns all keys with their texts.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.keys.iter().zip(self.texts.iter())
    }

    /// Copies the map into separate strings.
    pub fn to_map(&self) -> BTreeMap<String, String> {
        self.iter()
            .map(|(key, text)| (key.to_owned(), text.to_owned()))
            .collect()
    }
}

impl<K: AsRef<str>, V: AsRef<str>> From<&BTreeMap<K, V>> for PackedMap {
    fn from(map: &BTreeMap<K, V>) -> Self {
        Self {
            keys: PackedTexts::of(map.keys()).interned(),
            texts: Arc::new(PackedTexts::of(map.values())),
        }
    }
}

impl fmt::Debug for PackedMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

/// A list of texts in two blocks of memory.
#[derive(Default, PartialEq, Eq, Hash)]
pub struct PackedTexts {
    /// All texts, one behind the other.
    block: Box<str>,
    /// End of each text in `block`, in bytes.
    ends: Box<[u32]>,
}

impl PackedTexts {
    fn of<T: AsRef<str>>(texts: impl Iterator<Item = T> + Clone) -> Self {
        let length = texts.clone().map(|text| text.as_ref().len()).sum();
        let mut block = String::with_capacity(length);
        let mut ends = Vec::with_capacity(texts.size_hint().0);
        for text in texts {
            block.push_str(text.as_ref());
            // An object of the API server has a few MiB at most; what lies beyond would be missing.
            ends.push(u32::try_from(block.len()).unwrap_or(u32::MAX));
        }
        Self {
            block: block.into_boxed_str(),
            ends: ends.into_boxed_slice(),
        }
    }

    fn get(&self, at: usize) -> Option<&str> {
        let end = self.ends.get(at)?;
        let start = at.checked_sub(1).and_then(|before| self.ends.get(before)).unwrap_or(&0);
        self.block
            .get(usize::try_from(*start).ok()?..usize::try_from(*end).ok()?)
    }

    fn iter(&self) -> impl Iterator<Item = &str> {
        (0..self.ends.len()).map(|at| self.get(at).unwrap_or_default())
    }

    /// Returns the place of a text in a list in order.
    fn position(&self, text: &str) -> Option<usize> {
        let (mut from, mut to) = (0, self.ends.len());
        while from < to {
            let middle = usize::midpoint(from, to);
            match self.get(middle)?.cmp(text) {
                Ordering::Equal => return Some(middle),
                Ordering::Less => from = middle + 1,
                Ordering::Greater => to = middle,
            }
        }
        None
    }
}

impl Interned for PackedTexts {
    fn pool() -> &'static Mutex<InternPool<Self>> {
        static POOL: Mutex<InternPool<PackedTexts>> = Mutex::new(InternPool::new());
        &POOL
    }

    fn feed(&self, hasher: &mut DefaultHasher) {
        self.hash(hasher);
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

    #[test]
    fn maps_with_the_same_keys_share_them() {
        let [one, other] = ["x", "y"].map(|text| PackedMap::from(&BTreeMap::from([("shares-keys", text)])));
        assert!(Arc::ptr_eq(&one.keys, &other.keys) && one != other);
        let [one, other] = ["x", "x"].map(|text| PackedMap::shared(&BTreeMap::from([("shares-keys", text)])));
        assert!(Arc::ptr_eq(&one.texts, &other.texts));
    }
}
