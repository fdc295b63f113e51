//! How one device is shared.

use crate::{DeviceSelector, MemoryMiB};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Most replicas of one GPU that a configuration can ask for.
///
/// The list of one resource must also fit the kubelet's 4 MiB message limit, which the agent checks for its own GPUs.
pub const MAX_REPLICAS: i32 = 8192;

/// Most shares of one GPU under MPS: an MPS server of Volta and newer takes 48 clients (NVIDIA's MPS manual, "Limitations").
pub const MAX_MPS_REPLICAS: i32 = 48;

/// How one device, a GPU or a MIG device, is shared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!(self.strategy in ['TimeSlicing', 'Mps']) || has(self.replicas)")
    .message("sharing.replicas is required when sharing.strategy is TimeSlicing or Mps").reason(Reason::FieldValueRequired).field_path(".replicas"))]
#[x_kube(validation = Rule::new("self.strategy in ['TimeSlicing', 'Mps'] || !has(self.replicas)")
    .message("sharing.replicas has a meaning only when sharing.strategy is TimeSlicing or Mps; remove it or set the strategy").field_path(".replicas"))]
#[x_kube(validation = Rule::new("self.strategy in ['TimeSlicing', 'Mps'] || !has(self.replicasPerDevice)")
    .message("sharing.replicasPerDevice has a meaning only when sharing.strategy is TimeSlicing or Mps; remove it or set the strategy").field_path(".replicasPerDevice"))]
#[x_kube(validation = Rule::new("self.strategy in ['TimeSlicing', 'Mps'] || !has(self.renameByDefault)")
    .message("sharing.renameByDefault has a meaning only when sharing.strategy is TimeSlicing or Mps; remove it or set the strategy").field_path(".renameByDefault"))]
#[x_kube(validation = Rule::new("self.strategy in ['TimeSlicing', 'Mps'] || !has(self.failRequestsGreaterThanOne)")
    .message("sharing.failRequestsGreaterThanOne has a meaning only when sharing.strategy is TimeSlicing or Mps; remove it or set the strategy").field_path(".failRequestsGreaterThanOne"))]
#[x_kube(validation = Rule::new("self.strategy != 'Mps' || ((!has(self.replicas) || self.replicas <= 48) && (!has(self.replicasPerDevice) || self.replicasPerDevice.all(d, d.replicas <= 48)))")
    .message("MPS takes at most 48 clients, so sharing.replicas is at most 48 when sharing.strategy is Mps").field_path(".replicas"))]
#[x_kube(validation = Rule::new("self.strategy == 'Memory' || !has(self.unit)")
    .message("sharing.unit has a meaning only when sharing.strategy is Memory; remove it or set the strategy").field_path(".unit"))]
#[x_kube(validation = Rule::new("self.strategy == 'Memory' || !has(self.placement)")
    .message("sharing.placement has a meaning only when sharing.strategy is Memory; remove it or set the strategy").field_path(".placement"))]
pub struct Sharing {
    /// `None`: one container holds a device alone. `TimeSlicing`: containers take turns on it; neither memory nor faults
    /// are isolated. `Memory`: a device is offered in units of its memory, and each container gets units of one device;
    /// nothing enforces them. `Mps`: containers run on it at the same time under an MPS control daemon, which limits
    /// threads and memory of each process.
    pub strategy: SharingStrategy,

    /// How many shares one device has: with `TimeSlicing` how many containers take turns on it, with `Mps` (at most 48) of
    /// how many equal parts a container gets as many as it asks for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 2, max = MAX_REPLICAS))]
    pub replicas: Option<i32>,

    /// Other numbers of replicas for some of the devices; the first entry that selects a device wins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16))]
    pub replicas_per_device: Option<Vec<DeviceReplicas>>,

    /// Offer the resource as `NAME.shared`, so that pods tell shared GPUs from whole ones. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rename_by_default: Option<bool>,

    /// Refuse a container that asks for more than one replica: with `TimeSlicing` two replicas do not give twice the GPU.
    /// Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fail_requests_greater_than_one: Option<bool>,

    /// The memory that one unit stands for, in `Mi`, `Gi` or `Ti`, at least 64Mi. Default: 1Gi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    #[x_kube(validation = Rule::new(crate::MEMORY_RULE)
        .message("sharing.unit must be a whole number of Mi, Gi or Ti, such as 1Gi or 512Mi"))]
    #[x_kube(validation = Rule::new("!isQuantity(self) || quantity(self).compareTo(quantity('64Mi')) >= 0")
        .message("sharing.unit must be at least 64Mi: a unit of a few MiB makes more shares than a kubelet takes"))]
    pub unit: Option<String>,

    /// Which device a container's units come from. `Packed`: the fullest on which they fit. `Spread`: the emptiest.
    /// Default: Packed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
}

/// The ways a device can be shared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SharingStrategy {
    /// One container holds a device alone.
    #[default]
    None,
    /// Containers take turns on a device.
    TimeSlicing,
    /// Containers get units of a device's memory.
    Memory,
    /// Containers get shares of a device under an MPS control daemon.
    Mps,
}

/// Which device a container's units come from, with strategy `Memory`. `Packed`: the fullest on which they fit, which keeps
/// the others whole. `Spread`: the emptiest. Default: Packed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Placement {
    /// The fullest on which they fit, which keeps the others whole.
    #[default]
    Packed,
    /// The emptiest.
    Spread,
}

/// A number of replicas for some devices of a resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeviceReplicas {
    /// The devices.
    pub devices: DeviceSelector,
    /// How many shares each of them has.
    #[schemars(range(min = 2, max = MAX_REPLICAS))]
    pub replicas: i32,
}

impl Sharing {
    /// The memory that one unit stands for.
    pub fn unit(&self) -> MemoryMiB {
        self.unit
            .as_deref()
            .and_then(MemoryMiB::parse)
            .unwrap_or(MemoryMiB(1024))
    }

    /// Which device a container's units come from.
    pub fn placement(&self) -> Placement {
        self.placement.unwrap_or_default()
    }
}
