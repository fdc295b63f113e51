//! `GpuNodePolicy`, which a platform team writes.

use crate::{
    DrainRules, GpuNodePolicyStatus, GpuSelector, NodeSelector, PolicyTaint, RolloutPace, StartupTaint, UnhealthyTaint,
};
use gpunode_config::AgentConfig;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Desired labels, taints and device plugin of a pool of GPU nodes.
///
/// All policies that match a node contribute labels and taints. If two of them disagree, the higher priority wins. The
/// matching policy with the highest priority among those with a `devicePlugin` governs the node's GPUs.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "gpunode.dev",
    version = "v1alpha1",
    kind = "GpuNodePolicy",
    plural = "gpunodepolicies",
    shortname = "gnp",
    status = "GpuNodePolicyStatus",
    derive = "PartialEq",
    doc = "Labels, taints and device plugin of a pool of GPU nodes.",
    printcolumn(name = "Matched", type_ = "integer", json_path = ".status.nodes.matched"),
    printcolumn(name = "Nodes Ready", type_ = "integer", json_path = ".status.nodes.ready"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].status"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].reason"),
    printcolumn(name = "Waiting Node", type_ = "string", json_path = ".status.waiting[0].node", description = "First node where pods or processes delay a change of sharing or MIG; `kubectl gpunode status` shows all of them."),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].message", priority = 1),
    validation = Rule::new("size(self.metadata.name) <= 40")
        .message("metadata.name must have at most 40 characters, because it becomes part of a label key; choose a shorter name")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!(has(self.mode) && self.mode == 'Preview') || (has(oldSelf.mode) && oldSelf.mode == 'Preview')")
    .message("mode cannot change from Enforce or Paused to Preview, because no policy would own what this one wrote; set `mode: Paused` to keep its nodes as they are, run `kubectl gpunode plan -f` to see the effect of a change, or delete the policy").field_path(".mode"))]
#[x_kube(validation = Rule::new("has(self.nodeSelector) || has(self.gpuSelector)")
    .message("nodeSelector or gpuSelector is required, such as `gpuSelector: {products: [\"Tesla-V100*\"]}`; `nodeSelector: {}` selects every node").reason(Reason::FieldValueRequired).field_path(".nodeSelector"))]
pub struct GpuNodePolicySpec {
    /// Priority among the policies that match a node: the highest number wins. Default: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -1_000_000, max = 1_000_000))]
    pub priority: Option<i32>,

    /// `Enforce` writes to the cluster. `Preview` only reports in the status what the policy would change. `Paused`
    /// leaves the nodes that the policy has changed as they are and adds no node; deleting the policy still cleans them
    /// up. Default: Enforce.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<PolicyMode>,

    /// Selects nodes by their labels; `{}` selects every node. If unset, `gpuSelector` alone decides. One field manager owns
    /// the whole block.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<NodeSelector>,

    /// Selects nodes by the GPUs that gpunode found on them. If `nodeSelector` is also set, a node must match both. One
    /// field manager owns the whole block.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_selector: Option<GpuSelector>,

    /// Handling of a label or taint that somebody else owns with another value. `Report` keeps the value and reports a
    /// conflict. `TakeOver` sets the policy's value, and restores the old one when no policy needs it any more.
    /// Default: Report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_conflict: Option<OnConflict>,

    /// Labels for matching nodes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "crate::label_map::label_map")]
    #[x_kube(validation = Rule::new(crate::label_map::key_rule())
        .message("labels must have keys of the form [PREFIX/]NAME: a name of at most 63 letters, digits, '-', '_' and '.', and a DNS name as prefix; at most 253 characters together"))]
    #[x_kube(validation = Rule::new("self.all(key, !key.matches('^([-a-z0-9.]+[.])?(kubernetes|k8s)[.]io/') && !key.startsWith('gpunode.dev/'))")
        .message("labels must not have keys under kubernetes.io, k8s.io or gpunode.dev, which are reserved; use your own prefix"))]
    pub labels: BTreeMap<String, String>,

    /// Taints for matching nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["key".into(), "effect".into()]))]
    pub taints: Vec<PolicyTaint>,

    /// Adds a taint with effect NoSchedule to matching nodes when they start, and after each reboot, until the
    /// resources of `devicePlugin` are allocatable and every GPU has joined its NVLink fabric. It keeps the scheduler
    /// from relying on an outdated view of the node. `{}` uses the defaults. One field manager owns the whole block.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub startup_taint: Option<StartupTaint>,

    /// Adds the taint `gpunode.dev/unhealthy` to matching nodes while they have too few healthy GPUs. `{}` uses the
    /// defaults. One field manager owns the whole block.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unhealthy_taint: Option<UnhealthyTaint>,

    /// Evicts pods that hold a GPU with a fault of the grade `Broken` (`status.gpus[].health.grade` of the GpuNode),
    /// within their PodDisruptionBudgets. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evict_pods: Option<bool>,

    /// Deletes pods of matching nodes that failed with `UnexpectedAdmissionError`, if a controller replaces them. A
    /// node rejects such pods before its GPUs are registered. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delete_rejected_pods: Option<bool>,

    /// Runs gpunode's device plugin on matching nodes with this configuration; `{}` uses the defaults. If unset, the
    /// policy only writes labels and taints. One field manager owns the whole block.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_plugin: Option<AgentConfig>,

    /// Pace of changes to `devicePlugin` or `image`. The rollout updates a few Ready nodes at a time and stops at the
    /// first that fails. It does not wait for nodes that were down or failing before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<RolloutPace>,

    /// Handling of pods that hold GPUs or companions whose sharing, resource, files or MIG layout changes with `devicePlugin`. If unset, the
    /// change waits for them. One field manager owns the whole block.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<DrainRules>,

    /// Image of the agent on matching nodes. If unset, the operator's default image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512), regex(pattern = r"^[A-Za-z0-9][-A-Za-z0-9._:/@]*$"))]
    pub image: Option<String>,
}

/// Effect of a policy on the cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(description = "")]
pub enum PolicyMode {
    /// The policy is in force.
    #[default]
    Enforce,
    /// The status reports what the policy would change.
    Preview,
    /// Nodes that the policy has changed stay as they are, and no node is added.
    Paused,
}

/// Handling of a label or taint that somebody else owns with another value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(description = "")]
pub enum OnConflict {
    /// Keeps the value and reports a conflict.
    #[default]
    Report,
    /// Sets the policy's value, and restores the old one when no policy needs it any more.
    TakeOver,
}

impl GpuNodePolicySpec {
    /// Returns the priority in force.
    pub fn priority(&self) -> i32 {
        self.priority.unwrap_or(0)
    }

    /// Returns the mode in force.
    pub fn mode(&self) -> PolicyMode {
        self.mode.unwrap_or_default()
    }

    /// Returns the handling of conflicts in force.
    pub fn on_conflict(&self) -> OnConflict {
        self.on_conflict.unwrap_or_default()
    }
}
