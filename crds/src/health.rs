//! Whether a GPU or a MIG device works, in `GpuNode.status`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

/// Most characters of each text about a device's health.
pub const MAX_HEALTH_TEXT: usize = 512;

/// Whether a device works; where it does not, the gravest of what is wrong with it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeviceHealth {
    /// Whether pods can get the device.
    pub state: HealthState,
    /// What is wrong, in one word for programs; absent where the device is healthy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<FaultReason>,
    /// NVIDIA's number of the error, where the driver reported one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xid: Option<i32>,
    /// What is wrong, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_HEALTH_TEXT))]
    pub message: Option<String>,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_HEALTH_TEXT))]
    pub action: Option<String>,
    /// When the device is healthy again, such as `the GPU was reset`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_HEALTH_TEXT))]
    pub waits_for: Option<String>,
    /// Since when the device is in this state; absent where it has always been healthy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::conditions::optional_time")]
    pub since: Option<Time>,
}

/// Whether pods can get a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum HealthState {
    /// They can.
    #[default]
    Healthy,
    /// They cannot.
    Unhealthy,
}

/// What is wrong with a device: constants of the API that programs may compare with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema, IntoStaticStr)]
pub enum FaultReason {
    /// The driver reported an XID.
    Xid,
    /// The GPU has fallen off the bus.
    Lost,
    /// The GPU has uncorrected memory errors that are not repaired.
    UncorrectedEcc,
    /// Memory rows wait for the reset that replaces them.
    RowRemapPending,
    /// Memory rows could not be replaced.
    RowRemapFailed,
    /// Memory pages wait for the reset that retires them.
    PageRetirementPending,
    /// An NVLink of the GPU is down.
    NvLinkDown,
    /// The MPS control daemon of the device has died.
    MpsDaemonDied,
    /// A call of the driver about the device fails.
    NotAnswering,
    /// The driver asks for a reset or a reboot.
    RecoveryPending,
    /// The driver asks for a reboot: the agent tells it from a reset, the API has [`Self::RecoveryPending`] for both.
    #[schemars(skip)]
    RebootPending,
}

impl FaultReason {
    /// The name in the API.
    pub fn as_str(self) -> &'static str {
        self.published().into()
    }

    /// The reason that the API has for this one.
    #[must_use]
    pub fn published(self) -> Self {
        if self == Self::RebootPending {
            Self::RecoveryPending
        } else {
            self
        }
    }
}
