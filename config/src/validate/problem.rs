//! A problem of one field, and its remedy.

use std::fmt;

/// A problem of one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldProblem {
    /// Path of the field, such as `resources[0].sharing.replicas`; empty for the document itself.
    pub path: String,
    /// The problem and its remedy.
    pub message: String,
}

impl FieldProblem {
    /// Creates a problem of the field at `path`.
    pub fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            message: message.into(),
        }
    }
}

impl fmt::Display for FieldProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.is_empty() {
            f.write_str(&self.message)
        } else {
            write!(f, "{}: {}", self.path, self.message)
        }
    }
}
