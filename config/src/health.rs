//! Rules for driver errors that make a GPU unhealthy, and for its recovery.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Rules that decide which driver errors make a GPU unhealthy, and when it recovers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.ignoreXids) || !has(self.watchXids) || !self.ignoreXids.exists(x, self.watchXids.exists(y, x == y))")
    .message("ignoreXids and watchXids list the same XID; remove it from one of them").field_path(".watchXids"))]
pub struct HealthRules {
    /// Faults other than XIDs that do not count: the GPU is given out, and status does not show them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub ignore: Vec<IgnorableFault>,

    /// XIDs that never make a GPU unhealthy, in addition to those that NVIDIA's catalog says to ignore or that end with
    /// the application.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(range(min = 1, max = 65535)))]
    pub ignore_xids: Vec<i32>,

    /// XIDs that make a GPU unhealthy although they are ignored by default.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(range(min = 1, max = 65535)))]
    pub watch_xids: Vec<i32>,

    /// Condition under which a faulty GPU counts as healthy again. `Verified`: the driver shows that the fault is gone.
    /// `Manual`: a person sets the annotation `gpunode.dev/recovered` on the node. Default: Verified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery: Option<Recovery>,
}

/// Condition under which a faulty GPU counts as healthy again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(description = "")]
pub enum Recovery {
    /// The driver shows that the fault is gone.
    #[default]
    Verified,
    /// A person confirms the recovery.
    Manual,
}

/// Faults that a policy can switch off. A GPU that does not answer, and an MPS daemon that died, serve nobody in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(description = "")]
#[allow(missing_docs, reason = "the names are those of the faults")]
pub enum IgnorableFault {
    UncorrectedEcc,
    RowRemapPending,
    RowRemapFailed,
    PageRetirementPending,
    NvLinkDown,
    RecoveryPending,
    FabricNotReady,
}

impl HealthRules {
    /// Returns the recovery rule in force.
    pub fn recovery(&self) -> Recovery {
        self.recovery.unwrap_or_default()
    }
}
