//! Taints as a policy names them.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

/// A taint on every matching node. Kubernetes identifies a taint by key and effect.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!self.key.matches('^([-a-z0-9.]+[.])?(kubernetes|k8s)[.]io/') && !self.key.startsWith('gpunode.dev/')")
    .message("key must not be under kubernetes.io, k8s.io or gpunode.dev, which others own; use a prefix of your own").field_path(".key"))]
pub struct PolicyTaint {
    /// The taint's key, such as `dedicated`.
    #[schemars(length(min = 1, max = 253), regex(pattern = crate::label_map::KEY_PATTERN))]
    pub key: String,

    /// The taint's value. Left out: a taint without a value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63), regex(pattern = crate::label_map::VALUE_PATTERN))]
    pub value: Option<String>,

    /// What happens to pods that do not tolerate the taint.
    pub effect: TaintEffect,
}

/// The effects of a taint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema, IntoStaticStr)]
pub enum TaintEffect {
    /// New pods stay away.
    NoSchedule,
    /// New pods stay away where they can.
    PreferNoSchedule,
    /// New pods stay away and running ones are evicted.
    NoExecute,
}

impl TaintEffect {
    /// The name that Kubernetes uses.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}
