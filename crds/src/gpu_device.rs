//! The hardware in `GpuNode.status.gpus`: GPUs, their MIG devices and the links between them.

use crate::DeviceHealth;
use gpunode_config::Architecture;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One physical GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct GpuDevice {
    /// NVML index, as `nvidia-smi` shows it.
    pub index: i32,
    /// UUID, such as `GPU-0c1b5e0a-...`.
    #[schemars(length(max = 64))]
    pub uuid: String,
    /// Product name in label form, such as `Tesla-V100-SXM2-32GB`.
    #[schemars(length(max = 63))]
    pub product: String,
    /// Memory in MiB.
    #[serde(rename = "memoryMiB")]
    pub memory_mib: i64,
    /// Architecture, as GPU feature discovery names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub architecture: Option<Architecture>,
    /// CUDA compute capability, such as `7.0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub compute_capability: Option<String>,
    /// PCI bus id in sysfs form, such as `0000:07:00.0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub pci_bus_id: Option<String>,
    /// NUMA node that the GPU hangs on; absent where the machine does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<i32>,
    /// What its PCI class says it is for; absent where sysfs does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<GpuMode>,
    /// The NVLink fabric that it belongs to; absent where there is none that reaches beyond the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fabric: Option<Fabric>,
    /// Whether it works; absent where the agent has not looked yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<DeviceHealth>,
    /// Since when it has not been seen, or the driver not answered. It stays in the list for 15 minutes, so that the
    /// upgrade of a driver does not take a node from its policies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::conditions::optional_time")]
    pub missing_since: Option<Time>,
    /// Whether MIG is on; absent where the GPU has no MIG.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig_mode: Option<MigMode>,
    /// The MIG devices of the GPU, ordered by instance.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["uuid".into()]))]
    pub mig_devices: Vec<MigDevice>,
    /// How the GPU reaches each other GPU of the node, ordered by index.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub links: Vec<GpuLink>,
}

/// A compute instance of a GPU that is divided by MIG.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct MigDevice {
    /// UUID, such as `MIG-6c1d3b2e-...`.
    #[schemars(length(max = 64))]
    pub uuid: String,
    /// Profile, such as `1g.10gb`.
    #[schemars(length(max = 63))]
    pub profile: String,
    /// Id of the GPU instance; ids are used again when instances are made anew.
    pub gpu_instance: i32,
    /// Id of the compute instance within it.
    pub compute_instance: i32,
    /// Memory in MiB.
    #[serde(rename = "memoryMiB")]
    pub memory_mib: i64,
    /// Whether it works; absent where the agent has not looked yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<DeviceHealth>,
    /// Streaming multiprocessors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub multiprocessors: Option<i32>,
    /// Slices of the GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slices: Option<MigSlices>,
    /// Engines, which the compute instances of a GPU instance share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engines: Option<MigEngines>,
}

/// How many slices of a GPU a MIG device has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct MigSlices {
    /// Those of its GPU instance.
    pub gpu_instance: i32,
    /// Those of its compute instance.
    pub compute_instance: i32,
}

/// How many engines of each kind a MIG device has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct MigEngines {
    /// Copy engines.
    pub copy: i32,
    /// Video decoders.
    pub decoder: i32,
    /// Video encoders.
    pub encoder: i32,
    /// JPEG decoders.
    pub jpeg: i32,
    /// Optical flow accelerators.
    pub ofa: i32,
}

/// What a GPU is for, by its PCI class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum GpuMode {
    /// A 3D controller (0x030200).
    Compute,
    /// A VGA controller (0x030000).
    Graphics,
}

/// The driver of the machine that lends virtual GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Vgpu {
    /// Its version, such as `550.54.16`; absent where it does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub host_driver_version: Option<String>,
    /// Its branch, such as `r550_40`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub host_driver_branch: Option<String>,
}

/// A place in an NVLink fabric that spans nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Fabric {
    /// UUID of the fabric.
    #[schemars(length(max = 36))]
    pub cluster_uuid: String,
    /// The part of the fabric within which GPUs reach one another.
    pub clique_id: i64,
}

/// Whether MIG is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum MigMode {
    /// The GPU is divided or can be.
    Enabled,
    /// The GPU is whole.
    Disabled,
}

/// The way from one GPU to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct GpuLink {
    /// Index of the other GPU.
    pub peer: i32,
    /// Nearest common ancestor on the PCI bus, in the words of `nvidia-smi topo -m`.
    pub level: LinkLevel,
    /// Active NVLinks to it, directly or through NVSwitch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvlinks: Option<i32>,
}

/// Levels of the PCI topology in the words of `nvidia-smi topo -m`, nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum LinkLevel {
    /// On the same board.
    Internal,
    /// One PCIe switch.
    Pix,
    /// Several PCIe switches.
    Pxb,
    /// A PCIe host bridge.
    Phb,
    /// Host bridges of one NUMA node.
    Node,
    /// Between NUMA nodes.
    Sys,
    /// The driver does not say.
    Unknown,
}
