//! A key that a policy wants and somebody else has.

use crate::{
    input::facts::TaintKey,
    node::claim::{Clash, MAX_RESTORES},
};
use std::fmt;

/// A label or taint.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConflictKey {
    /// A label.
    Label(String),
    /// A taint.
    Taint(TaintKey),
}

/// Somebody else's key with another value than a policy wants. It stays as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyConflict {
    /// Which key.
    pub key: ConflictKey,
    /// The value that policies want.
    pub wanted: String,
    /// The value that somebody else wants; none where that is no such key.
    pub actual: Option<String>,
    /// Whether it was gpunode's and was given up, since somebody kept changing it.
    pub conceded: bool,
    /// The field manager that wrote it, where Kubernetes knows.
    pub manager: Option<String>,
    /// The policies that want the value, by name.
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

impl fmt::Display for TaintKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.key, self.effect)
    }
}

impl fmt::Display for KeyConflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            key,
            wanted,
            actual,
            manager,
            ..
        } = self;
        match actual {
            Some(actual) => write!(f, "{key} is \"{actual}\", not \"{wanted}\"")?,
            None => write!(f, "{key} is gone, not \"{wanted}\"")?,
        }
        if self.conceded {
            let manager = manager.as_deref().unwrap_or("somebody");
            write!(
                f,
                ", changed by {manager} more than {MAX_RESTORES} times in 10 minutes and left since then"
            )
        } else if let Some(manager) = manager {
            write!(f, ", written by {manager}")
        } else {
            Ok(())
        }
    }
}

impl KeyConflict {
    /// The conflict about a key, with the field manager that wrote it.
    pub(crate) fn of<K>(key: ConflictKey, clash: &Clash<K>, manager: Option<String>) -> Self {
        Self {
            key,
            wanted: clash.wanted.value.clone(),
            actual: clash.actual.clone(),
            conceded: clash.conceded,
            manager,
            policies: clash.wanted.policies.clone(),
        }
    }
}
