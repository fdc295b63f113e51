//! What the operator reports about a policy. Conditions have the meanings of kstatus.

use crate::PolicyTaint;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::KubeSchema;
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
    #[schemars(length(max = MAX_FAILURES))]
    pub failures: Vec<NodeFailure>,

    /// Devices whose change waits until their last holder is gone; ordered by node and device, at most 64. Such a node counts
    /// as ready: it has taken the configuration, and nothing but its pods is in the way.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_WAITING))]
    pub waiting: Vec<NodeWaiting>,

    /// Mode Preview only: what would change, for at most 64 nodes, ordered by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_PREVIEW))]
    pub preview: Vec<NodePreview>,
}

/// Numbers of nodes. `matched` is the sum of the others: a conflicted node is not ready.
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
