//! Report of what containers use of the GPUs that they hold. An agent answers it to `/usage`; it is part of no object.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};

/// Maximum number of entries of a report.
pub const MAX_USAGE_ENTRIES: usize = 512;

/// Report of what the containers of one node use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct UsageReport {
    /// Time of the figures; none without figures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_at: Option<Time>,
    /// Time without use, in seconds, from which a container counts as idle; none if none does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_after_seconds: Option<u64>,
    /// Reason why there are no figures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Containers that hold devices, once for each device; by namespace, pod, container and device.
    pub containers: Vec<ContainerUsage>,
    /// Number of further entries, beyond [`MAX_USAGE_ENTRIES`].
    #[serde(skip_serializing_if = "is_zero")]
    pub omitted: usize,
}

/// Use of one device by one container, beside what the container was given.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerUsage {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub pod: String,
    /// Name of the container.
    pub container: String,
    /// UUID of the device.
    pub device: String,
    /// Index of the device, such as `3`, or `3:1` for a MIG device.
    pub gpu: String,
    /// Number of its processes on the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes: Option<usize>,
    /// Memory of these processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_used_bytes: Option<u64>,
    /// Memory that the container was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_given_bytes: Option<u64>,
    /// Part of the time in which its processes used the streaming multiprocessors (SM).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_used_ratio: Option<f64>,
    /// Part of the SMs, or of their time, that the container was given; none where sharing says nothing of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_given_ratio: Option<f64>,
    /// Time since the container was last seen to use the device, at most since the agent started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_seconds: Option<u64>,
    /// Reason for figures that are missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

impl UsageReport {
    /// Returns true for a container that counts as idle.
    pub fn is_idle(&self, container: &ContainerUsage) -> bool {
        let times = container.idle_seconds.zip(self.idle_after_seconds);
        times.is_some_and(|(idle, limit)| idle >= limit)
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}
