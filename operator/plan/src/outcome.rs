//! What became of one policy on one node.

use crate::fleet::rollout::RolloutStage;
use gpunode_crds::{NodePreview, NodeWaiting, Reason};

/// What became of one policy on one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicyOutcome {
    /// Everything that the policy asks for is in force. For a policy in mode Preview: it would change nothing.
    Ready,
    /// On its way. For a policy in mode Preview: it would change something.
    Updating,
    /// Broken, or not there in time: it cannot be waited for.
    Failed {
        /// One word for programs.
        reason: Reason,
        /// A sentence for people.
        message: String,
    },
    /// Somebody else, or another policy, is in the way.
    Conflicted {
        /// One word for programs.
        reason: Reason,
        /// A sentence for people.
        message: String,
    },
}

/// Everything that the status of a policy says about one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyNodeStatus {
    /// What became of the policy there; nothing where the node only keeps its place in the rollout.
    pub outcome: Option<PolicyOutcome>,
    /// Mode Preview: what it would change there, if anything.
    pub preview: Option<NodePreview>,
    /// Where it governs: devices whose change waits for their holders.
    pub waiting: Vec<NodeWaiting>,
    /// Where it governs: where the node is on its way to the policy's configuration.
    pub stage: Option<RolloutStage>,
}

impl From<PolicyOutcome> for PolicyNodeStatus {
    fn from(outcome: PolicyOutcome) -> Self {
        Self {
            outcome: Some(outcome),
            preview: None,
            waiting: Vec::new(),
            stage: None,
        }
    }
}

impl PolicyNodeStatus {
    /// A node that the policy does not count, and that keeps its place in its rollout.
    pub(crate) fn in_rollout(stage: RolloutStage) -> Self {
        Self {
            outcome: None,
            preview: None,
            waiting: Vec::new(),
            stage: Some(stage),
        }
    }
}

impl PolicyOutcome {
    /// A failure.
    pub fn failed(reason: Reason, message: impl Into<String>) -> Self {
        Self::Failed {
            reason,
            message: message.into(),
        }
    }

    /// Whether a policy is not in force until somebody acts, though the node could carry it out. A broken node is another
    /// matter: nobody could wait for it.
    pub(crate) fn needs_somebody(&self) -> bool {
        match self {
            Self::Ready | Self::Updating => false,
            Self::Conflicted { .. } => true,
            Self::Failed { reason, .. } => {
                use Reason::{ConfigurationRejected, RecordUnreadable, ServedByAnother, WriteFailed};
                matches!(
                    reason,
                    ConfigurationRejected | RecordUnreadable | ServedByAnother | WriteFailed
                )
            }
        }
    }

    /// A conflict.
    pub fn conflicted(reason: Reason, message: impl Into<String>) -> Self {
        Self::Conflicted {
            reason,
            message: message.into(),
        }
    }
}
