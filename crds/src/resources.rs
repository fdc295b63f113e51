//! Resources, their holders and waiting devices: the parts of `GpuNode.status` that change with the pods on the node.

use gpunode_config::SharingStrategy;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Maximum number of devices per resource, of waiting devices, and of MPS control daemons; no node has more.
pub const MAX_DEVICES: usize = 64;

/// Maximum length of a companion's name: a path of 255 characters and a number of files.
pub const MAX_DEVICE_NAME: usize = 280;
/// Most resources of a node in status.
pub const MAX_RESOURCES: usize = 64;
/// Most characters of the device of a holder.
pub const MAX_HOLDER_DEVICE: usize = 64;

/// Maximum length of the message of a waiting device, in characters.
pub const MAX_WAITING_MESSAGE: usize = 512;

/// Maximum number of pods that `status.waiting` lists for one device.
pub const MAX_WAITING_PODS: usize = 16;

/// A resource that the agent advertises.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResourceStatus {
    /// Name of the extended resource.
    #[schemars(length(max = 253))]
    pub name: String,
    /// Number of shares that the agent reports to the kubelet.
    pub capacity: i32,
    /// Number of healthy shares among them.
    pub allocatable: i32,
    /// True if the kubelet has accepted the resource.
    pub registered: bool,
    /// True for a resource of `devicePlugin.companions`, whose devices are files.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub companion: bool,
    /// Sharing strategy of its GPUs and MIG devices; absent if they are not shared, and for companions.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::newer_value::known_or_none"
    )]
    pub sharing: Option<SharingStrategy>,
    /// True if the name marks its devices as shared by ending with `.shared`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub renamed: bool,
    /// Number of free shares reported to the kubelet as unhealthy, so that the scheduler sees no more free shares than
    /// fit on one device. They return when a container frees shares. Absent if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub withheld: Option<i32>,
    /// Devices of the resource, full GPUs first, each kind ordered by index, companions by file; at most 64. A device without a resource is
    /// not advertised.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_DEVICES))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["device".into()]))]
    pub devices: Vec<AdvertisedDevice>,
}

/// A device of a resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct AdvertisedDevice {
    /// UUID of the GPU or MIG device, or id of the companion.
    #[schemars(length(max = MAX_HOLDER_DEVICE))]
    pub device: String,
    /// Files of a companion, such as `/dev/infiniband/uverbs0 and 2 more files`; absent for GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_DEVICE_NAME))]
    pub name: Option<String>,
    /// NUMA node of a companion; absent for GPUs, and where sysfs shows none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    /// Number of shares: 1 for a whole device, otherwise its replicas or units.
    pub shares: i32,
    /// Number of healthy shares among them.
    pub healthy: i32,
}

/// A container that holds a device, as reported by the kubelet's `PodResources` API.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Holder {
    /// Namespace of the pod.
    #[schemars(length(max = 63))]
    pub namespace: String,
    /// Name of the pod.
    #[schemars(length(max = 253))]
    pub pod: String,
    /// Name of the container.
    #[schemars(length(max = 63))]
    pub container: String,
    /// Resource that the container requested.
    #[schemars(length(max = 253))]
    pub resource: String,
    /// UUID of the GPU or MIG device, or id of the companion.
    #[schemars(length(max = 64))]
    pub device: String,
    /// Number of shares of the device that the container holds: 1 for a whole device, otherwise replicas or units.
    pub count: i32,
}

/// A device whose change waits for its holders.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct WaitingDevice {
    /// UUID of the GPU or MIG device, or id of the companion.
    #[schemars(length(max = 64))]
    pub device: String,
    /// Description of what the device waits for.
    #[schemars(length(max = MAX_WAITING_MESSAGE))]
    pub message: String,
    /// Pods that hold the device, as `NAMESPACE/NAME` in order; at most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_WAITING_PODS), inner(length(max = 317)))]
    pub pods: Vec<String>,
    /// True if the device gets another resource, another sharing, or none once its holders end, so that a drain of the
    /// node hastens it. False for a device that another plugin gave out or that has too many time slices.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub switches: bool,
}

/// MPS control daemon of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct MpsDaemon {
    /// UUID of the GPU or MIG device.
    #[schemars(length(max = 64))]
    pub device: String,
    /// State of the daemon.
    pub state: MpsDaemonState,
}

/// State of an MPS control daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum MpsDaemonState {
    /// The daemon should run and does not answer.
    NotAnswering,
    /// The daemon answers.
    Answering,
    /// The daemon is no longer needed and is stopping.
    Stopping,
    /// A state that this version does not know.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}
