//! Health of a GPU or MIG device in `GpuNode.status`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

/// Maximum length of each text about a device's health, in characters.
const MAX_HEALTH_TEXT: usize = 512;

/// Health of a device, with its most severe fault if it has one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeviceHealth {
    /// Health state; pods cannot get an unhealthy device.
    pub state: HealthState,
    /// Grade of the fault; absent if the device has none. `Degraded` devices stay healthy, `NoNewWork` devices get no new pods,
    /// and pods on `Broken` devices may be evicted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grade: Option<FaultGrade>,
    /// Fault of the device, as one word for programs; absent if the device has none.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::newer_value::known_or_none"
    )]
    pub reason: Option<FaultReason>,
    /// XID of the fault, if the driver reported one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xid: Option<i32>,
    /// Description of the fault.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_HEALTH_TEXT))]
    pub message: Option<String>,
    /// Action that repairs the device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_HEALTH_TEXT))]
    pub action: Option<String>,
    /// Event that clears the fault, such as `GPU reset, or recovery action None from the driver`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_HEALTH_TEXT))]
    pub waits_for: Option<String>,
    /// Start of the current state, or of the grade `Degraded`; absent if the device has always been healthy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::conditions::optional_time")]
    pub since: Option<Time>,
    /// Start of the grade `Broken`; absent for other grades.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::conditions::optional_time")]
    pub broken_since: Option<Time>,
}

impl DeviceHealth {
    /// Returns true if pods that hold the device may be evicted. A device without a grade is one of an agent that has none.
    pub fn is_broken(&self) -> bool {
        self.state == HealthState::Unhealthy && self.grade.is_none_or(|grade| grade == FaultGrade::Broken)
    }
}

/// Health state of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum HealthState {
    /// Pods can get the device.
    #[default]
    Healthy,
    /// Pods cannot get the device.
    Unhealthy,
    /// A state that this version does not know.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

/// Grades of a fault, mildest first: what follows from it. No fault that an agent finds has the grade `Unknown`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema, IntoStaticStr)]
#[schemars(description = "")]
pub enum FaultGrade {
    /// The device is reported and still allocated.
    Degraded,
    /// The device is not allocated. Pods that hold it stay.
    NoNewWork,
    /// The device is not allocated. Pods that hold it may be evicted.
    Broken,
    /// A grade that this version does not know: no pod is evicted for it.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

/// Faults of a device: constants of the API that programs may compare with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema, IntoStaticStr)]
#[schemars(description = "")]
pub enum FaultReason {
    /// The driver reported an XID.
    Xid,
    /// The GPU has fallen off the bus.
    Lost,
    /// The GPU has uncorrected memory errors that are not repaired.
    UncorrectedEcc,
    /// The GPU must be reset to remap memory rows.
    RowRemapPending,
    /// Remapping memory rows failed.
    RowRemapFailed,
    /// The GPU must be reset to retire memory pages.
    PageRetirementPending,
    /// An NVLink of the GPU is down.
    NvLinkDown,
    /// The MPS control daemon of the device has died.
    MpsDaemonDied,
    /// A driver call for the device fails.
    NotAnswering,
    /// A driver call for the device waits behind a call for another GPU, which hangs.
    DriverBlocked,
    /// The driver asks for a reset, a reboot or a drain.
    RecoveryPending,
    /// The GPU has not joined its NVLink fabric.
    FabricNotReady,
}

impl FaultGrade {
    /// Returns the name in the API.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

impl FaultReason {
    /// Returns the name in the API.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}
