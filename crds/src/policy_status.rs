//! What the operator reports about a policy. Conditions have the meanings of kstatus.

use crate::PolicyTaint;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Most entries of `status.failures`; `nodes` counts all of them.
pub const MAX_FAILURES: usize = 32;

/// Most entries of `status.preview`.
pub const MAX_PREVIEW: usize = 64;

/// Most entries of `status.waiting`.
pub const MAX_WAITING: usize = 64;

// The default, for a policy that the operator has not seen, is a generation that never is: kstatus takes an object without
// any status for done.
/// What became of a policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("default" = {"observedGeneration": -1}))]
pub struct GpuNodePolicyStatus {
    /// The generation of the spec that this status describes; -1 before the operator has seen the policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// `Ready`, `Reconciling` and `Stalled` as kstatus reads them; `Conflict` and `Degraded` say more about single nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::conditions::conditions")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,

    /// How many nodes are in which state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<NodeCounts>,

    /// Nodes on which the policy is not in force, and why; ordered by name, at most 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub failures: Vec<NodeFailure>,

    /// Devices whose change waits until their last holder is gone; ordered by node and device, at most 64. Such a node counts
    /// as ready: it has taken the configuration, and nothing but its pods is in the way.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_WAITING))]
    pub waiting: Vec<NodeWaiting>,

    /// Mode Preview only: what would change, for at most 64 nodes, ordered by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub preview: Vec<NodePreview>,
}

/// Numbers of nodes. `matched` is the sum of the others where nothing is counted twice: a conflicted node is not ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeCounts {
    /// Nodes that the selector matches.
    pub matched: i32,
    /// Matched nodes on which everything that the policy asks for is in force.
    pub ready: i32,
    /// Matched nodes that are on their way.
    pub updating: i32,
    /// Matched nodes that cannot get there by themselves.
    pub failed: i32,
    /// Matched nodes where somebody else owns a key that the policy wants.
    pub conflicted: i32,
}

/// Why the policy is not in force on one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeFailure {
    /// The node's name.
    #[schemars(length(max = 253))]
    pub node: String,
    /// One word for programs.
    #[schemars(length(max = 64))]
    pub reason: String,
    /// A sentence for people: what, on what, and what to do.
    #[schemars(length(max = 1024))]
    pub message: String,
}

/// A device whose change waits for its holders.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeWaiting {
    /// The node's name.
    #[schemars(length(max = 253))]
    pub node: String,
    /// UUID of the GPU or MIG device.
    #[schemars(length(max = 64))]
    pub device: String,
    /// The pods that hold it, as `NAMESPACE/NAME`; at most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = crate::MAX_WAITING_PODS), inner(length(max = 317)))]
    pub pods: Vec<String>,
}

/// What a policy in mode Preview would change on one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodePreview {
    /// The node's name.
    #[schemars(length(max = 253))]
    pub node: String,
    /// Labels that would be set or changed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "crate::label_map::merged_label_map")]
    pub set_labels: BTreeMap<String, String>,
    /// Keys of labels that would be removed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128), inner(length(max = 316)))]
    pub remove_labels: Vec<String>,
    /// Taints that would be added or changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub set_taints: Vec<PolicyTaint>,
    /// Taints that would be removed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub remove_taints: Vec<PolicyTaint>,
    /// Hash of the agent configuration that the node would get.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub config_hash: Option<String>,
    /// Keys that somebody else owns with another value, which would stay as they are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 512)))]
    pub conflicts: Vec<String>,
}

/// Types of the conditions in `GpuNodePolicy.status` and `GpuNode.status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
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
    /// GpuNode: every device that a resource selects can be offered.
    DevicesOffered,
    /// GpuNode: the driver answers.
    DriverAvailable,
    /// GpuNode: the labels with the facts about its GPUs are gpunode's. There only while some are not.
    FactLabels,
}

impl ConditionType {
    /// Those in `GpuNode.status` that the operator writes; the agent of the node writes all others.
    pub const OF_OPERATOR: [Self; 2] = [Self::Conflict, Self::FactLabels];

    /// The condition of this type.
    pub fn find(self, conditions: &[Condition]) -> Option<&Condition> {
        conditions.iter().find(|condition| condition.type_ == self.as_str())
    }

    /// The name in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "Ready",
            Self::Reconciling => "Reconciling",
            Self::Stalled => "Stalled",
            Self::Conflict => "Conflict",
            Self::Degraded => "Degraded",
            Self::ConfigurationAccepted => "ConfigurationAccepted",
            Self::Registered => "Registered",
            Self::DevicesOffered => "DevicesOffered",
            Self::DriverAvailable => "DriverAvailable",
            Self::FactLabels => "FactLabels",
        }
    }
}

/// Reasons of conditions, failures and events: constants of the API that programs may compare with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
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
}

impl Reason {
    /// The name in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InForce => "InForce",
            Self::NoMatchingNodes => "NoMatchingNodes",
            Self::Preview => "Preview",
            Self::Paused => "Paused",
            Self::GpusMissing => "GpusMissing",
            Self::NodesUpdating => "NodesUpdating",
            Self::UpToDate => "UpToDate",
            Self::NodesFailed => "NodesFailed",
            Self::NodesHealthy => "NodesHealthy",
            Self::KeyOwnedByAnother => "KeyOwnedByAnother",
            Self::OwnedByAnother => "OwnedByAnother",
            Self::EqualPriority => "EqualPriority",
            Self::NoConflict => "NoConflict",
            Self::ConfigurationRejected => "ConfigurationRejected",
            Self::ConfigurationInForce => "ConfigurationInForce",
            Self::ConfigurationPending => "ConfigurationPending",
            Self::NoConfiguration => "NoConfiguration",
            Self::AgentNotReporting => "AgentNotReporting",
            Self::NodeNotReady => "NodeNotReady",
            Self::Registered => "Registered",
            Self::Registering => "Registering",
            Self::DriverAnswers => "DriverAnswers",
            Self::DriverNotFound => "DriverNotFound",
            Self::DriverFailed => "DriverFailed",
            Self::InvalidSpec => "InvalidSpec",
            Self::RecordUnreadable => "RecordUnreadable",
            Self::WriteFailed => "WriteFailed",
            Self::DevicesOffered => "DevicesOffered",
            Self::MigInstancesUnequal => "MigInstancesUnequal",
            Self::MigWithoutInstances => "MigWithoutInstances",
            Self::MpsUnsupported => "MpsUnsupported",
            Self::MpsDaemonNotAnswering => "MpsDaemonNotAnswering",
            Self::MemoryBelowUnit => "MemoryBelowUnit",
            Self::HoldersUnknown => "HoldersUnknown",
            Self::ProgressDeadlineExceeded => "ProgressDeadlineExceeded",
            Self::RolloutStopped => "RolloutStopped",
        }
    }
}
