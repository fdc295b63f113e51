//! Keys of one kind in the record: labels or taints.

use gpunode_crds::{AUTOSCALER_STARTUP_PREFIX, IGNORE_LABEL, is_kubernetes_key};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Keys of one kind in the record: labels or taints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordEntries<K: Ord> {
    /// Keys that gpunode owns, with the values it wrote.
    pub owned: BTreeMap<K, String>,
    /// Values from before a take-over; only for keys in `owned` or `conceded`.
    pub before: BTreeMap<K, String>,
    /// Moments of the latest restores of a key that somebody changed, in seconds since 1970; only for keys in `owned` or
    /// `conceded`.
    pub restored: BTreeMap<K, Vec<i64>>,
    /// Keys that gpunode gave up because somebody kept changing them.
    pub conceded: BTreeMap<K, ConcededKey>,
}

/// A key that gpunode gave up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConcededKey {
    /// Policy that wanted it, as `NAME@GENERATION`: another one tries again.
    pub by: String,
    /// True if somebody else removed the key instead of changing its value.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub gone: bool,
}

impl<K: Ord> Default for RecordEntries<K> {
    fn default() -> Self {
        Self {
            owned: BTreeMap::new(),
            before: BTreeMap::new(),
            restored: BTreeMap::new(),
            conceded: BTreeMap::new(),
        }
    }
}

impl<K: Ord> RecordEntries<K> {
    /// Removes a key from the record.
    pub fn release(&mut self, key: &K) {
        self.owned.remove(key);
        self.before.remove(key);
        self.restored.remove(key);
        self.conceded.remove(key);
    }

    /// Takes the entries of some keys out of the record and returns them.
    pub fn split_off(&mut self, keys: &BTreeSet<K>) -> Self
    where
        K: Clone,
    {
        let mut taken = Self::default();
        for key in keys {
            taken.owned.extend(self.owned.remove_entry(key));
            taken.before.extend(self.before.remove_entry(key));
            taken.restored.extend(self.restored.remove_entry(key));
            taken.conceded.extend(self.conceded.remove_entry(key));
        }
        taken
    }

    /// Puts entries back that were taken out.
    pub fn put_back(&mut self, taken: Self) {
        self.owned.extend(taken.owned);
        self.before.extend(taken.before);
        self.restored.extend(taken.restored);
        self.conceded.extend(taken.conceded);
    }

    /// Sets the value from before a take-over; `None` records that the key was absent.
    pub fn set_before(&mut self, key: &K, value: Option<String>)
    where
        K: Clone,
    {
        match value {
            Some(value) => drop(self.before.insert(key.clone(), value)),
            None => drop(self.before.remove(key)),
        }
    }

    /// Returns true if selectors see the value from before and not the current one. A contested key stays hidden, so that no
    /// policy comes and goes with it.
    pub fn hides(&self, key: &K) -> bool {
        self.owned.contains_key(key) || self.conceded.contains_key(key)
    }

    /// Returns true if both say the same of a key.
    pub fn is_same_for(&self, other: &Self, key: &K) -> bool {
        self.owned.get(key) == other.owned.get(key)
            && self.before.get(key) == other.before.get(key)
            && self.restored.get(key) == other.restored.get(key)
            && self.conceded.get(key) == other.conceded.get(key)
    }

    /// Returns true if the record holds no key of this kind.
    pub fn is_empty(&self) -> bool {
        self.owned.is_empty() && self.conceded.is_empty()
    }

    /// Drops forged content: keys that gpunode never writes, and notes about keys that are not in the record.
    pub fn without_forged(mut self, key_of: impl Fn(&K) -> &str) -> Self {
        self.owned.retain(|key, _| may_own(key_of(key)));
        self.conceded
            .retain(|key, _| may_own(key_of(key)) && !self.owned.contains_key(key));
        self.before
            .retain(|key, _| self.owned.contains_key(key) || self.conceded.contains_key(key));
        self.restored
            .retain(|key, _| self.owned.contains_key(key) || self.conceded.contains_key(key));
        self
    }
}

/// Returns true for keys that gpunode may write.
fn may_own(key: &str) -> bool {
    (!is_kubernetes_key(key) || key.starts_with(AUTOSCALER_STARTUP_PREFIX)) && key != IGNORE_LABEL
}
