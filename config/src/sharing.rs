//! Sharing of one device between containers.

use crate::{DeviceSelector, MemoryMiB};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Maximum replicas of one GPU.
///
/// The device list of one resource must also fit the kubelet's 4 MiB message limit, which the agent checks for its own
/// GPUs.
pub const MAX_REPLICAS: i32 = 8192;

/// Maximum shares of one GPU under MPS: an MPS server on Volta or newer supports 48 clients (NVIDIA's MPS manual,
/// "Limitations").
pub const MAX_MPS_REPLICAS: i32 = 48;

/// Sharing of a device, a GPU or a MIG device, between containers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!(self.strategy in ['TimeSlicing', 'Mps']) || has(self.replicas)")
    .message("sharing.replicas is required when sharing.strategy is TimeSlicing or Mps").reason(Reason::FieldValueRequired).field_path(".replicas"))]
#[x_kube(validation = Rule::new("self.strategy in ['TimeSlicing', 'Mps'] || !has(self.replicas)")
    .message("sharing.replicas applies only when sharing.strategy is TimeSlicing or Mps; remove it or change the strategy").field_path(".replicas"))]
#[x_kube(validation = Rule::new("self.strategy in ['TimeSlicing', 'Mps'] || !has(self.replicasPerDevice)")
    .message("sharing.replicasPerDevice applies only when sharing.strategy is TimeSlicing or Mps; remove it or change the strategy").field_path(".replicasPerDevice"))]
#[x_kube(validation = Rule::new("self.strategy in ['TimeSlicing', 'Mps'] || !has(self.renameByDefault)")
    .message("sharing.renameByDefault applies only when sharing.strategy is TimeSlicing or Mps; remove it or change the strategy").field_path(".renameByDefault"))]
#[x_kube(validation = Rule::new("self.strategy in ['TimeSlicing', 'Mps'] || !has(self.failRequestsGreaterThanOne)")
    .message("sharing.failRequestsGreaterThanOne applies only when sharing.strategy is TimeSlicing or Mps; remove it or change the strategy").field_path(".failRequestsGreaterThanOne"))]
#[x_kube(validation = Rule::new("self.strategy != 'Mps' || ((!has(self.replicas) || self.replicas <= 48) && (!has(self.replicasPerDevice) || self.replicasPerDevice.all(d, d.replicas <= 48)))")
    .message("sharing.replicas must be at most 48 when sharing.strategy is Mps, because MPS supports 48 clients").field_path(".replicas"))]
#[x_kube(validation = Rule::new("self.strategy == 'Memory' || !has(self.unit)")
    .message("sharing.unit applies only when sharing.strategy is Memory; remove it or change the strategy").field_path(".unit"))]
#[x_kube(validation = Rule::new("self.strategy == 'Memory' || !has(self.placement)")
    .message("sharing.placement applies only when sharing.strategy is Memory; remove it or change the strategy").field_path(".placement"))]
pub struct Sharing {
    /// `None` gives a device to one container. `TimeSlicing` lets containers take turns on it, without isolation of
    /// memory or faults. `Memory` advertises a device in units of its memory, and a container gets units of one device;
    /// nothing enforces the limit. `Mps` runs containers on the device at the same time under an MPS control daemon,
    /// which limits the threads and memory of each process.
    pub strategy: SharingStrategy,

    /// Number of shares of a device. With `TimeSlicing`, the number of containers that take turns on it. With `Mps` (at
    /// most 48), the number of equal parts, of which a container gets as many as it requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 2, max = MAX_REPLICAS))]
    pub replicas: Option<i32>,

    /// Overrides `replicas` for some devices; the first entry that selects a device wins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16))]
    pub replicas_per_device: Option<Vec<DeviceReplicas>>,

    /// Advertises the resource as `NAME.shared`, so that pods can tell shared GPUs from whole ones. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rename_by_default: Option<bool>,

    /// Refuses containers that request more than one replica, because two replicas with `TimeSlicing` do not give twice
    /// the GPU time. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fail_requests_greater_than_one: Option<bool>,

    /// Memory of one unit in `Mi`, `Gi` or `Ti`, at least 64Mi. Default: 1Gi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    #[x_kube(validation = Rule::new(crate::MEMORY_RULE)
        .message("sharing.unit must be a whole number of Mi, Gi or Ti, such as 1Gi or 512Mi"))]
    #[x_kube(validation = Rule::new("!isQuantity(self) || quantity(self).compareTo(quantity('64Mi')) >= 0")
        .message("sharing.unit must be at least 64Mi; smaller units make more shares than the kubelet accepts"))]
    pub unit: Option<String>,

    /// Choice of the device that a container's units come from, with strategy `Memory`. `Packed`: the fullest device
    /// with enough free units, which keeps other devices whole. `Spread`: the emptiest. Default: Packed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
}

/// Strategies for sharing a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(description = "")]
pub enum SharingStrategy {
    /// One container gets the whole device.
    #[default]
    None,
    /// Containers take turns on the device.
    TimeSlicing,
    /// Containers get units of the device's memory.
    Memory,
    /// Containers get shares of the device under an MPS control daemon.
    Mps,
}

/// Choice of the device that a container's units come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(description = "")]
pub enum Placement {
    /// The fullest device with enough free units, which keeps other devices whole.
    #[default]
    Packed,
    /// The emptiest device.
    Spread,
}

/// Number of replicas for some devices of a resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeviceReplicas {
    /// Selects the devices.
    pub devices: DeviceSelector,
    /// Number of shares of each of these devices.
    #[schemars(range(min = 2, max = MAX_REPLICAS))]
    pub replicas: i32,
}

impl Sharing {
    /// Returns the memory of one unit.
    pub fn unit(&self) -> MemoryMiB {
        self.unit
            .as_deref()
            .and_then(MemoryMiB::parse)
            .unwrap_or(MemoryMiB(1024))
    }

    /// Returns the placement in force.
    pub fn placement(&self) -> Placement {
        self.placement.unwrap_or_default()
    }
}
