//! The outcome of one policy on one node.

use crate::rollout_stage::RolloutStage;
use gpunode_crds::{NodePreview, NodeWaiting, Reason};

/// Outcome of one policy on one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicyOutcome {
    /// Everything that the policy wants is in force. In mode Preview: it would change nothing.
    Ready,
    /// The node is changing. In mode Preview: the policy would change something.
    Updating,
    /// The node is broken or missed the deadline, so nobody waits for it.
    Failed {
        /// Reason for programs.
        reason: Reason,
        /// Sentence for people.
        message: String,
    },
    /// Another owner, or another policy, is in the way.
    Conflicted {
        /// Reason for programs.
        reason: Reason,
        /// Sentence for people.
        message: String,
    },
}

/// Loss of keys of a policy to policies of higher priority, on one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyOverride {
    /// First key with its winner, and the number of further keys, in words.
    pub message: String,
    /// True if nothing of the policy is left on the node.
    pub is_whole: bool,
}

/// Everything that the status of a policy says about one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyNodeStatus {
    /// Outcome of the policy; none if the node only keeps its stage in the rollout.
    pub outcome: Option<PolicyOutcome>,
    /// Changes that the policy would make in mode Preview, if any.
    pub preview: Option<NodePreview>,
    /// Devices whose change waits for their holders, or for another obstacle, where the policy governs.
    pub waiting: Vec<NodeWaiting>,
    /// Reason why pods get no GPU on the node, if they get none, where the policy governs.
    pub gpu_refusal: Option<String>,
    /// Stage of the node, where the policy governs.
    pub stage: Option<RolloutStage>,
    /// Stage of the node on its way to the policy's taints that evict pods, if it has any.
    pub taint_stage: Option<RolloutStage>,
    /// Loss of keys to policies of higher priority, if any.
    pub overridden: Option<PolicyOverride>,
}

impl From<PolicyOutcome> for PolicyNodeStatus {
    fn from(outcome: PolicyOutcome) -> Self {
        Self {
            outcome: Some(outcome),
            preview: None,
            waiting: Vec::new(),
            gpu_refusal: None,
            stage: None,
            taint_stage: None,
            overridden: None,
        }
    }
}

impl PolicyNodeStatus {
    /// Describes a node that the policy does not count and that keeps its stage in the rollout.
    pub(crate) fn in_rollout(stage: RolloutStage) -> Self {
        Self {
            outcome: None,
            preview: None,
            waiting: Vec::new(),
            gpu_refusal: None,
            stage: Some(stage),
            taint_stage: None,
            overridden: None,
        }
    }
}

impl PolicyOutcome {
    /// Returns a failure.
    pub fn failed(reason: Reason, message: impl Into<String>) -> Self {
        Self::Failed {
            reason,
            message: message.into(),
        }
    }

    /// Returns a conflict.
    pub fn conflicted(reason: Reason, message: impl Into<String>) -> Self {
        Self::Conflicted {
            reason,
            message: message.into(),
        }
    }

    /// Returns true if the node works and somebody has to act before the policy comes into force. A broken node is
    /// another matter: waiting for it helps nobody.
    pub(crate) fn needs_somebody(&self) -> bool {
        match self {
            Self::Ready | Self::Updating => false,
            Self::Conflicted { .. } => true,
            Self::Failed { reason, .. } => {
                use Reason::{
                    ConfigurationRejected, MigBlocked, MigFailed, MigManager, MigRebootRequired, RecordUnreadable,
                    ServedByAnother, WriteFailed,
                };
                let of_mig = matches!(reason, MigBlocked | MigFailed | MigManager | MigRebootRequired);
                let others = matches!(
                    reason,
                    ConfigurationRejected | RecordUnreadable | ServedByAnother | WriteFailed
                );
                of_mig || others
            }
        }
    }
}
