//! Decides about each key: set it, remove it, leave it alone or report it. gpunode writes only what it owns.
//!
//! | on the node | in the record | wanted | result |
//! |---|---|---|---|
//! | absent | no | yes | set, owned |
//! | as wanted | no | yes | left to its owner, satisfied |
//! | otherwise | no | yes | left, a conflict |
//! | otherwise | no | with `TakeOver` | set, owned, with the value from before |
//! | as recorded | owned | yes | set where it differs, owned |
//! | as wanted | owned | yes | owned |
//! | otherwise | owned | yes | restored, with the time; after three restores in ten minutes conceded instead |
//! | as wanted | conceded | yes | owned |
//! | absent | conceded to a value | yes | set, owned, as a further restore; later where there were enough |
//! | any | conceded under another policy or generation | yes | set, owned |
//! | otherwise | conceded | yes | left, a conflict |
//! | as recorded | owned | no | removed, or set to the value from before |
//! | otherwise | owned | no | left: somebody changed it and owns it now |
//! | any | conceded | no | left, out of the record |
//! | any | any | policies disagree | left, in the record as before |
//!
//! Only a policy with `TakeOver` keeps a key that was taken over: any other policy gives it back first. Keys that only gpunode
//! uses are its own, in the record or not, and never conceded. Labels and taints follow the same rules, so keys are generic.

use crate::{
    intervention::InterventionCause,
    node::compose::DesiredValue,
    record::entries::{ConcededKey, RecordEntries},
    time::earliest,
};
use jiff::{SignedDuration, Timestamp};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of restores of a key within [`RESTORE_WINDOW_SECONDS`]; gpunode concedes the next change.
pub const MAX_RESTORES: usize = 3;
/// Ten minutes: longer than the resync of common controllers, and than a person edits a node.
const RESTORE_WINDOW_SECONDS: u64 = 600;

/// Decisions about one kind of keys on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyClaims<K: Ord> {
    /// Keys to add or change.
    pub set: BTreeMap<K, String>,
    /// Keys to remove.
    pub remove: BTreeSet<K>,
    /// Record afterwards.
    pub entries: RecordEntries<K>,
    /// Keys whose write undoes what somebody else wrote or removed.
    pub interventions: BTreeMap<K, InterventionCause>,
    /// Keys that keep somebody else's value.
    pub clashes: Vec<KeyClash<K>>,
    /// Policies with a key in the record afterwards.
    pub owners: BTreeSet<String>,
    /// Moment to decide again though nothing changed.
    pub recheck: Option<Timestamp>,
}

/// Key that keeps somebody else's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyClash<K> {
    pub key: K,
    /// Value that policies want.
    pub desired: DesiredValue,
    /// Value that somebody else wants; none if they want the key absent.
    pub actual: Option<String>,
    /// True if gpunode owned the key and gave it up.
    pub conceded: bool,
}

/// Decides about every key but those that are `held`: they stay as they are, and so does their part of the record.
/// `is_always_ours` returns true for keys that only gpunode uses, in the record or not.
pub fn claim<K: Ord + Clone>(
    current: &BTreeMap<K, String>,
    recorded: &RecordEntries<K>,
    desired: &BTreeMap<K, DesiredValue>,
    held: &BTreeSet<K>,
    is_always_ours: impl Fn(&K) -> bool,
    now: Timestamp,
) -> KeyClaims<K> {
    let mut recorded = recorded.clone();
    let kept = recorded.split_off(held);
    for key in released(current, &recorded, desired) {
        recorded.release(&key);
    }
    for (key, actual) in retaken(current, &recorded, desired, now) {
        recorded.set_before(&key, actual);
    }
    let mut claims = KeyClaims {
        set: BTreeMap::new(),
        remove: current
            .keys()
            .filter(|key| is_always_ours(key) && !desired.contains_key(key) && !held.contains(key))
            .cloned()
            .collect(),
        entries: kept,
        interventions: BTreeMap::new(),
        clashes: Vec::new(),
        owners: BTreeSet::new(),
        recheck: None,
    };
    // Decides about each desired key.
    for (key, desired) in desired {
        let actual = current.get(key);
        let restores = recorded.restored.get(key).map(Vec::as_slice).unwrap_or_default();
        let intervention = intervention(key, actual, &recorded, desired).filter(|_| !is_always_ours(key));
        let decision = if is_always_ours(key) {
            KeyDecision::Owned { restores: Vec::new() }
        } else if let Some(conceded) = recorded.conceded.get(key) {
            decide_conceded(actual, conceded, desired, restores, now)
        } else if let Some(value) = recorded.owned.get(key) {
            match recorded.before.get(key) {
                Some(before) if desired.taker.is_none() => KeyDecision::GivenBack { before: before.clone() },
                _ => decide_owned(actual, value, desired, restores, now),
            }
        } else {
            match actual {
                None => KeyDecision::Owned { restores: Vec::new() },
                Some(actual) if *actual == desired.value => KeyDecision::Foreign,
                Some(actual) if desired.taker.is_some() => {
                    recorded.before.insert(key.clone(), actual.clone());
                    KeyDecision::Owned { restores: Vec::new() }
                }
                Some(_) => KeyDecision::Foreign,
            }
        };
        if let (KeyDecision::Owned { .. }, Some(cause)) = (&decision, intervention) {
            claims.interventions.insert(key.clone(), cause);
        }
        claims.apply(key, desired, actual, recorded.before.get(key), decision);
    }
    // Removes or gives back owned keys that nobody wants any more and nobody changed.
    for (key, value) in recorded.owned.iter().filter(|(key, _)| !desired.contains_key(key)) {
        if current.get(key) == Some(value) {
            match recorded.before.get(key) {
                None => drop(claims.remove.insert(key.clone())),
                Some(before) if before == value => {}
                Some(before) => drop(claims.set.insert(key.clone(), before.clone())),
            }
        }
    }
    claims
}

/// Returns the cause of an intervention, if gpunode now writes this key: none where nobody else has a value there, and none wants it
/// gone.
fn intervention<K: Ord>(
    key: &K,
    actual: Option<&String>,
    recorded: &RecordEntries<K>,
    desired: &DesiredValue,
) -> Option<InterventionCause> {
    let own = recorded.owned.get(key);
    let was_ours = own.is_some() || recorded.conceded.contains_key(key);
    let is_as_recorded = actual.is_some() && actual == own;
    if actual == Some(&desired.value) || is_as_recorded || (actual.is_none() && !was_ours) {
        return None;
    }
    Some(if was_ours {
        InterventionCause::Restored
    } else {
        InterventionCause::TakenOver
    })
}

/// Returns the keys of the record that belong to somebody else from now on: changed or conceded keys that no policy wants, or
/// none that may take them over.
pub fn released<K: Ord + Clone>(
    current: &BTreeMap<K, String>,
    recorded: &RecordEntries<K>,
    desired: &BTreeMap<K, DesiredValue>,
) -> Vec<K> {
    let is_wanted = |key: &K| {
        desired
            .get(key)
            .is_some_and(|desired| desired.taker.is_some() || !recorded.before.contains_key(key))
    };
    let changed = recorded
        .owned
        .iter()
        .filter(|(key, value)| current.get(key) != Some(value))
        .map(|(key, _)| key);
    changed
        .chain(recorded.conceded.keys())
        .filter(|key| !is_wanted(key))
        .cloned()
        .collect()
}

/// Returns the conceded keys that are taken over again, with the current value where the record has another one from before.
/// Selectors see that value from now on.
pub fn retaken<K: Ord + Clone>(
    current: &BTreeMap<K, String>,
    recorded: &RecordEntries<K>,
    desired: &BTreeMap<K, DesiredValue>,
    now: Timestamp,
) -> Vec<(K, Option<String>)> {
    let retaken = |(key, conceded): (&K, &ConcededKey)| {
        let desired = desired.get(key).filter(|desired| desired.taker.is_some())?;
        let actual = current.get(key);
        let restores = recorded.restored.get(key).map(Vec::as_slice).unwrap_or_default();
        let is_recorded = actual == Some(&desired.value) || actual == recorded.before.get(key);
        let decision = decide_conceded(actual, conceded, desired, restores, now);
        (!is_recorded && matches!(decision, KeyDecision::Owned { .. })).then(|| (key.clone(), actual.cloned()))
    };
    recorded.conceded.iter().filter_map(retaken).collect()
}

/// Decision about a desired key.
enum KeyDecision {
    /// gpunode owns it, with the desired value.
    Owned { restores: Vec<i64> },
    /// Somebody else owns it.
    Foreign,
    /// Somebody else gets it back.
    GivenBack { before: String },
    /// gpunode gave it up: it keeps somebody else's value.
    Conceded { by: String, restores: Vec<i64>, gone: bool },
}

fn decide_conceded(
    actual: Option<&String>,
    conceded: &ConcededKey,
    desired: &DesiredValue,
    restores: &[i64],
    now: Timestamp,
) -> KeyDecision {
    if conceded.by != desired.winner {
        return KeyDecision::Owned { restores: Vec::new() };
    }
    if actual == Some(&desired.value) {
        return KeyDecision::Owned {
            restores: restores.to_vec(),
        };
    }
    let still = || KeyDecision::Conceded {
        by: conceded.by.clone(),
        restores: restores.to_vec(),
        gone: actual.is_none() && conceded.gone,
    };
    let further = further_restore(restores, now).filter(|_| actual.is_none() && !conceded.gone);
    further.map_or_else(still, |restores| KeyDecision::Owned { restores })
}

fn decide_owned(
    actual: Option<&String>,
    recorded: &String,
    desired: &DesiredValue,
    restores: &[i64],
    now: Timestamp,
) -> KeyDecision {
    if actual == Some(&desired.value) || actual == Some(recorded) {
        return KeyDecision::Owned {
            restores: restores.to_vec(),
        };
    }
    let conceded = || KeyDecision::Conceded {
        by: desired.winner.clone(),
        restores: restores.to_vec(),
        gone: actual.is_none(),
    };
    further_restore(restores, now).map_or_else(conceded, |restores| KeyDecision::Owned { restores })
}

/// Returns the moments of restores with one more; none at the maximum.
fn further_restore(restores: &[i64], now: Timestamp) -> Option<Vec<i64>> {
    // A clock set back, or a forged moment, must not count for ever.
    let now = now.as_second();
    let recent = restores
        .iter()
        .copied()
        .filter(|at| now.abs_diff(*at) < RESTORE_WINDOW_SECONDS);
    let restores: Vec<_> = recent.chain([now]).collect();
    (restores.len() <= MAX_RESTORES).then_some(restores)
}

/// Returns the moment from which the first of these restores no longer counts.
fn next_restore(restores: &[i64]) -> Option<Timestamp> {
    let first = Timestamp::from_second(*restores.iter().min()?).ok()?;
    first
        .checked_add(SignedDuration::from_secs(RESTORE_WINDOW_SECONDS.cast_signed()))
        .ok()
}

impl<K: Ord + Clone> KeyClaims<K> {
    /// Returns claims that change nothing.
    pub fn unchanged(entries: RecordEntries<K>, owners: BTreeSet<String>) -> Self {
        Self {
            set: BTreeMap::new(),
            remove: BTreeSet::new(),
            entries,
            interventions: BTreeMap::new(),
            clashes: Vec::new(),
            owners,
            recheck: None,
        }
    }

    fn apply(
        &mut self,
        key: &K,
        desired: &DesiredValue,
        actual: Option<&String>,
        before: Option<&String>,
        decision: KeyDecision,
    ) {
        let clash = |actual: Option<&String>, conceded| KeyClash {
            key: key.clone(),
            desired: desired.clone(),
            actual: actual.cloned(),
            conceded,
        };
        match decision {
            KeyDecision::Owned { restores } => {
                if actual != Some(&desired.value) {
                    self.set.insert(key.clone(), desired.value.clone());
                }
                self.entries.owned.insert(key.clone(), desired.value.clone());
                self.entries
                    .before
                    .extend(before.map(|before| (key.clone(), before.clone())));
                if !restores.is_empty() {
                    self.entries.restored.insert(key.clone(), restores);
                }
                self.owners.extend(desired.policies.iter().cloned());
            }
            KeyDecision::Foreign => {
                if actual != Some(&desired.value) {
                    self.clashes.push(clash(actual, false));
                }
            }
            KeyDecision::GivenBack { before } => {
                if before != desired.value {
                    self.clashes.push(clash(Some(&before), false));
                }
                if actual != Some(&before) {
                    self.set.insert(key.clone(), before);
                }
            }
            KeyDecision::Conceded { by, restores, gone } => {
                if actual.is_none() && !gone {
                    self.recheck = earliest([self.recheck, next_restore(&restores)]);
                }
                // A key that its other owner removes and sets again keeps its count.
                if !restores.is_empty() {
                    self.entries.restored.insert(key.clone(), restores);
                }
                self.entries.conceded.insert(key.clone(), ConcededKey { by, gone });
                self.owners.extend(desired.policies.iter().cloned());
                self.entries
                    .before
                    .extend(before.map(|before| (key.clone(), before.clone())));
                self.clashes.push(clash(actual, true));
            }
        }
    }

    /// Returns the keys with a write to the node, or to the record, which says `before` now.
    pub fn changes<'a>(&'a self, before: &'a RecordEntries<K>) -> impl Iterator<Item = &'a K> {
        let after = &self.entries;
        let noted = [before, after]
            .into_iter()
            .flat_map(|entries| entries.owned.keys().chain(entries.conceded.keys()));
        self.set
            .keys()
            .chain(&self.remove)
            .chain(noted.filter(|key| !before.is_same_for(after, key)))
    }

    /// Returns the keys once everything is set and removed.
    pub fn applied_to(&self, current: &BTreeMap<K, String>) -> BTreeMap<K, String> {
        let mut after = current.clone();
        after.retain(|key, _| !self.remove.contains(key));
        after.extend(self.set.clone());
        after
    }
}
