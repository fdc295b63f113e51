//! Status of a policy. Conditions have the meanings of kstatus.

use crate::{MAX_LAYOUT_TEXT, MAX_MIG_MESSAGE, PreviewTaint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::KubeSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Maximum number of entries in `status.failures`; `status.nodes` counts all failures.
pub const MAX_FAILURES: usize = 32;

/// Maximum number of entries in `status.preview`.
pub const MAX_PREVIEW: usize = 64;

/// Maximum number of entries in `status.preview[].layouts`.
pub const MAX_LAYOUT_PREVIEWS: usize = 32;

/// Maximum number of entries in `status.waiting`.
pub const MAX_WAITING: usize = 64;

// Until the operator has seen a policy, its status has a generation that never occurs: kstatus takes an object without any
// status for done.
/// Observed state of a policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("default" = {"observedGeneration": -1}))]
pub struct GpuNodePolicyStatus {
    /// Generation of the spec that this status describes; -1 until the operator has seen the policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Conditions of the policy. `Ready`, `Reconciling` and `Stalled` follow kstatus; `Conflict` and `Degraded`
    /// describe single nodes, and `Waiting` says if devices wait for pods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::conditions::conditions")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,

    /// Numbers of nodes by state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<NodeCounts>,

    /// Nodes on which the policy is not in force, with the reason, ordered by name; at most 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_FAILURES))]
    pub failures: Vec<NodeFailure>,

    /// Devices whose change waits for their last holder to end, or for what their message says, ordered by node and
    /// device; at most 64. Their nodes count as ready: they have accepted the configuration.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_WAITING))]
    pub waiting: Vec<NodeWaiting>,

    /// Changes that a policy in mode Preview would make, ordered by node name; at most 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_PREVIEW))]
    pub preview: Vec<NodePreview>,
}

impl GpuNodePolicyStatus {
    /// Sets the generation of the spec that the status and its conditions describe.
    pub fn set_generation(&mut self, generation: Option<i64>) {
        self.observed_generation = generation;
        for condition in &mut self.conditions {
            condition.observed_generation = generation;
        }
    }
}

/// Numbers of nodes. `matched` is the sum of `ready`, `updating`, `failed` and `conflicted`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeCounts {
    /// Nodes that the selectors match.
    pub matched: i32,
    /// Matched nodes on which the whole policy is in force.
    pub ready: i32,
    /// Matched nodes that are being updated.
    pub updating: i32,
    /// Matched nodes that need help to reach the desired state.
    pub failed: i32,
    /// Matched nodes on which somebody else owns a key of the policy.
    pub conflicted: i32,
    /// Matched nodes on which a policy of higher priority overrides a key or the configuration of this policy. They
    /// count among the others as well; the message of `Ready` names the first.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub overridden: i32,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
fn is_zero(number: &i32) -> bool {
    *number == 0
}

/// Failure of the policy on one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeFailure {
    /// Name of the node.
    #[schemars(length(max = 253))]
    pub node: String,
    /// Reason for the failure, as one word for programs.
    #[schemars(length(max = 64))]
    pub reason: String,
    /// Details for people: what failed, where, and what to do.
    #[schemars(length(max = 1024))]
    pub message: String,
}

/// A device whose change waits for its holders, or for what `message` says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeWaiting {
    /// Name of the node.
    #[schemars(length(max = 253))]
    pub node: String,
    /// UUID of the GPU or MIG device.
    #[schemars(length(max = 64))]
    pub device: String,
    /// Pods that hold the device, as `NAMESPACE/NAME`; at most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = crate::MAX_WAITING_PODS), inner(length(max = 317)))]
    pub pods: Vec<String>,
    /// Obstacle other than pods to the MIG layout of the GPU, and the next step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = crate::MAX_MIG_MESSAGE))]
    pub message: Option<String>,
}

/// Changes that a policy in mode Preview would make on one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodePreview {
    /// Name of the node.
    #[schemars(length(max = 253))]
    pub node: String,
    /// Labels that the policy would set or change.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "crate::label_map::merged_label_map")]
    pub set_labels: BTreeMap<String, String>,
    /// Keys of labels that the policy would remove.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128), inner(length(max = 316)))]
    pub remove_labels: Vec<String>,
    /// Taints that the policy would add or change.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub set_taints: Vec<PreviewTaint>,
    /// Taints that the policy would remove.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub remove_taints: Vec<PreviewTaint>,
    /// Hash of the agent configuration that the node would get.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub config_hash: Option<String>,
    /// GPUs that would get another MIG layout, or cannot have the wanted one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_LAYOUT_PREVIEWS))]
    pub layouts: Vec<LayoutPreview>,
    /// Keys that somebody else owns with another value; the policy would leave them as they are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 512)))]
    pub conflicts: Vec<String>,
}

/// MIG layout that a policy would give equal GPUs of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct LayoutPreview {
    /// Indices of the GPUs.
    #[schemars(length(max = 64))]
    pub gpus: Vec<u32>,
    /// Layout that they have, such as `1g.10gb:3,4g.40gb:1`, `{}` or `off`.
    #[schemars(length(max = MAX_LAYOUT_TEXT))]
    pub now: String,
    /// Layout that they would get; none if it does not fit or is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_LAYOUT_TEXT))]
    pub then: Option<String>,
    /// Reason why it does not fit, or why the agent decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_MIG_MESSAGE))]
    pub message: Option<String>,
}
