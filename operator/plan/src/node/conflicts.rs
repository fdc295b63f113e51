//! A key that a policy wants and somebody else owns.

use crate::{
    node::claim::{KeyClash, MAX_RESTORES},
    taint::TaintKey,
};
use std::fmt;

/// Key of a label or a taint.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConflictKey {
    /// A label.
    Label(String),
    /// A taint.
    Taint(TaintKey),
}

/// Key that somebody else owns, with another value than a policy wants. It keeps that value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyConflict {
    /// The label or taint.
    pub key: ConflictKey,
    /// Value that policies want.
    pub desired: String,
    /// Value that somebody else wants; none if they want the key absent.
    pub actual: Option<String>,
    /// True if gpunode owned the key and gave it up because somebody kept changing it.
    pub conceded: bool,
    /// Field manager that wrote it, where Kubernetes knows.
    pub manager: Option<String>,
    /// Policies that want the value, by name.
    pub policies: Vec<String>,
}

impl fmt::Display for ConflictKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Label(key) => write!(f, "label {key}"),
            Self::Taint(id) => write!(f, "taint {id}"),
        }
    }
}

impl fmt::Display for KeyConflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            key,
            desired,
            actual,
            manager,
            ..
        } = self;
        match actual {
            Some(actual) => write!(f, "{key} is \"{actual}\", not \"{desired}\"")?,
            None => write!(f, "{key} is missing, not \"{desired}\"")?,
        }
        if self.conceded {
            let manager = manager.as_deref().unwrap_or("somebody");
            write!(
                f,
                ", changed by {manager} more than {MAX_RESTORES} times in 10 minutes, so gpunode gave it up"
            )
        } else if let Some(manager) = manager {
            write!(f, ", written by {manager}")
        } else {
            Ok(())
        }
    }
}

impl KeyConflict {
    /// Describes the conflict about a key, with the field manager that wrote it.
    pub(crate) fn new<K>(key: ConflictKey, clash: &KeyClash<K>, manager: Option<String>) -> Self {
        Self {
            key,
            desired: clash.desired.value.clone(),
            actual: clash.actual.clone(),
            conceded: clash.conceded,
            manager,
            policies: clash.desired.policies.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conflict_names_both_values_and_the_owner() {
        let conflict = KeyConflict {
            key: ConflictKey::Label("pool".to_owned()),
            desired: "a".to_owned(),
            actual: Some("b".to_owned()),
            conceded: false,
            manager: Some("kubectl-label".to_owned()),
            policies: vec!["p".to_owned()],
        };
        assert_eq!(
            conflict.to_string(),
            "label pool is \"b\", not \"a\", written by kubectl-label"
        );
        let conceded = KeyConflict {
            actual: None,
            conceded: true,
            ..conflict
        };
        assert_eq!(
            conceded.to_string(),
            "label pool is missing, not \"a\", changed by kubectl-label more than 3 times in 10 minutes, so gpunode gave it up"
        );
    }
}
