//! The heart of "only what is ours": what becomes of each key, from the node, the record and what is wanted.
//!
//! | on the node | in the record | wanted | then |
//! |---|---|---|---|
//! | absent | no | yes | set, owned |
//! | as wanted | no | yes | left, somebody else's, satisfied |
//! | otherwise | no | yes | left, a conflict |
//! | otherwise | no | with `TakeOver` | set, owned, with what was there before |
//! | as recorded | owned | yes | set where it differs, owned |
//! | as wanted | owned | yes | owned |
//! | otherwise | owned | yes | restored, with the time; after three restores in ten minutes conceded instead |
//! | as wanted | conceded | yes | owned |
//! | absent | conceded to a value | yes | set, owned, as a further restore; later where there were enough |
//! | any | conceded under another policy or generation | yes | set, owned |
//! | otherwise | conceded | yes | left, a conflict |
//! | as recorded | owned | no | removed, or what was there before |
//! | otherwise | owned | no | left: somebody changed it, so it is theirs now |
//! | any | conceded | no | left, out of the record |
//!
//! What was taken over is wanted only by a policy that says `TakeOver`: for any other it is given back first. Keys that only
//! gpunode uses are ours in the record or not, and never conceded. Labels and taints behave alike, so keys are generic.

use crate::{
    node::compose::Wanted,
    record::{Conceded, Entries},
};
use jiff::{SignedDuration, Timestamp};
use std::collections::{BTreeMap, BTreeSet};

/// So many restores of a key within [`RESTORE_WINDOW_SECONDS`] are enough: the next change is conceded.
pub const MAX_RESTORES: usize = 3;
/// Ten minutes: longer than the resync of controllers that people write by hand, and than anybody edits a node.
const RESTORE_WINDOW_SECONDS: u64 = 600;

/// What becomes of one kind of keys on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claims<K: Ord> {
    /// Keys to add or change.
    pub set: BTreeMap<K, String>,
    /// Keys to remove.
    pub remove: BTreeSet<K>,
    /// What the record says afterwards.
    pub entries: Entries<K>,
    /// Keys that stay as somebody else wants them.
    pub clashes: Vec<Clash<K>>,
    /// The policies for which there is a key in the record afterwards.
    pub owners: BTreeSet<String>,
    /// When to decide again though nothing changed.
    pub recheck: Option<Timestamp>,
}

/// A key that stays as somebody else wants it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clash<K> {
    /// The key.
    pub key: K,
    /// What policies want.
    pub wanted: Wanted,
    /// What somebody else wants; none where that is the absence of the key.
    pub actual: Option<String>,
    /// Whether it was ours and was given up.
    pub conceded: bool,
}

/// Decides about every key. `is_always_ours` names keys that only gpunode uses, in the record or not.
pub fn claim<K: Ord + Clone>(
    current: &BTreeMap<K, String>,
    recorded: &Entries<K>,
    wanted: &BTreeMap<K, Wanted>,
    is_always_ours: impl Fn(&K) -> bool,
    now: Timestamp,
) -> Claims<K> {
    let mut recorded = recorded.clone();
    for key in released(current, &recorded, wanted) {
        recorded.release(&key);
    }
    for (key, actual) in retaken(current, &recorded, wanted, now) {
        recorded.was_before(&key, actual);
    }
    let mut claims = Claims {
        set: BTreeMap::new(),
        remove: current
            .keys()
            .filter(|key| is_always_ours(key) && !wanted.contains_key(key))
            .cloned()
            .collect(),
        entries: Entries::default(),
        clashes: Vec::new(),
        owners: BTreeSet::new(),
        recheck: None,
    };
    for (key, wanted) in wanted {
        let actual = current.get(key);
        let restores = recorded.restored.get(key).map(Vec::as_slice).unwrap_or_default();
        let fate = if is_always_ours(key) {
            Fate::Owned { restores: Vec::new() }
        } else if let Some(conceded) = recorded.conceded.get(key) {
            fate_of_conceded(actual, conceded, wanted, restores, now)
        } else if let Some(value) = recorded.owned.get(key) {
            match recorded.before.get(key) {
                Some(before) if !wanted.take_over => Fate::GivenBack { before: before.clone() },
                _ => fate_of_owned(actual, value, wanted, restores, now),
            }
        } else {
            match actual {
                None => Fate::Owned { restores: Vec::new() },
                Some(actual) if *actual == wanted.value => Fate::Foreign,
                Some(actual) if wanted.take_over => {
                    recorded.before.insert(key.clone(), actual.clone());
                    Fate::Owned { restores: Vec::new() }
                }
                Some(_) => Fate::Foreign,
            }
        };
        claims.carry_out(key, wanted, actual, recorded.before.get(key), fate);
    }
    for (key, value) in recorded.owned.iter().filter(|(key, _)| !wanted.contains_key(key)) {
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

/// Keys of the record that are somebody else's from here on: nobody wants them any more, or nobody who may take them over,
/// and they were changed or conceded.
pub fn released<K: Ord + Clone>(
    current: &BTreeMap<K, String>,
    recorded: &Entries<K>,
    wanted: &BTreeMap<K, Wanted>,
) -> Vec<K> {
    let is_wanted = |key: &K| {
        wanted
            .get(key)
            .is_some_and(|wanted| wanted.take_over || !recorded.before.contains_key(key))
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

/// Keys that are taken over again from those to whom they were conceded, with what these wanted last where the record does not
/// have that as what was there before. Selectors see it from here on.
pub fn retaken<K: Ord + Clone>(
    current: &BTreeMap<K, String>,
    recorded: &Entries<K>,
    wanted: &BTreeMap<K, Wanted>,
    now: Timestamp,
) -> Vec<(K, Option<String>)> {
    let retaken = |(key, conceded): (&K, &Conceded)| {
        let wanted = wanted.get(key).filter(|wanted| wanted.take_over)?;
        let actual = current.get(key);
        let restores = recorded.restored.get(key).map(Vec::as_slice).unwrap_or_default();
        let is_told = actual == Some(&wanted.value) || actual == recorded.before.get(key);
        let fate = fate_of_conceded(actual, conceded, wanted, restores, now);
        (!is_told && matches!(fate, Fate::Owned { .. })).then(|| (key.clone(), actual.cloned()))
    };
    recorded.conceded.iter().filter_map(retaken).collect()
}

/// What becomes of a key that is wanted.
enum Fate {
    /// It is ours, with the value wanted.
    Owned { restores: Vec<i64> },
    /// It is somebody else's.
    Foreign,
    /// It is somebody else's again.
    GivenBack { before: String },
    /// It was ours, and stays as somebody else wants it.
    Conceded { by: String, restores: Vec<i64>, gone: bool },
}

fn fate_of_conceded(
    actual: Option<&String>,
    conceded: &Conceded,
    wanted: &Wanted,
    restores: &[i64],
    now: Timestamp,
) -> Fate {
    if conceded.by != wanted.winner {
        return Fate::Owned { restores: Vec::new() };
    }
    if actual == Some(&wanted.value) {
        return Fate::Owned {
            restores: restores.to_vec(),
        };
    }
    let still = || Fate::Conceded {
        by: conceded.by.clone(),
        restores: restores.to_vec(),
        gone: actual.is_none() && conceded.gone,
    };
    let further = further_restore(restores, now).filter(|_| actual.is_none() && !conceded.gone);
    further.map_or_else(still, |restores| Fate::Owned { restores })
}

fn fate_of_owned(
    actual: Option<&String>,
    recorded: &String,
    wanted: &Wanted,
    restores: &[i64],
    now: Timestamp,
) -> Fate {
    if actual == Some(&wanted.value) || actual == Some(recorded) {
        return Fate::Owned {
            restores: restores.to_vec(),
        };
    }
    let conceded = || Fate::Conceded {
        by: wanted.winner.clone(),
        restores: restores.to_vec(),
        gone: actual.is_none(),
    };
    further_restore(restores, now).map_or_else(conceded, |restores| Fate::Owned { restores })
}

/// The times of restores with one more; nothing where there were enough.
fn further_restore(restores: &[i64], now: Timestamp) -> Option<Vec<i64>> {
    // A clock that was set back, or a forged time, must not count for ever.
    let now = now.as_second();
    let recent = restores
        .iter()
        .copied()
        .filter(|at| now.abs_diff(*at) < RESTORE_WINDOW_SECONDS);
    let restores: Vec<_> = recent.chain([now]).collect();
    (restores.len() <= MAX_RESTORES).then_some(restores)
}

/// When the first of these restores counts no more.
fn next_restore(restores: &[i64]) -> Option<Timestamp> {
    let first = Timestamp::from_second(*restores.iter().min()?).ok()?;
    first
        .checked_add(SignedDuration::from_secs(RESTORE_WINDOW_SECONDS.cast_signed()))
        .ok()
}

impl<K: Ord + Clone> Claims<K> {
    fn carry_out(&mut self, key: &K, wanted: &Wanted, actual: Option<&String>, before: Option<&String>, fate: Fate) {
        let clash = |actual: Option<&String>, conceded| Clash {
            key: key.clone(),
            wanted: wanted.clone(),
            actual: actual.cloned(),
            conceded,
        };
        match fate {
            Fate::Owned { restores } => {
                if actual != Some(&wanted.value) {
                    self.set.insert(key.clone(), wanted.value.clone());
                }
                self.entries.owned.insert(key.clone(), wanted.value.clone());
                self.entries
                    .before
                    .extend(before.map(|before| (key.clone(), before.clone())));
                if !restores.is_empty() {
                    self.entries.restored.insert(key.clone(), restores);
                }
                self.owners.extend(wanted.policies.iter().cloned());
            }
            Fate::Foreign => {
                if actual != Some(&wanted.value) {
                    self.clashes.push(clash(actual, false));
                }
            }
            Fate::GivenBack { before } => {
                if before != wanted.value {
                    self.clashes.push(clash(Some(&before), false));
                }
                if actual != Some(&before) {
                    self.set.insert(key.clone(), before);
                }
            }
            Fate::Conceded { by, restores, gone } => {
                if actual.is_none() && !gone {
                    self.recheck = [self.recheck, next_restore(&restores)].into_iter().flatten().min();
                }
                // Whoever lets go and comes back does not begin anew.
                if !restores.is_empty() {
                    self.entries.restored.insert(key.clone(), restores);
                }
                self.entries.conceded.insert(key.clone(), Conceded { by, gone });
                self.owners.extend(wanted.policies.iter().cloned());
                self.entries
                    .before
                    .extend(before.map(|before| (key.clone(), before.clone())));
                self.clashes.push(clash(actual, true));
            }
        }
    }

    /// The keys about which something is to be written, on the node or in the record, which says `before`.
    pub fn changes<'a>(&'a self, before: &'a Entries<K>) -> impl Iterator<Item = &'a K> {
        let after = &self.entries;
        let noted = [before, after]
            .into_iter()
            .flat_map(|entries| entries.owned.keys().chain(entries.conceded.keys()));
        self.set
            .keys()
            .chain(&self.remove)
            .chain(noted.filter(|key| !before.same_about(after, key)))
    }

    /// The keys once everything is set and removed.
    pub fn applied_to(&self, current: &BTreeMap<K, String>) -> BTreeMap<K, String> {
        let mut after = current.clone();
        after.retain(|key, _| !self.remove.contains(key));
        after.extend(self.set.clone());
        after
    }
}
