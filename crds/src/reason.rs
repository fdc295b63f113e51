//! The names of conditions and of their reasons: constants of the API that programs may compare with.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use strum::IntoStaticStr;

/// Types of the conditions in `GpuNodePolicy.status` and `GpuNode.status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, IntoStaticStr)]
pub enum ConditionType {
    /// The object is in force everywhere it can be.
    Ready,
    /// Work is under way.
    Reconciling,
    /// No progress without a change of the spec.
    Stalled,
    /// Somebody else owns a key that the policy wants.
    Conflict,
    /// Some matched node is broken.
    Degraded,
    /// GpuNode: the configuration in `spec` is in force.
    ConfigurationAccepted,
    /// GpuNode: every resource is registered with the kubelet.
    Registered,
    /// GpuNode: another device plugin of the node serves a resource of the policy, which is not registered. There only while
    /// one does.
    ResourceServedByAnother,
    /// GpuNode: every device that a resource selects can be offered.
    DevicesOffered,
    /// GpuNode: the driver answers.
    DriverAvailable,
    /// GpuNode: the labels with the facts about its GPUs are gpunode's. There only while some are not.
    FactLabels,
    /// GpuNode: the annotation `gpunode.dev/recovered` of the node can be read. There only while it cannot.
    RecoveredAnnotation,
}

impl ConditionType {
    /// Those in `GpuNodePolicy.status`.
    pub const OF_POLICY: [Self; 5] = [
        Self::Ready,
        Self::Reconciling,
        Self::Stalled,
        Self::Conflict,
        Self::Degraded,
    ];

    /// Those in `GpuNode.status` that the operator writes; the agent of the node writes all others.
    pub const OF_OPERATOR: [Self; 3] = [Self::Conflict, Self::FactLabels, Self::RecoveredAnnotation];

    /// The condition of this type.
    pub fn find(self, conditions: &[Condition]) -> Option<&Condition> {
        conditions.iter().find(|condition| condition.type_ == self.as_str())
    }

    /// The name in the API.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// Reasons of conditions, failures and events: constants of the API that programs may compare with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, IntoStaticStr)]
pub enum Reason {
    /// Every matched node that can be reached has the policy in force.
    InForce,
    /// No node matches.
    NoMatchingNodes,
    /// Mode Preview: what would change is in status.
    Preview,
    /// Mode Paused: nodes stay as they are.
    Paused,
    /// A node left the policy, since it has too few of the GPUs that `gpuSelector` asks for.
    GpusMissing,
    /// Some nodes are not there yet.
    NodesUpdating,
    /// Nothing is under way.
    UpToDate,
    /// Some nodes failed.
    NodesFailed,
    /// Every matched node is healthy.
    NodesHealthy,
    /// Another owner's key has another value.
    KeyOwnedByAnother,
    /// Another program keeps labels with facts about GPUs.
    OwnedByAnother,
    /// Two policies of equal priority disagree.
    EqualPriority,
    /// No other owner is in the way.
    NoConflict,
    /// The agent refused its configuration.
    ConfigurationRejected,
    /// The agent has its configuration in force.
    ConfigurationInForce,
    /// The agent has not reported the configuration yet.
    ConfigurationPending,
    /// The node has no configuration.
    NoConfiguration,
    /// The agent on the node does not report.
    AgentNotReporting,
    /// The kubelet of the node does not answer.
    NodeNotReady,
    /// Every resource is registered with the kubelet.
    Registered,
    /// The kubelet does not have every resource yet.
    Registering,
    /// Another device plugin of the node serves a resource.
    ServedByAnother,
    /// The driver answers.
    DriverAnswers,
    /// The driver's library cannot be found or loaded.
    DriverNotFound,
    /// The driver's library reports an error.
    DriverFailed,
    /// The policy's spec cannot be carried out.
    InvalidSpec,
    /// The record of what gpunode wrote on the node cannot be read.
    RecordUnreadable,
    /// The API server does not take what is to be written.
    WriteFailed,
    /// Every device that a resource selects is offered or waits for its holders.
    DevicesOffered,
    /// MIG strategy Single: the MIG devices of a resource are not equal, so it is not offered.
    MigInstancesUnequal,
    /// A GPU has MIG enabled and no instance: nothing can run on it.
    MigWithoutInstances,
    /// A GPU is older than Volta, whose MPS knows no limits.
    MpsUnsupported,
    /// An MPS control daemon does not answer.
    MpsDaemonNotAnswering,
    /// A device has less memory than one unit.
    MemoryBelowUnit,
    /// The kubelet does not say which pod holds which device.
    HoldersUnknown,
    /// A node was given a configuration at its turn and did not put it in force in time.
    ProgressDeadlineExceeded,
    /// A node failed with the new configuration, so no further node gets it.
    RolloutStopped,
    /// A pod was evicted, since it held a broken device.
    PodEvicted,
    /// A pod is to be evicted, since it holds a broken device, and may not be yet.
    EvictionRefused,
    /// A pod was deleted that its node had rejected.
    RejectedPodDeleted,
    /// The agents of the node have let go of its GPUs, as a label of the node asks.
    Released,
    /// The agent of another policy still serves the node, as that of this policy has not taken over.
    HandOverPending,
    /// A value that a person wrote cannot be read.
    Unreadable,
}

impl Reason {
    /// The name in the API.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}
