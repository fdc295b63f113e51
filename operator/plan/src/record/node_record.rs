//! The annotation and its JSON form.
//!
//! The record is the only memory of what gpunode owns, so an unreadable one is never overwritten: the node is left as it is
//! and reported until a person repairs or removes the annotation. A field that a later version adds and that matters for
//! removal must raise the version; other fields that this version does not know survive its writes.

use crate::{
    record::{
        entries::{ConcededKey, RecordEntries},
        resource_use::ResourceUses,
        unknown_fields::UnknownFields,
    },
    taint::TaintKey,
};
use gpunode_crds::is_kubernetes_key;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Version of the record that this build reads and writes.
const VERSION: u64 = 1;

/// Everything that gpunode wrote on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeRecord {
    /// The labels.
    pub labels: RecordEntries<String>,
    /// The taints.
    pub taints: RecordEntries<TaintKey>,
    /// Policies that have at least one of them there.
    pub policies: BTreeSet<String>,
    /// Extended resources that gpunode served there, until they leave the node's status.
    pub resources: ResourceUses,
    /// Boot of the node in which every promised device became allocatable: no startup taint until the next boot.
    pub started: Option<String>,
    /// Fields that this version does not know.
    pub unknown: UnknownFields,
    /// Policies as `NAME@GENERATION` that no longer select the node by its labels, and since when, in seconds since 1970.
    pub deselected: BTreeMap<String, i64>,
    /// Owned taints as `KEY:NoExecute` that evict pods, and the second since 1970 in which each was added.
    pub evicting: BTreeMap<String, i64>,
}

/// Reason why a record cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The text is not a record.
    #[error("read annotation gpunode.dev/owned: {0}; repair it, or remove it to keep everything on the node for ever")]
    Malformed(#[from] serde_json::Error),
    /// A newer gpunode wrote it.
    #[error("read annotation gpunode.dev/owned: version {0} is not {VERSION}; run the gpunode version that wrote it")]
    Version(u64),
}

#[derive(Serialize, Deserialize)]
struct RecordDocument {
    version: u64,
    #[serde(flatten)]
    owned: LabelsAndTaints<String, ValueDocument>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    policies: BTreeSet<String>,
    #[serde(default, skip_serializing_if = "LabelsAndTaints::is_empty")]
    before: LabelsAndTaints<String, ValueDocument>,
    #[serde(default, skip_serializing_if = "LabelsAndTaints::is_empty")]
    restored: LabelsAndTaints<Vec<i64>, TimesDocument>,
    #[serde(default, skip_serializing_if = "LabelsAndTaints::is_empty")]
    conceded: LabelsAndTaints<ConcededKey, ConcededKey>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    resources: ResourceUses,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    started: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    deselected: BTreeMap<String, i64>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    evicting: BTreeMap<String, i64>,
}

/// One fact per label and per taint.
#[derive(Serialize, Deserialize)]
struct LabelsAndTaints<L, T> {
    #[serde(default = "BTreeMap::new", skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<String, L>,
    #[serde(default = "Vec::new", skip_serializing_if = "Vec::is_empty")]
    taints: Vec<TaintDocument<T>>,
}

#[derive(Serialize, Deserialize)]
struct TaintDocument<T> {
    key: String,
    effect: String,
    #[serde(flatten)]
    about: T,
}

#[derive(Serialize, Deserialize)]
struct ValueDocument {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    value: String,
}

#[derive(Serialize, Deserialize)]
struct TimesDocument {
    times: Vec<i64>,
}

impl<L, T> Default for LabelsAndTaints<L, T> {
    fn default() -> Self {
        Self {
            labels: BTreeMap::new(),
            taints: Vec::new(),
        }
    }
}

impl<L: Clone, T> LabelsAndTaints<L, T> {
    fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.taints.is_empty()
    }

    fn write<V: Clone>(labels: &BTreeMap<String, L>, taints: &BTreeMap<TaintKey, V>, about: fn(V) -> T) -> Self {
        let taints = taints.iter().map(|(id, value)| TaintDocument {
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
struct VersionDocument {
    version: u64,
}

impl NodeRecord {
    /// Reads the annotation; no annotation is an empty record. Drops keys that gpunode never writes: such a record was forged.
    pub fn read(annotation: Option<&str>) -> Result<Self, RecordError> {
        let Some(text) = annotation else {
            return Ok(Self::default());
        };
        let VersionDocument { version } = serde_json::from_str(text)?;
        if version != VERSION {
            return Err(RecordError::Version(version));
        }
        let written: RecordDocument = serde_json::from_str(text)?;
        let unknown = UnknownFields::between(text, &serde_json::to_string(&written)?)?;
        let (labels, taints) = written.owned.read(|it| it.value);
        let (labels_before, taints_before) = written.before.read(|it| it.value);
        let (labels_restored, taints_restored) = written.restored.read(|it| it.times);
        let (labels_conceded, taints_conceded) = written.conceded.read(|it| it);
        let labels = RecordEntries {
            owned: labels,
            before: labels_before,
            restored: labels_restored,
            conceded: labels_conceded,
        };
        let taints = RecordEntries {
            owned: taints,
            before: taints_before,
            restored: taints_restored,
            conceded: taints_conceded,
        };
        Ok(Self {
            labels: labels.without_forged(String::as_str),
            taints: taints.without_forged(|taint| &taint.key),
            policies: written.policies,
            resources: written
                .resources
                .into_iter()
                .filter(|(name, _)| may_serve(name))
                .collect(),
            started: written.started,
            unknown,
            deselected: written.deselected,
            evicting: written.evicting,
        })
    }

    /// Returns the annotation; none if the record is empty.
    pub fn write(&self) -> Option<String> {
        let Self {
            labels,
            taints,
            policies,
            resources,
            started,
            unknown,
            deselected,
            evicting,
        } = self;
        let is_empty = labels.is_empty() && taints.is_empty() && resources.is_empty() && started.is_none();
        if is_empty && !unknown.outlive_entries() {
            return None;
        }
        let written = RecordDocument {
            version: VERSION,
            owned: LabelsAndTaints::write(&labels.owned, &taints.owned, |value| ValueDocument { value }),
            policies: policies.clone(),
            before: LabelsAndTaints::write(&labels.before, &taints.before, |value| ValueDocument { value }),
            restored: LabelsAndTaints::write(&labels.restored, &taints.restored, |times| TimesDocument { times }),
            conceded: LabelsAndTaints::write(&labels.conceded, &taints.conceded, |conceded| conceded),
            resources: resources.clone(),
            started: started.clone(),
            deselected: deselected.clone(),
            evicting: evicting.clone(),
        };
        // Strings in maps and lists always have a JSON form.
        let written = serde_json::to_string(&written).ok()?;
        if unknown.is_empty() {
            Some(written)
        } else {
            unknown.added_to(&written).ok()
        }
    }
}

/// Returns true for resources outside of Kubernetes' own, which have no domain or one of `kubernetes.io`.
fn may_serve(name: &str) -> bool {
    name.contains('/') && !is_kubernetes_key(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = r#"{"version":1,"labels":{"accelerator":"nvidia-tesla-v100"},"taints":[{"key":"dedicated","effect":"NoSchedule","value":"v100"}]}"#;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let record = NodeRecord::read(Some(SAMPLE)).unwrap();
        assert_eq!(record.write().as_deref(), Some(SAMPLE));
        assert_eq!(NodeRecord::read(None).unwrap().write(), None);
    }

    #[test]
    fn what_was_before_restored_and_conceded_is_read_as_it_was_written() {
        let sample = r#"{"version":1,"labels":{"a":"1"},"taints":[{"key":"b","effect":"NoSchedule"}],"policies":["p"],"before":{"labels":{"a":"0"},"taints":[{"key":"b","effect":"NoSchedule","value":"old"}]},"restored":{"labels":{"a":[1,2]},"taints":[{"key":"b","effect":"NoSchedule","times":[3]}]},"conceded":{"labels":{"c":{"by":"p@1"}},"taints":[{"key":"d","effect":"NoExecute","by":"p@1","gone":true}]}}"#;
        assert_eq!(NodeRecord::read(Some(sample)).unwrap().write().as_deref(), Some(sample));
    }

    #[test]
    fn notes_about_keys_that_are_not_in_the_record_are_dropped() {
        let sample = r#"{"version":1,"labels":{"a":"1"},"before":{"labels":{"x":"0"}},"restored":{"labels":{"y":[1]}},"conceded":{"labels":{"a":{"by":"p@1"},"k8s.io/b":{"by":"p@1"}}}}"#;
        let record = NodeRecord::read(Some(sample)).unwrap();
        assert_eq!(record.write().as_deref(), Some(r#"{"version":1,"labels":{"a":"1"}}"#));
    }

    #[test]
    fn forged_entries_of_keys_that_are_not_ours_are_ignored() {
        let record = NodeRecord::read(Some(
            r#"{"version":1,"labels":{"kubernetes.io/os":"linux","gpunode.dev/ignore":"","a":"b"},"taints":[{"key":"node.kubernetes.io/unreachable","effect":"NoExecute"}]}"#,
        ))
        .unwrap();
        assert_eq!(record.write().as_deref(), Some(r#"{"version":1,"labels":{"a":"b"}}"#));
    }

    #[test]
    fn resources_are_read_as_they_were_written_and_those_of_kubernetes_never() {
        let sample = r#"{"version":1,"resources":{"nvidia.com/gpu":null,"nvidia.com/gpu.shared":1700000000}}"#;
        assert_eq!(NodeRecord::read(Some(sample)).unwrap().write().as_deref(), Some(sample));
        let forged = r#"{"version":1,"resources":{"cpu":1,"x.kubernetes.io/y":null}}"#;
        assert_eq!(NodeRecord::read(Some(forged)).unwrap().write(), None);
    }

    #[test]
    fn boot_and_startup_taint_of_the_autoscaler_are_read_as_they_were_written() {
        let sample = r#"{"version":1,"taints":[{"key":"startup-taint.cluster-autoscaler.kubernetes.io/gpu","effect":"NoSchedule"}],"started":"b1"}"#;
        assert_eq!(NodeRecord::read(Some(sample)).unwrap().write().as_deref(), Some(sample));
        assert_eq!(NodeRecord::read(Some(SAMPLE)).unwrap().started, None);
    }

    #[test]
    fn moments_of_taints_that_evict_pods_are_read_as_they_were_written() {
        let sample = r#"{"version":1,"taints":[{"key":"a","effect":"NoExecute"}],"policies":["p"],"evicting":{"a:NoExecute":1700000000}}"#;
        assert_eq!(NodeRecord::read(Some(sample)).unwrap().write().as_deref(), Some(sample));
    }

    #[test]
    fn newer_versions_are_refused() {
        assert_eq!(
            NodeRecord::read(Some(r#"{"version":2,"labels":[]}"#))
                .unwrap_err()
                .to_string(),
            "read annotation gpunode.dev/owned: version 2 is not 1; run the gpunode version that wrote it"
        );
    }

    /// Reads a record, changes it and returns what is written, as JSON.
    fn changed(text: &str, change: impl Fn(&mut NodeRecord)) -> serde_json::Value {
        let mut record = NodeRecord::read(Some(text)).unwrap();
        change(&mut record);
        serde_json::from_str(&record.write().unwrap()).unwrap()
    }

    #[test]
    fn unknown_fields_survive_a_write() {
        let text = r#"{"version":1,"colour":{"red":[1]},"labels":{"a":"1"},"taints":[{"key":"t","effect":"NoSchedule","since":3}],
            "before":{"annotations":{"x":"y"}},"conceded":{"labels":{"c":{"by":"p@1","since":4}}}}"#;
        let expected = serde_json::json!({"version": 1, "colour": {"red": [1]}, "labels": {"a": "2", "b": "3"},
            "taints": [{"key": "t", "effect": "NoSchedule", "since": 3}], "before": {"annotations": {"x": "y"}},
            "conceded": {"labels": {"c": {"by": "p@1", "since": 4}}}});
        let written = changed(text, |record| {
            record.labels.owned.insert("a".to_owned(), "2".to_owned());
            record.labels.owned.insert("b".to_owned(), "3".to_owned());
        });
        assert_eq!(written, expected);
    }

    #[test]
    fn unknown_fields_of_an_entry_go_with_it_and_those_of_the_record_stay() {
        let text = r#"{"version":1,"colour":"red","taints":[{"key":"t","effect":"NoSchedule","since":3}],
            "conceded":{"labels":{"c":{"by":"p@1","since":4}}}}"#;
        let written = changed(text, |record| {
            record.taints.owned.clear();
            record.labels.conceded.clear();
        });
        assert_eq!(written, serde_json::json!({"version": 1, "colour": "red"}));
    }

    #[test]
    fn unknown_fields_of_forged_keys_do_not_survive() {
        let text = r#"{"version":1,"labels":{"a":"b"},"taints":[{"key":"node.kubernetes.io/x","effect":"NoExecute","since":3}],
            "conceded":{"labels":{"k8s.io/b":{"by":"p@1","since":4}}}}"#;
        assert_eq!(
            changed(text, |_| {}),
            serde_json::json!({"version": 1, "labels": {"a": "b"}})
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
                matches!(NodeRecord::read(Some(text)), Err(RecordError::Malformed(_))),
                "{text}"
            );
        }
    }
}
