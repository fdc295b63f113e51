//! The annotation `gpunode.dev/owned`: exactly what gpunode wrote on a node, with the values written, so that exactly that
//! can be taken back.
//!
//! The record is the only memory of what is ours, so one that cannot be read is never overwritten: the node is left as it
//! is and reported until a person mends or removes the annotation. A field that a later version adds and that matters for
//! the removal must raise the version; other fields are ignored.

use crate::{input::facts::TaintKey, node::stale_resources::ResourceUses};
use gpunode_crds::{AUTOSCALER_STARTUP_PREFIX, IGNORE_LABEL, is_kubernetes_key};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Version of the record that this build reads and writes.
const VERSION: u64 = 1;

/// What gpunode wrote on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// The labels.
    pub labels: Entries<String>,
    /// The taints.
    pub taints: Entries<TaintKey>,
    /// The policies for which at least one of them is there.
    pub policies: BTreeSet<String>,
    /// Extended resources that were served there, until they have left the node's status.
    pub resources: ResourceUses,
    /// The boot of the node for which everything that was promised has been allocatable: no startup taint is wanted until the
    /// next one.
    pub started: Option<String>,
}

/// What the record says of one kind of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entries<K: Ord> {
    /// What is ours, with the values written.
    pub owned: BTreeMap<K, String>,
    /// What was there before it was taken over; for keys in `owned` or `conceded` alone.
    pub before: BTreeMap<K, String>,
    /// When a key that somebody changed was restored last, in seconds since 1970; for keys in `owned` and
    /// `conceded`.
    pub restored: BTreeMap<K, Vec<i64>>,
    /// What was ours and was given up, since somebody kept changing it.
    pub conceded: BTreeMap<K, Conceded>,
}

/// A key that was given up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conceded {
    /// The policy that wanted it, as `NAME@GENERATION`: another one tries again.
    pub by: String,
    /// Whether somebody else wants no such key, and not another value.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub gone: bool,
}

impl<K: Ord> Default for Entries<K> {
    fn default() -> Self {
        Self {
            owned: BTreeMap::new(),
            before: BTreeMap::new(),
            restored: BTreeMap::new(),
            conceded: BTreeMap::new(),
        }
    }
}

impl<K: Ord> Entries<K> {
    /// Forgets a key.
    pub fn release(&mut self, key: &K) {
        self.owned.remove(key);
        self.before.remove(key);
        self.restored.remove(key);
        self.conceded.remove(key);
    }

    /// Remembers what was there before a key, absence included.
    pub fn was_before(&mut self, key: &K, value: Option<String>)
    where
        K: Clone,
    {
        match value {
            Some(value) => drop(self.before.insert(key.clone(), value)),
            None => drop(self.before.remove(key)),
        }
    }

    /// Whether selectors are to see what was there before a key, and not what is there. A key that is fought over stays as
    /// hidden as it was when it was ours, so that no policy comes and goes with it.
    pub fn hides(&self, key: &K) -> bool {
        self.owned.contains_key(key) || self.conceded.contains_key(key)
    }

    /// Whether both say the same of a key.
    pub fn same_about(&self, other: &Self, key: &K) -> bool {
        self.owned.get(key) == other.owned.get(key)
            && self.before.get(key) == other.before.get(key)
            && self.restored.get(key) == other.restored.get(key)
            && self.conceded.get(key) == other.conceded.get(key)
    }

    fn is_empty(&self) -> bool {
        self.owned.is_empty() && self.conceded.is_empty()
    }

    /// Drops what was forged: keys that gpunode never writes, and notes about keys that are not in the record.
    fn sane(mut self, key_of: impl Fn(&K) -> &str) -> Self {
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

/// Why a record was not understood.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The text is not such a record.
    #[error("read annotation gpunode.dev/owned: {0}; mend it, or remove it to keep what is on the node for ever")]
    Malformed(#[from] serde_json::Error),
    /// A newer gpunode wrote it.
    #[error("read annotation gpunode.dev/owned: version {0} is not {VERSION}; run the gpunode version that wrote it")]
    Version(u64),
}

#[derive(Serialize, Deserialize)]
struct Written {
    version: u64,
    #[serde(flatten)]
    owned: Kinds<String, WrittenValue>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    policies: BTreeSet<String>,
    #[serde(default, skip_serializing_if = "Kinds::is_empty")]
    before: Kinds<String, WrittenValue>,
    #[serde(default, skip_serializing_if = "Kinds::is_empty")]
    restored: Kinds<Vec<i64>, WrittenTimes>,
    #[serde(default, skip_serializing_if = "Kinds::is_empty")]
    conceded: Kinds<Conceded, Conceded>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    resources: ResourceUses,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    started: Option<String>,
}

/// Something about labels and about taints.
#[derive(Serialize, Deserialize)]
struct Kinds<L, T> {
    #[serde(default = "BTreeMap::new", skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<String, L>,
    #[serde(default = "Vec::new", skip_serializing_if = "Vec::is_empty")]
    taints: Vec<WrittenTaint<T>>,
}

#[derive(Serialize, Deserialize)]
struct WrittenTaint<T> {
    key: String,
    effect: String,
    #[serde(flatten)]
    about: T,
}

#[derive(Serialize, Deserialize)]
struct WrittenValue {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    value: String,
}

#[derive(Serialize, Deserialize)]
struct WrittenTimes {
    times: Vec<i64>,
}

impl<L, T> Default for Kinds<L, T> {
    fn default() -> Self {
        Self {
            labels: BTreeMap::new(),
            taints: Vec::new(),
        }
    }
}

impl<L: Clone, T> Kinds<L, T> {
    fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.taints.is_empty()
    }

    fn write<V: Clone>(labels: &BTreeMap<String, L>, taints: &BTreeMap<TaintKey, V>, about: fn(V) -> T) -> Self {
        let taints = taints.iter().map(|(id, value)| WrittenTaint {
            key: id.key.clone(),
            effect: id.effect.clone(),
            about: about(value.clone()),
        });
        Self {
            labels: labels.clone(),
            taints: taints.collect(),
        }
    }

    fn read<V>(self, of: fn(T) -> V) -> (BTreeMap<String, L>, BTreeMap<TaintKey, V>) {
        let taints = self.taints.into_iter();
        let taints = taints.map(|it| {
            (
                TaintKey {
                    key: it.key,
                    effect: it.effect,
                },
                of(it.about),
            )
        });
        (self.labels, taints.collect())
    }
}

#[derive(Deserialize)]
struct Version {
    version: u64,
}

impl Record {
    /// Reads the annotation; no annotation is an empty record. Entries of keys that gpunode never writes are dropped: a
    /// record with such an entry was forged.
    pub fn read(annotation: Option<&str>) -> Result<Self, RecordError> {
        let Some(text) = annotation else {
            return Ok(Self::default());
        };
        let Version { version } = serde_json::from_str(text)?;
        if version != VERSION {
            return Err(RecordError::Version(version));
        }
        let written: Written = serde_json::from_str(text)?;
        let (labels, taints) = written.owned.read(|it| it.value);
        let (labels_before, taints_before) = written.before.read(|it| it.value);
        let (labels_restored, taints_restored) = written.restored.read(|it| it.times);
        let (labels_conceded, taints_conceded) = written.conceded.read(|it| it);
        let labels = Entries {
            owned: labels,
            before: labels_before,
            restored: labels_restored,
            conceded: labels_conceded,
        };
        let taints = Entries {
            owned: taints,
            before: taints_before,
            restored: taints_restored,
            conceded: taints_conceded,
        };
        Ok(Self {
            labels: labels.sane(String::as_str),
            taints: taints.sane(|taint| &taint.key),
            policies: written.policies,
            resources: written
                .resources
                .into_iter()
                .filter(|(name, _)| may_serve(name))
                .collect(),
            started: written.started,
        })
    }

    /// The annotation; none where there is nothing to remember.
    pub fn write(&self) -> Option<String> {
        let Self {
            labels,
            taints,
            policies,
            resources,
            started,
        } = self;
        if labels.is_empty() && taints.is_empty() && resources.is_empty() && started.is_none() {
            return None;
        }
        let written = Written {
            version: VERSION,
            owned: Kinds::write(&labels.owned, &taints.owned, |value| WrittenValue { value }),
            policies: policies.clone(),
            before: Kinds::write(&labels.before, &taints.before, |value| WrittenValue { value }),
            restored: Kinds::write(&labels.restored, &taints.restored, |times| WrittenTimes { times }),
            conceded: Kinds::write(&labels.conceded, &taints.conceded, |conceded| conceded),
            resources: resources.clone(),
            started: started.clone(),
        };
        // Strings in maps and lists always have a JSON form.
        serde_json::to_string(&written).ok()
    }
}

fn may_own(key: &str) -> bool {
    (!is_kubernetes_key(key) || key.starts_with(AUTOSCALER_STARTUP_PREFIX)) && key != IGNORE_LABEL
}

/// Kubernetes' own resources have no domain, or one of its own.
fn may_serve(name: &str) -> bool {
    name.contains('/') && !is_kubernetes_key(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = r#"{"version":1,"labels":{"accelerator":"nvidia-tesla-v100"},"taints":[{"key":"dedicated","effect":"NoSchedule","value":"v100"}]}"#;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let record = Record::read(Some(SAMPLE)).unwrap();
        assert_eq!(record.write().as_deref(), Some(SAMPLE));
        assert_eq!(Record::read(None).unwrap().write(), None);
    }

    #[test]
    fn what_was_before_restored_and_conceded_is_read_as_it_was_written() {
        let sample = r#"{"version":1,"labels":{"a":"1"},"taints":[{"key":"b","effect":"NoSchedule"}],"policies":["p"],"before":{"labels":{"a":"0"},"taints":[{"key":"b","effect":"NoSchedule","value":"old"}]},"restored":{"labels":{"a":[1,2]},"taints":[{"key":"b","effect":"NoSchedule","times":[3]}]},"conceded":{"labels":{"c":{"by":"p@1"}},"taints":[{"key":"d","effect":"NoExecute","by":"p@1","gone":true}]}}"#;
        assert_eq!(Record::read(Some(sample)).unwrap().write().as_deref(), Some(sample));
    }

    #[test]
    fn notes_about_keys_that_are_not_in_the_record_are_dropped() {
        let sample = r#"{"version":1,"labels":{"a":"1"},"before":{"labels":{"x":"0"}},"restored":{"labels":{"y":[1]}},"conceded":{"labels":{"a":{"by":"p@1"},"k8s.io/b":{"by":"p@1"}}}}"#;
        let record = Record::read(Some(sample)).unwrap();
        assert_eq!(record.write().as_deref(), Some(r#"{"version":1,"labels":{"a":"1"}}"#));
    }

    #[test]
    fn forged_entries_of_keys_that_are_not_ours_are_ignored() {
        let record = Record::read(Some(
            r#"{"version":1,"labels":{"kubernetes.io/os":"linux","gpunode.dev/ignore":"","a":"b"},"taints":[{"key":"node.kubernetes.io/unreachable","effect":"NoExecute"}]}"#,
        ))
        .unwrap();
        assert_eq!(record.write().as_deref(), Some(r#"{"version":1,"labels":{"a":"b"}}"#));
    }

    #[test]
    fn resources_are_read_as_they_were_written_and_those_of_kubernetes_never() {
        let sample = r#"{"version":1,"resources":{"nvidia.com/gpu":null,"nvidia.com/gpu.shared":1700000000}}"#;
        assert_eq!(Record::read(Some(sample)).unwrap().write().as_deref(), Some(sample));
        let forged = r#"{"version":1,"resources":{"cpu":1,"x.kubernetes.io/y":null}}"#;
        assert_eq!(Record::read(Some(forged)).unwrap().write(), None);
    }

    #[test]
    fn boot_and_startup_taint_of_the_autoscaler_are_read_as_they_were_written() {
        let sample = r#"{"version":1,"taints":[{"key":"startup-taint.cluster-autoscaler.kubernetes.io/gpu","effect":"NoSchedule"}],"started":"b1"}"#;
        assert_eq!(Record::read(Some(sample)).unwrap().write().as_deref(), Some(sample));
        assert_eq!(Record::read(Some(SAMPLE)).unwrap().started, None);
    }

    #[test]
    fn unknown_fields_are_ignored_and_newer_versions_refused() {
        assert!(Record::read(Some(r#"{"version":1,"colour":"red"}"#)).is_ok());
        assert_eq!(
            Record::read(Some(r#"{"version":2,"labels":[]}"#))
                .unwrap_err()
                .to_string(),
            "read annotation gpunode.dev/owned: version 2 is not 1; run the gpunode version that wrote it"
        );
    }

    #[test]
    fn anything_else_is_an_error_and_no_crash() {
        for text in [
            "",
            "{}",
            "[]",
            "null",
            "{\"version\":\"1\"}",
            "{\"version\":1,\"labels\":3}",
            "{\"version\":1",
        ] {
            assert!(
                matches!(Record::read(Some(text)), Err(RecordError::Malformed(_))),
                "{text}"
            );
        }
    }
}
