//! What an agent offers on its node, who holds it, and what waits for them: the parts of `GpuNode.status` that change with
//! the work on the node.

use gpunode_config::SharingStrategy;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Most devices of a resource, most devices that wait, and most MPS control daemons: more than a node has.
pub const MAX_DEVICES: usize = 64;

/// Most characters of what a device waits for.
pub const MAX_WAITING_MESSAGE: usize = 512;

/// Most pods that `status.waiting` names for one device.
pub const MAX_WAITING_PODS: usize = 16;

/// One resource that the agent offers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResourceStatus {
    /// Name of the extended resource.
    #[schemars(length(max = 253))]
    pub name: String,
    /// Shares in the list that the kubelet was given.
    pub capacity: i32,
    /// Those of them that are healthy.
    pub allocatable: i32,
    /// Whether the kubelet has taken the list.
    pub registered: bool,
    /// How its devices are shared; absent where they are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharing: Option<SharingStrategy>,
    /// Whether the name says that its devices are shared: it ends with `.shared`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub renamed: bool,
    /// Free shares that the kubelet was told are unhealthy, so that the scheduler sees no more free than fits on one device.
    /// They come back when something is freed. Left out where there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub withheld: Option<i32>,
    /// The devices in the list, full GPUs first, each ordered by index; at most 64. A device of no resource is not offered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_DEVICES))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["device".into()]))]
    pub devices: Vec<AdvertisedDevice>,
}

/// A device in the list of a resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct AdvertisedDevice {
    /// UUID of the GPU or MIG device.
    #[schemars(length(max = 64))]
    pub device: String,
    /// Its shares: 1 for a whole one, else replicas or units.
    pub shares: i32,
    /// Those of them that are healthy.
    pub healthy: i32,
}

/// A container that holds a device, from the kubelet's `PodResources` API.
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
    /// The resource that it asked for.
    #[schemars(length(max = 253))]
    pub resource: String,
    /// UUID of the GPU or MIG device.
    #[schemars(length(max = 64))]
    pub device: String,
    /// How many shares of the device it holds: 1 for a whole one, else replicas or units.
    pub count: i32,
}

/// A device that has to wait before it changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct WaitingDevice {
    /// UUID of the GPU or MIG device.
    #[schemars(length(max = 64))]
    pub device: String,
    /// What it waits for, in words.
    #[schemars(length(max = MAX_WAITING_MESSAGE))]
    pub message: String,
    /// The pods that hold it, as `NAMESPACE/NAME`, ordered; at most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_WAITING_PODS), inner(length(max = 317)))]
    pub pods: Vec<String>,
}

/// The MPS control daemon of one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct MpsDaemon {
    /// UUID of the GPU or MIG device.
    #[schemars(length(max = 64))]
    pub device: String,
    /// What it does.
    pub state: MpsDaemonState,
}

/// What an MPS control daemon does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum MpsDaemonState {
    /// It has to run and does not answer.
    NotAnswering,
    /// It answers.
    Answering,
    /// It is no longer needed and on its way out.
    Stopping,
}
