//! Types and reasons of conditions: constants of the API that programs may compare with.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use strum::IntoStaticStr;

/// Message of [`Reason::ServedByAnother`] where NVIDIA's DRA driver serves the GPUs of a node.
pub const SERVED_BY_DRA: &str = "NVIDIA's DRA driver gpu.nvidia.com serves the GPUs of this node: containers keep the devices that \
     they hold, and gpunode gives out no other one; remove that driver from the node, or take the node out of the policy";

/// Message of [`Reason::DriverAnswers`] where every GPU answers.
pub const EVERY_GPU_ANSWERS: &str = "the driver answers";

/// Types of the conditions in `GpuNodePolicy.status` and `GpuNode.status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, IntoStaticStr)]
pub enum ConditionType {
    /// The object is in force wherever it can be.
    Ready,
    /// Work is under way.
    Reconciling,
    /// No progress is possible without a change of the spec.
    Stalled,
    /// Somebody else owns a key of the policy.
    Conflict,
    /// At least one matched node is faulty, or gives pods no GPU.
    Degraded,
    /// Devices wait for pods to end before their sharing changes, or the change has not reached every node. False means that
    /// the change is done. It does not affect `Ready` and `Reconciling`: a long job must not hold up a pipeline.
    Waiting,
    /// GpuNode: the configuration in `spec` is in force.
    ConfigurationAccepted,
    /// GpuNode: every resource is registered with the kubelet.
    Registered,
    /// GpuNode: another device plugin of the node serves a resource of the policy, so that gpunode does not register
    /// it; or NVIDIA's DRA driver serves its GPUs. Absent otherwise.
    ResourceServedByAnother,
    /// GpuNode: every device that a resource selects can be advertised.
    DevicesOffered,
    /// GpuNode: every GPU that the configuration lays out has its MIG layout. It does not affect `Ready`. Absent without layouts.
    MigLayout,
    /// GpuNode: the driver answers.
    DriverAvailable,
    /// GpuNode: gpunode owns the labels with facts about the GPUs. Present only while another program owns some of
    /// them.
    FactLabels,
    /// GpuNode: the annotation `gpunode.dev/recovered` of the node can be parsed. Present only while it cannot.
    RecoveredAnnotation,
}

impl ConditionType {
    /// Types in `GpuNodePolicy.status`.
    pub const OF_POLICY: [Self; 6] = [
        Self::Ready,
        Self::Reconciling,
        Self::Stalled,
        Self::Conflict,
        Self::Degraded,
        Self::Waiting,
    ];

    /// Types in `GpuNode.status` that the operator writes; the agent of the node writes all others.
    pub const OF_OPERATOR: [Self; 3] = [Self::Conflict, Self::FactLabels, Self::RecoveredAnnotation];

    /// Returns the condition of this type.
    pub fn find(self, conditions: &[Condition]) -> Option<&Condition> {
        conditions.iter().find(|condition| condition.type_ == self.as_str())
    }

    /// Returns the name in the API.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// Reasons of conditions, failures and events: constants of the API that programs may compare with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, IntoStaticStr)]
pub enum Reason {
    /// The policy is in force on every matched node that can be reached.
    InForce,
    /// No node matches.
    NoMatchingNodes,
    /// Mode Preview: the status lists the changes.
    Preview,
    /// Mode Paused: nodes stay as they are.
    Paused,
    /// A node left the policy because it has too few of the GPUs that `gpuSelector` requires.
    GpusMissing,
    /// Some nodes are still being updated.
    NodesUpdating,
    /// Pods hold devices whose sharing is to change.
    PodsHoldDevices,
    /// No device waits for a pod to end.
    NothingWaits,
    /// No update is under way.
    UpToDate,
    /// Some nodes failed.
    NodesFailed,
    /// Every matched node is healthy.
    NodesHealthy,
    /// Pods on some nodes would get no GPU, because of the settings of the container runtime.
    PodsGetNoGpu,
    /// Somebody else owns a key with another value.
    KeyOwnedByAnother,
    /// Another program owns labels with facts about GPUs.
    OwnedByAnother,
    /// The agent reports facts about the GPUs that do not fit into labels.
    InvalidFact,
    /// Two policies of equal priority disagree.
    EqualPriority,
    /// No key has another owner.
    NoConflict,
    /// The agent rejected its configuration.
    ConfigurationRejected,
    /// The agent has its configuration in force.
    ConfigurationInForce,
    /// The agent has not reported the configuration yet.
    ConfigurationPending,
    /// The node has no configuration.
    NoConfiguration,
    /// The agent on the node does not report.
    AgentNotReporting,
    /// The kubelet of the node does not respond.
    NodeNotReady,
    /// Every resource is registered with the kubelet.
    Registered,
    /// The kubelet has not accepted every resource yet.
    Registering,
    /// Another device plugin of the node serves a resource, or NVIDIA's DRA driver serves the GPUs.
    ServedByAnother,
    /// The driver answers.
    DriverAnswers,
    /// The driver's library cannot be found or loaded.
    DriverNotFound,
    /// The driver's library reports an error.
    DriverFailed,
    /// The agent waits for the driver: a call has no answer yet, or the driver's container is not ready.
    DriverNotReady,
    /// The policy's spec cannot be carried out.
    InvalidSpec,
    /// The record of what gpunode wrote on the node cannot be parsed.
    RecordUnreadable,
    /// The API server rejects a write.
    WriteFailed,
    /// Every device that a resource selects is advertised or waits for its holders.
    DevicesOffered,
    /// MIG strategy Single: the MIG devices of a resource differ, so that it is not advertised.
    MigInstancesUnequal,
    /// A GPU has MIG enabled and no instance, so that nothing can run on it.
    MigWithoutInstances,
    /// A GPU is older than Volta; its MPS has no limits.
    MpsUnsupported,
    /// An MPS control daemon does not answer.
    MpsDaemonNotAnswering,
    /// A device has less memory than one unit.
    MemoryBelowUnit,
    /// The paths of a companion match files that it cannot hand out.
    FileRefused,
    /// The paths of a companion match no file.
    FileMissing,
    /// `deviceListStrategy` has only CDI, and the CDI file does not describe a device.
    CdiNotDescribed,
    /// Every GPU has its MIG layout, or cannot have one.
    LayoutApplied,
    /// Pods hold what has to go for a MIG layout.
    LayoutWaiting,
    /// Everything that has to go for a MIG layout is free; the operator has not approved the change yet.
    LayoutAwaitsApproval,
    /// A GPU is getting its MIG layout.
    LayoutApplying,
    /// Something other than a pod keeps a GPU from its MIG layout.
    LayoutBlocked,
    /// The driver refused a MIG layout.
    LayoutFailed,
    /// A MIG layout comes into force with a reboot of the node.
    RebootRequired,
    /// The kubelet does not report which pod holds which device.
    HoldersUnknown,
    /// The driver refused to change MIG on a GPU; the agent tries again.
    MigFailed,
    /// A GPU gets its MIG mode with the next reboot of the node.
    MigRebootRequired,
    /// A GPU cannot get its layout of MIG instances before somebody acts.
    MigBlocked,
    /// NVIDIA's mig-manager changes MIG on the node, so that no policy may.
    MigManager,
    /// A node did not put its new configuration in force in time.
    ProgressDeadlineExceeded,
    /// A node failed with the new configuration, so that no further node gets it.
    RolloutStopped,
    /// A pod was evicted because it held an unhealthy device.
    PodEvicted,
    /// A pod that holds an unhealthy device cannot be evicted yet.
    EvictionRefused,
    /// A pod that its node had rejected was deleted.
    RejectedPodDeleted,
    /// The agents of the node have released its GPUs, as a label of the node requests.
    Released,
    /// The agent of another policy still serves the node, because this policy's agent has not taken over.
    HandOverPending,
    /// A value that a person wrote, or a policy of another version, cannot be parsed.
    Unreadable,
    /// Many nodes lose what a policy wrote that is gone, a part of them each second.
    RemovalPaced,
    /// A policy with `onConflict: TakeOver` replaced values of others.
    KeysTakenOver,
    /// Keys that somebody else changed or removed are back.
    KeysRestored,
    /// Nodes got a taint with the effect `NoExecute`.
    NodesEvictPods,
    /// Pods were evicted from broken GPUs.
    BrokenGpusEmptied,
    /// Pods were evicted from GPUs that change.
    ChangedGpusEmptied,
    /// Pods that nodes had rejected were deleted.
    RejectedPodsDeleted,
    /// A policy is missing from the list of policies, and nobody saw its deletion.
    PolicyMissing,
}

impl Reason {
    /// The name in the API.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}
