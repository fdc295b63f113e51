//! The heart of "only what is ours": what becomes of each key, from the node, the record and what is wanted.
//!
//! | on the node | in the record | wanted | then |
//! |---|---|---|---|
//! | absent | any | yes | set, owned |
//! | as wanted | no | yes | left, somebody else's, satisfied |
//! | otherwise | no | yes | left, a conflict |
//! | any | yes | yes | set where it differs, owned |
//! | as recorded | yes | no | removed |
//! | otherwise | yes | no | left: somebody changed it, so it is theirs now |
//!
//! Labels and taints behave alike, so keys are generic.

use crate::compose::Wanted;
use std::collections::{BTreeMap, BTreeSet};

/// What becomes of one kind of keys on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claims<K: Ord> {
    /// Keys to add or change.
    pub set: BTreeMap<K, String>,
    /// Keys to remove.
    pub remove: BTreeSet<K>,
    /// What is owned afterwards.
    pub owned: BTreeMap<K, String>,
    /// Keys that stay as somebody else wants them: wanted, actual, policies.
    pub conflicts: Vec<(K, Wanted, String)>,
}

/// Decides about every key. `is_always_ours` names keys that only gpunode uses, in the record or not.
pub fn claim<K: Ord + Clone>(
    current: &BTreeMap<K, String>,
    owned: &BTreeMap<K, String>,
    wanted: &BTreeMap<K, Wanted>,
    is_always_ours: impl Fn(&K) -> bool,
) -> Claims<K> {
    let mut claims = Claims {
        set: BTreeMap::new(),
        remove: current.keys().filter(|key| is_always_ours(key) && !wanted.contains_key(key)).cloned().collect(),
        owned: BTreeMap::new(),
        conflicts: Vec::new(),
    };
    for (key, wanted) in wanted {
        let actual = current.get(key);
        if actual.is_none() || owned.contains_key(key) || is_always_ours(key) {
            if actual != Some(&wanted.value) {
                claims.set.insert(key.clone(), wanted.value.clone());
            }
            claims.owned.insert(key.clone(), wanted.value.clone());
        } else if let Some(actual) = actual.filter(|actual| **actual != wanted.value) {
            claims.conflicts.push((key.clone(), wanted.clone(), actual.clone()));
        }
    }
    let unwanted = owned.iter().filter(|(key, _)| !wanted.contains_key(key));
    claims.remove.extend(unwanted.filter(|(key, value)| current.get(key) == Some(value)).map(|(key, _)| key.clone()));
    claims
}

impl<K: Ord + Clone> Claims<K> {
    /// The keys about which something is to be written, on the node or in the record, which says `before`.
    pub fn changes<'a>(&'a self, before: &'a BTreeMap<K, String>) -> impl Iterator<Item = &'a K> {
        let recorded = self.owned.iter().filter(|(key, value)| before.get(*key) != Some(value)).map(|(key, _)| key);
        let forgotten = before.keys().filter(|key| !self.owned.contains_key(*key));
        self.set.keys().chain(&self.remove).chain(recorded).chain(forgotten)
    }

    /// The keys once everything is set and removed.
    pub fn applied_to(&self, current: &BTreeMap<K, String>) -> BTreeMap<K, String> {
        let mut after = current.clone();
        after.retain(|key, _| !self.remove.contains(key));
        after.extend(self.set.clone());
        after
    }
}

/// Keys of the record that nobody wants any more and that somebody changed: from here on they are somebody else's.
pub fn lost<'a, K: Ord>(
    current: &BTreeMap<K, String>,
    owned: &'a BTreeMap<K, String>,
    wanted: &BTreeMap<K, Wanted>,
) -> Vec<&'a K> {
    let unwanted = owned.iter().filter(|(key, _)| !wanted.contains_key(key));
    unwanted
        .filter(|(key, value)| current.get(key).is_some_and(|actual| actual != *value))
        .map(|(key, _)| key)
        .collect()
}
