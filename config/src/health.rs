//! Which errors of the driver make a GPU unhealthy, and when it is healthy again.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which errors of the driver make a GPU unhealthy, and when it is healthy again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.ignoreXids) || !has(self.watchXids) || !self.ignoreXids.exists(x, self.watchXids.exists(y, x == y))")
    .message("ignoreXids and watchXids name the same XID; remove it from one of them").field_path(".watchXids"))]
pub struct HealthRules {
    /// XIDs that change nothing, beside those that NVIDIA's catalog tells to ignore or that the end of the application cures.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(range(min = 1, max = 65535)))]
    pub ignore_xids: Vec<i32>,

    /// XIDs that make a GPU unhealthy although they are ignored otherwise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(range(min = 1, max = 65535)))]
    pub watch_xids: Vec<i32>,

    /// When a GPU is healthy again. `Verified`: when the driver shows that nothing is left of what was wrong. `Manual`: when a
    /// person says so by the annotation `gpunode.dev/recovered` of the node. Default: Verified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery: Option<Recovery>,
}

/// When a GPU is healthy again. `Verified`: when the driver shows that nothing is left of what was wrong. `Manual`: when a
/// person says so by the annotation `gpunode.dev/recovered` of the node. Default: Verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Recovery {
    /// When the driver shows that nothing is left of what was wrong.
    #[default]
    Verified,
    /// When a person says so.
    Manual,
}

impl HealthRules {
    /// When a GPU is healthy again.
    pub fn recovery(&self) -> Recovery {
        self.recovery.unwrap_or_default()
    }
}
