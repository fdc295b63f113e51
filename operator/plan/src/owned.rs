//! The annotation `gpunode.dev/owned`: exactly what gpunode wrote on a node, with the values written, so that exactly that
//! can be taken back.
//!
//! The record is the only memory of what is ours, so one that cannot be read is never overwritten: the node is left as it
//! is and reported until a person mends or removes the annotation. A field that a later version adds and that matters for
//! the removal must raise the version; other fields are ignored.

use crate::facts::TaintKey;
use gpunode_crds::{IGNORE_LABEL, is_kubernetes_key};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of the record that this build reads and writes.
const VERSION: u64 = 1;

/// What gpunode wrote on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Values by label key.
    pub labels: BTreeMap<String, String>,
    /// Values by taint.
    pub taints: BTreeMap<TaintKey, String>,
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
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    taints: Vec<WrittenTaint>,
}

#[derive(Serialize, Deserialize)]
struct WrittenTaint {
    key: String,
    effect: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    value: String,
}

#[derive(Deserialize)]
struct Version {
    version: u64,
}

impl Record {
    /// Reads the annotation; no annotation is an empty record. Entries of keys that gpunode never writes are dropped: a
    /// record with such an entry was forged.
    pub fn read(annotation: Option<&str>) -> Result<Self, RecordError> {
        let Some(text) = annotation else { return Ok(Self::default()) };
        let Version { version } = serde_json::from_str(text)?;
        if version != VERSION {
            return Err(RecordError::Version(version));
        }
        let written: Written = serde_json::from_str(text)?;
        Ok(Self {
            labels: written.labels.into_iter().filter(|(key, _)| may_own(key)).collect(),
            taints: written
                .taints
                .into_iter()
                .filter(|taint| may_own(&taint.key))
                .map(|taint| (TaintKey { key: taint.key, effect: taint.effect }, taint.value))
                .collect(),
        })
    }

    /// The annotation; none where nothing is owned.
    pub fn write(&self) -> Option<String> {
        if self.labels.is_empty() && self.taints.is_empty() {
            return None;
        }
        let taints = self.taints.iter().map(|(id, value)| WrittenTaint {
            key: id.key.clone(),
            effect: id.effect.clone(),
            value: value.clone(),
        });
        let written = Written { version: VERSION, labels: self.labels.clone(), taints: taints.collect() };
        // Strings in maps and lists always have a JSON form.
        serde_json::to_string(&written).ok()
    }
}

fn may_own(key: &str) -> bool {
    !is_kubernetes_key(key) && key != IGNORE_LABEL
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
    fn forged_entries_of_keys_that_are_not_ours_are_ignored() {
        let record = Record::read(Some(
            r#"{"version":1,"labels":{"kubernetes.io/os":"linux","gpunode.dev/ignore":"","a":"b"},"taints":[{"key":"node.kubernetes.io/unreachable","effect":"NoExecute"}]}"#,
        ))
        .unwrap();
        assert_eq!(record.write().as_deref(), Some(r#"{"version":1,"labels":{"a":"b"}}"#));
    }

    #[test]
    fn unknown_fields_are_ignored_and_newer_versions_refused() {
        assert!(Record::read(Some(r#"{"version":1,"colour":"red"}"#)).is_ok());
        assert_eq!(
            Record::read(Some(r#"{"version":2,"labels":[]}"#)).unwrap_err().to_string(),
            "read annotation gpunode.dev/owned: version 2 is not 1; run the gpunode version that wrote it"
        );
    }

    #[test]
    fn anything_else_is_an_error_and_no_crash() {
        for text in ["", "{}", "[]", "null", "{\"version\":\"1\"}", "{\"version\":1,\"labels\":3}", "{\"version\":1"] {
            assert!(matches!(Record::read(Some(text)), Err(RecordError::Malformed(_))), "{text}");
        }
    }
}
