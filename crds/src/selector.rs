//! Selectors of a policy's nodes: a bounded copy of Kubernetes' LabelSelector, and a selector of GPUs.
//!
//! The standard type has no bounds, so that any CEL rule beside it exceeds the API server's cost budget.

use gpunode_config::Architecture;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Selects nodes by their labels; a node must meet all conditions. `{}` selects every node.
///
/// Labels that gpunode wrote are ignored, so that no policy can select or deselect nodes by its own effect.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
// Atomic: server-side apply turns an emptied granular block into null (structured-merge-diff 6.3.3).
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct NodeSelector {
    /// Labels that the node must have, with exactly these values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "crate::label_map::label_map")]
    #[x_kube(validation = Rule::new(crate::label_map::key_rule())
        .message("matchLabels must have keys of the form [PREFIX/]NAME: a name of at most 63 letters, digits, '-', '_' and '.', and a DNS name as prefix; at most 253 characters together"))]
    pub match_labels: BTreeMap<String, String>,

    /// Further conditions on labels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub match_expressions: Vec<NodeSelectorRequirement>,
}

/// A condition on a label.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.operator in ['In', 'NotIn'] ? (has(self.values) && size(self.values) > 0) : (!has(self.values) || size(self.values) == 0)")
    .message("values is required for the operators In and NotIn, and must be empty for Exists and DoesNotExist").field_path(".values"))]
pub struct NodeSelectorRequirement {
    /// Key of the label.
    #[schemars(length(min = 1, max = 253), regex(pattern = crate::label_map::KEY_PATTERN))]
    pub key: String,

    /// Relation between the label and `values`.
    pub operator: SelectorOperator,

    /// Values for `In` and `NotIn`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 63), regex(pattern = crate::label_map::VALUE_PATTERN)))]
    pub values: Vec<String>,
}

/// Operators of a LabelSelector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SelectorOperator {
    /// The label has one of the values.
    In,
    /// The label is absent or has none of the values.
    NotIn,
    /// The label exists.
    Exists,
    /// The label is absent.
    DoesNotExist,
}

/// Selects nodes by the GPUs that gpunode found on them, which `kubectl get gpunode NODE -o yaml` shows in
/// `status.gpus`.
///
/// A node matches if at least `minCount` of its GPUs meet every condition that is set. Sharing has no influence, and a
/// GPU that is missing for less than 15 minutes, as during a driver upgrade, still counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
// Atomic: server-side apply turns an emptied granular block into null (structured-merge-diff 6.3.3).
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
#[x_kube(validation = Rule::new("has(self.products) || has(self.architectures) || has(self.minMemory) || has(self.minCount)")
    .message("gpuSelector must set a condition, such as `products: [\"Tesla-V100*\"]`; `minCount: 1` selects every node with a GPU"))]
pub struct GpuSelector {
    /// Globs for the product name in label form, such as `Tesla-V100*`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 32),
        inner(length(min = 1, max = 63), regex(pattern = r"^[-A-Za-z0-9_.*?]+$"))
    )]
    pub products: Option<Vec<String>>,

    /// Architectures, with the names of GPU feature discovery, such as `volta`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16))]
    pub architectures: Option<Vec<Architecture>>,

    /// Minimum memory of a GPU in `Mi`, `Gi` or `Ti`, such as `30Gi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    #[x_kube(validation = Rule::new(gpunode_config::MEMORY_RULE)
        .message("memory needs a unit; write a whole number of Mi, Gi or Ti, such as 16Gi or 512Mi"))]
    pub min_memory: Option<String>,

    /// Minimum number of such GPUs on the node. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 64))]
    pub min_count: Option<i32>,
}
