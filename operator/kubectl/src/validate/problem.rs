//! One thing that is wrong with a document.

use serde::Serialize;

/// One thing that is wrong with a document, where the API server would say it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FieldProblem {
    /// Path of the field as in the API server's Status causes, such as `spec.taints[0].key`; empty for the object itself.
    pub path: String,
    /// Line of the field in the file, counted from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
    /// What is wrong and what to do.
    pub message: String,
}

impl FieldProblem {
    /// A problem of the field at `path`, on a line that is looked up later.
    pub fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            line: None,
            message: message.into(),
        }
    }

    /// The same problem, on `line` of the file.
    #[must_use]
    pub fn on_line(self, line: usize) -> Self {
        Self {
            line: Some(line),
            ..self
        }
    }
}

/// The path of the field `name` within `parent`.
pub fn child(parent: &str, name: &str) -> String {
    if parent.is_empty() {
        name.to_owned()
    } else {
        format!("{parent}.{name}")
    }
}

/// The path without its last field or index; empty for a path of one field.
pub fn parent(path: &str) -> &str {
    path.rfind(['.', '['])
        .and_then(|end| path.get(..end))
        .unwrap_or_default()
}
