//! Taints of a policy.

use crate::NOT_READY_TAINT;
use jiff::SignedDuration;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

/// A taint for every matching node. Kubernetes identifies a taint by key and effect.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!self.key.matches('^([-a-z0-9.]+[.])?(kubernetes|k8s)[.]io/') && !self.key.startsWith('gpunode.dev/')")
    .message("key must not be under kubernetes.io, k8s.io or gpunode.dev, which are reserved; use your own prefix").field_path(".key"))]
pub struct PolicyTaint {
    /// Key of the taint, such as `dedicated`.
    #[schemars(length(min = 1, max = 253), regex(pattern = crate::label_map::KEY_PATTERN))]
    pub key: String,

    /// Value of the taint. If unset, the taint has no value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63), regex(pattern = crate::label_map::VALUE_PATTERN))]
    pub value: Option<String>,

    /// Effect on pods that do not tolerate the taint. `NoSchedule` keeps new pods away. `PreferNoSchedule` keeps new
    /// pods away if possible. `NoExecute` also evicts running pods.
    pub effect: TaintEffect,
}

/// Taint of a node. It may have a key that only gpunode writes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PreviewTaint {
    /// Key of the taint.
    #[schemars(length(max = 316))]
    pub key: String,
    /// Value of the taint; absent if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub value: Option<String>,
    /// Effect of the taint.
    pub effect: TaintEffect,
}

/// Taint of nodes whose GPUs are not allocatable yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
// Atomic: server-side apply turns an emptied granular block into null (structured-merge-diff 6.3.3).
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
#[x_kube(validation = Rule::new("!has(self.key) || self.key == 'gpunode.dev/not-ready' || self.key.startsWith('startup-taint.cluster-autoscaler.kubernetes.io/') || (!self.key.matches('^([-a-z0-9.]+[.])?(kubernetes|k8s)[.]io/') && !self.key.startsWith('gpunode.dev/'))")
    .message("key must be gpunode.dev/not-ready, be under startup-taint.cluster-autoscaler.kubernetes.io, or have your own prefix").field_path(".key"))]
pub struct StartupTaint {
    /// Key of the taint. gpunode also recognizes nodes that join with it (`--register-with-taints`). Default:
    /// gpunode.dev/not-ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = crate::label_map::KEY_PATTERN))]
    pub key: Option<String>,
}

/// The taint `gpunode.dev/unhealthy` of nodes with too few healthy GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
// Atomic: server-side apply turns an emptied granular block into null (structured-merge-diff 6.3.3).
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct UnhealthyTaint {
    /// Effect on pods that do not tolerate the taint. `NoSchedule` keeps new pods away. `PreferNoSchedule` keeps new
    /// pods away if possible. `NoExecute` also evicts running pods, and counts only missing GPUs and those with a fault
    /// of the grade `Broken`. Default: NoSchedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<TaintEffect>,
    /// Time for which a node must have too few healthy GPUs, such as `30s` or `5m`. Default: 30s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 2, max = 16),
        regex(pattern = r"^(0s|([1-9][0-9]{0,3}h)?([1-9][0-9]{0,3}m)?([1-9][0-9]{0,4}s)?)$")
    )]
    pub after: Option<String>,
    /// Minimum number of healthy GPUs. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 64))]
    pub min_healthy: Option<i32>,
}

/// Default of `unhealthyTaint.after`; longer than a driver takes to reset a GPU.
const UNHEALTHY_AFTER: SignedDuration = SignedDuration::from_secs(30);

impl StartupTaint {
    /// Returns the key in force.
    pub fn key(&self) -> &str {
        self.key.as_deref().unwrap_or(NOT_READY_TAINT)
    }
}

impl UnhealthyTaint {
    /// Returns the effect in force.
    pub fn effect(&self) -> TaintEffect {
        self.effect.unwrap_or(TaintEffect::NoSchedule)
    }

    /// Returns the delay in force. A delay that cannot be parsed, which the CRD refuses, counts as unset.
    pub fn after(&self) -> SignedDuration {
        let given = self.after.as_ref().and_then(|text| text.parse::<SignedDuration>().ok());
        given.filter(|after| !after.is_negative()).unwrap_or(UNHEALTHY_AFTER)
    }

    /// Returns the minimum number of healthy GPUs in force.
    pub fn min_healthy(&self) -> usize {
        self.min_healthy
            .and_then(|least| usize::try_from(least).ok())
            .unwrap_or(1)
    }
}

/// Effect on pods that do not tolerate the taint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema, IntoStaticStr)]
#[schemars(description = "")]
pub enum TaintEffect {
    /// New pods stay away.
    NoSchedule,
    /// New pods stay away if possible.
    PreferNoSchedule,
    /// New pods stay away, and running pods are evicted.
    NoExecute,
}

impl TaintEffect {
    /// Returns the name in the Kubernetes API.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}
