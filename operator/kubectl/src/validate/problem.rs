//! A problem of one field.

use serde::Serialize;

/// A problem of one field, at the path that the API server would report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DocumentProblem {
    /// Path of the field as in the API server's Status causes, such as `spec.taints[0].key`; empty for the object itself.
    pub path: String,
    /// Line of the field in the file, counted from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
    /// The problem, and what to do.
    pub message: String,
}

impl DocumentProblem {
    /// Creates a problem of the field at `path`; its line is looked up later.
    pub fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            line: None,
            message: message.into(),
        }
    }

    /// Sets the line in the file.
    #[must_use]
    pub(super) fn on_line(self, line: usize) -> Self {
        Self {
            line: Some(line),
            ..self
        }
    }
}

/// Returns the path of the field `name` within `parent`.
pub fn child(parent: &str, name: &str) -> String {
    if parent.is_empty() {
        name.to_owned()
    } else {
        format!("{parent}.{name}")
    }
}

/// Returns the path without its last field or index; empty for a path of one field.
pub fn parent(path: &str) -> &str {
    path.rfind(['.', '['])
        .and_then(|end| path.get(..end))
        .unwrap_or_default()
}
