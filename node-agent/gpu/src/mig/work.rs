//! Work on a GPU's layout, and its result. The decision asks for it, and the agent carries it out.

use crate::GpuLayout;
use gpunode_crds::MigReason;

/// Work on one GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigWork {
    /// UUID of the GPU.
    pub gpu: String,
    /// Hash of the configuration that wants the layout.
    pub hash: String,
    /// Layout that the GPU gets, or has.
    pub layout: GpuLayout,
    /// Kind of work.
    pub kind: MigWorkKind,
    /// Names of what kept the change from its end, if it goes back for that.
    pub gives_up: Option<String>,
}

/// Kinds of work on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MigWorkKind {
    /// Looks for daemons, processes and handles on what has to go.
    Check,
    /// Looks once more, and then gives the GPU its layout.
    Apply,
    /// Makes the layout of before a boot, a driver load or a reset again.
    Restore,
    /// Goes back to the layout of before the change.
    RollBack,
    /// Saves that the GPU has the layout.
    Remember,
    /// Drops the record of the GPU.
    Forget,
}

/// Result of the last work on a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigAttempt {
    /// The work.
    pub work: MigWork,
    /// Its result.
    pub result: AttemptResult,
}

/// Results of work on a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttemptResult {
    /// It is under way.
    Running,
    /// Nothing is on what has to go, as of a check.
    Clear,
    /// Something is on it, or the mode cannot change now; nothing was changed.
    Blocked {
        /// The reason.
        reason: MigReason,
        /// Names of what is there, and the remedy.
        message: String,
    },
    /// The GPU has the layout.
    Done,
    /// The mode changes with the next boot.
    RebootRequired {
        /// The driver's status, and the remedy.
        message: String,
    },
    /// The driver answered with an error.
    Failed {
        /// The call, and the answer.
        message: String,
    },
}
