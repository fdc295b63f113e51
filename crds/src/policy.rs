//! `GpuNodePolicy`: what a platform team writes.

use crate::{GpuNodePolicyStatus, GpuSelector, NodeSelector, PolicyTaint, RolloutPace, StartupTaint, UnhealthyTaint};
use gpunode_config::AgentConfig;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How the GPU nodes of a pool look and behave: labels, taints, and how their GPUs are offered to pods.
///
/// All policies that match a node contribute labels and taints; where two say different things, the higher priority
/// wins. The matching policy of the highest priority that has a `devicePlugin` governs the node's GPUs.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "gpunode.dev",
    version = "v1alpha1",
    kind = "GpuNodePolicy",
    plural = "gpunodepolicies",
    shortname = "gnp",
    status = "GpuNodePolicyStatus",
    derive = "PartialEq",
    doc = "How the GPU nodes of a pool look and behave: labels, taints, and how their GPUs are offered to pods.",
    printcolumn(name = "Mode", type_ = "string", json_path = ".spec.mode"),
    printcolumn(name = "Priority", type_ = "integer", json_path = ".spec.priority"),
    printcolumn(name = "Matched", type_ = "integer", json_path = ".status.nodes.matched"),
    printcolumn(name = "Nodes Ready", type_ = "integer", json_path = ".status.nodes.ready"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].status"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].reason"),
    printcolumn(name = "Waiting Node", type_ = "string", json_path = ".status.waiting[0].node", description = "The first of the nodes on which a change of sharing waits for running pods; `kubectl gpunode status` shows all of them."),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].message", priority = 1),
    validation = Rule::new("size(self.metadata.name) <= 40")
        .message("metadata.name must be at most 40 characters, since it becomes part of a label key; choose a shorter name")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!(has(self.mode) && self.mode == 'Preview') || (has(oldSelf.mode) && oldSelf.mode == 'Preview')")
    .message("mode cannot change from Enforce or Paused to Preview, which would leave what the policy wrote without an owner; write `mode: Paused` to keep its nodes as they are, see the effect of a change with `kubectl gpunode plan -f`, or delete the policy").field_path(".mode"))]
#[x_kube(validation = Rule::new("has(self.nodeSelector) || has(self.gpuSelector)")
    .message("nodeSelector or gpuSelector is required, such as `gpuSelector: {products: [\"Tesla-V100*\"]}`; `nodeSelector: {}` is every node").reason(Reason::FieldValueRequired).field_path(".nodeSelector"))]
pub struct GpuNodePolicySpec {
    /// Which policy wins where two that match a node say different things: the higher number. Default: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -1_000_000, max = 1_000_000))]
    pub priority: Option<i32>,

    /// `Enforce` writes to the cluster. `Preview` computes what would change and reports it in status, and writes nothing
    /// else. `Paused` leaves every node on which the policy has something exactly as it is, and adds none; its deletion still
    /// cleans them. Default: Enforce.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<PolicyMode>,

    /// The nodes that this policy is about, by their labels. `{}` is every node. Left out: `gpuSelector` alone decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<NodeSelector>,

    /// The nodes that this policy is about, by the GPUs that were found on them. Where `nodeSelector` is given too, both must
    /// match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_selector: Option<GpuSelector>,

    /// What happens where somebody else owns a label or taint that this policy wants with another value. `Report`: it stays,
    /// and is a conflict. `TakeOver`: it gets the wanted value, and its old one back when no policy wants it any more.
    /// Default: Report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_conflict: Option<OnConflict>,

    /// Labels that matching nodes get.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "crate::label_map::label_map")]
    #[x_kube(validation = Rule::new(crate::label_map::key_rule())
        .message("labels must have keys of the form [PREFIX/]NAME: a name of at most 63 letters, digits, '-', '_' and '.', and a DNS name as prefix; at most 253 characters together"))]
    #[x_kube(validation = Rule::new("self.all(key, !key.matches('^([-a-z0-9.]+[.])?(kubernetes|k8s)[.]io/') && !key.startsWith('gpunode.dev/'))")
        .message("labels must not have keys under kubernetes.io, k8s.io or gpunode.dev, which others own; use a prefix of your own"))]
    pub labels: BTreeMap<String, String>,

    /// Taints that matching nodes get.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["key".into(), "effect".into()]))]
    pub taints: Vec<PolicyTaint>,

    /// A taint with effect NoSchedule that matching nodes have from their start on, also after each reboot, until what
    /// `devicePlugin` promises is allocatable there: the scheduler's view of a node is old then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub startup_taint: Option<StartupTaint>,

    /// The taint `gpunode.dev/unhealthy` on matching nodes that have too few healthy GPUs, until they have enough again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unhealthy_taint: Option<UnhealthyTaint>,

    /// Evict pods that hold an unhealthy GPU, within their PodDisruptionBudgets. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evict_pods: Option<bool>,

    /// Delete pods of matching nodes that failed with `UnexpectedAdmissionError`, as those do that a node admits before its
    /// GPUs are registered, where a controller makes new ones. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delete_rejected_pods: Option<bool>,

    /// How the GPUs of matching nodes are offered to pods. With this field the policy runs gpunode's device plugin on
    /// matching nodes; `{}` runs it with every default. Left out: the policy only writes labels and taints.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_plugin: Option<AgentConfig>,

    /// How a change of `devicePlugin` or `image` goes through the nodes that are Ready: a few at a time, and no further than
    /// to the first that fails. Nodes that are down or were failing before are not waited for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<RolloutPace>,

    /// Image of the agent on matching nodes. Left out: the image that the operator was installed with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512), regex(pattern = r"^[A-Za-z0-9][-A-Za-z0-9._:/@]*$"))]
    pub image: Option<String>,
}

/// `Enforce` writes to the cluster. `Preview` computes what would change and reports it in status, and writes nothing
/// else. `Paused` leaves every node on which the policy has something exactly as it is, and adds none; its deletion still
/// cleans them. Default: Enforce.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PolicyMode {
    /// The policy is put in force.
    #[default]
    Enforce,
    /// What the policy would do is reported in its status.
    Preview,
    /// The nodes on which the policy has something stay as they are, and none is added.
    Paused,
}

/// What happens where somebody else owns a label or taint that the policy wants with another value. Default: Report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnConflict {
    /// It stays as it is and is reported.
    #[default]
    Report,
    /// It gets the wanted value, and its old one back when no policy wants it any more.
    TakeOver,
}

impl GpuNodePolicySpec {
    /// The priority in force.
    pub fn priority(&self) -> i32 {
        self.priority.unwrap_or(0)
    }

    /// The mode in force.
    pub fn mode(&self) -> PolicyMode {
        self.mode.unwrap_or_default()
    }

    /// What happens about somebody else's keys.
    pub fn on_conflict(&self) -> OnConflict {
        self.on_conflict.unwrap_or_default()
    }
}
