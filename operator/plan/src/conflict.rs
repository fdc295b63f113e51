//! A key that a policy wants and somebody else has.

use crate::facts::TaintKey;
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
pub struct Conflict {
    /// Which key.
    pub key: ConflictKey,
    /// The value that policies want.
    pub wanted: String,
    /// The value on the node.
    pub actual: String,
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

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is \"{}\", not \"{}\"", self.key, self.actual, self.wanted)?;
        match &self.manager {
            Some(manager) => write!(f, ", written by {manager}"),
            None => Ok(()),
        }
    }
}
