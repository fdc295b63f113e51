//! Problems and remarks of one import.

use crate::FieldProblem;
use std::fmt;

/// Setting of the plugin that is left out, or means something else here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportRemark {
    /// Name of the setting: key of the file, flag or variable.
    pub setting: String,
    /// Its effect here, and the reason.
    pub message: String,
    /// True if NVIDIA's plugin ignores it, too.
    pub is_ignored: bool,
}

impl fmt::Display for ImportRemark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.setting, self.message)
    }
}

/// Problems and remarks of one import.
#[derive(Debug, Default)]
pub(super) struct Report {
    pub problems: Vec<FieldProblem>,
    pub remarks: Vec<ImportRemark>,
}

impl Report {
    pub(super) fn refuse(&mut self, setting: impl Into<String>, message: impl Into<String>) {
        self.problems.push(FieldProblem::new(setting, message));
    }

    /// Notes a setting that NVIDIA's plugin ignores.
    pub(super) fn ignored(&mut self, setting: impl Into<String>, message: impl Into<String>) {
        self.remark(setting, message, true);
    }

    /// Notes a setting that the plugin follows, and gpunode does not or not in the same way.
    pub(super) fn differs(&mut self, setting: impl Into<String>, message: impl Into<String>) {
        self.remark(setting, message, false);
    }

    fn remark(&mut self, setting: impl Into<String>, message: impl Into<String>, is_ignored: bool) {
        self.remarks.push(ImportRemark {
            setting: setting.into(),
            message: message.into(),
            is_ignored,
        });
    }
}
