//! Hardware in `GpuNode.status.gpus`: GPUs, their MIG devices and the links between them. No number is negative; the schema
//! has the signed types that Kubernetes asks for.

use crate::{DeviceHealth, MigStatus};
use gpunode_config::Architecture;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A physical GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct GpuDevice {
    /// NVML index, as in `nvidia-smi`.
    #[schemars(with = "i32")]
    pub index: u32,
    /// UUID, such as `GPU-0c1b5e0a-...`.
    #[schemars(length(max = 64))]
    pub uuid: String,
    /// Product name in label form, such as `Tesla-V100-SXM2-32GB`.
    #[schemars(length(max = 63))]
    pub product: String,
    /// Memory in MiB.
    #[serde(rename = "memoryMiB")]
    #[schemars(with = "i64")]
    pub memory_mib: u64,
    /// Architecture, with the name of GPU feature discovery.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::newer_value::known_or_none"
    )]
    pub architecture: Option<Architecture>,
    /// CUDA compute capability, such as `7.0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub compute_capability: Option<String>,
    /// PCI bus ID in sysfs form, such as `0000:07:00.0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub pci_bus_id: Option<String>,
    /// PCI device and vendor as one number, such as `0x20B210DE`, as `nvidia-smi -q` writes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 10))]
    pub pci_device_id: Option<String>,
    /// NUMA node of the GPU; absent if the machine reports none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i32>")]
    pub numa_node: Option<u32>,
    /// Purpose of the GPU by its PCI class; absent if sysfs does not show the class.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::newer_value::known_or_none"
    )]
    pub mode: Option<GpuMode>,
    /// NVLink fabric that the GPU belongs to; absent if no fabric reaches beyond the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fabric: Option<Fabric>,
    /// Health of the device; absent until the agent has checked it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<DeviceHealth>,
    /// Last XID that the driver reported for the GPU, also one that does not make it unhealthy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_xid: Option<LastXid>,
    /// Time since which the GPU, or a working driver for it, has been missing. A missing GPU stays in the list for 15
    /// minutes, so that a driver upgrade does not remove the node from its policies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::conditions::optional_time")]
    pub missing_since: Option<Time>,
    /// MIG mode; absent if the GPU does not support MIG.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::newer_value::known_or_none"
    )]
    pub mig_mode: Option<MigMode>,
    /// Progress of the GPU towards the layout of the configuration; absent if the configuration has none for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig: Option<MigStatus>,
    /// MIG devices of the GPU, ordered by instance.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["uuid".into()]))]
    pub mig_devices: Vec<MigDevice>,
    /// Links to the other GPUs of the node, ordered by index.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub links: Vec<GpuLink>,
}

/// An XID that the driver reported.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct LastXid {
    /// Number of the XID.
    pub xid: i32,
    /// Meaning of the XID in NVIDIA's catalog; absent if the catalog does not have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub message: Option<String>,
    /// Time of the report; of several within a minute, the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::conditions::optional_time")]
    pub time: Option<Time>,
}

/// A MIG device: a compute instance of a GPU in MIG mode.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct MigDevice {
    /// UUID, such as `MIG-6c1d3b2e-...`.
    #[schemars(length(max = 64))]
    pub uuid: String,
    /// Profile, such as `1g.10gb`.
    #[schemars(length(max = 63))]
    pub profile: String,
    /// ID of the GPU instance. IDs are reused when instances are recreated.
    #[schemars(with = "i32")]
    pub gpu_instance: u32,
    /// ID of the compute instance within the GPU instance.
    #[schemars(with = "i32")]
    pub compute_instance: u32,
    /// Memory in MiB.
    #[serde(rename = "memoryMiB")]
    #[schemars(with = "i64")]
    pub memory_mib: u64,
    /// Health of the device; absent until the agent has checked it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<DeviceHealth>,
    /// Number of streaming multiprocessors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i32>")]
    pub multiprocessors: Option<u32>,
    /// Slices of the GPU that the device has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slices: Option<MigSlices>,
    /// Engines of the device; the compute instances of one GPU instance share them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engines: Option<MigEngines>,
}

/// Numbers of GPU slices of a MIG device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct MigSlices {
    /// Slices of its GPU instance.
    #[schemars(with = "i32")]
    pub gpu_instance: u32,
    /// Slices of its compute instance.
    #[schemars(with = "i32")]
    pub compute_instance: u32,
}

/// Numbers of engines of a MIG device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct MigEngines {
    /// Copy engines.
    #[schemars(with = "i32")]
    pub copy: u32,
    /// Video decoders.
    #[schemars(with = "i32")]
    pub decoder: u32,
    /// Video encoders.
    #[schemars(with = "i32")]
    pub encoder: u32,
    /// JPEG decoders.
    #[schemars(with = "i32")]
    pub jpeg: u32,
    /// Optical flow accelerators.
    #[schemars(with = "i32")]
    pub ofa: u32,
}

/// Purpose of a GPU by its PCI class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(description = "")]
pub enum GpuMode {
    /// A 3D controller (0x030200).
    Compute,
    /// A VGA controller (0x030000).
    Graphics,
}

/// Host driver of virtual GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Vgpu {
    /// Version, such as `550.54.16`; absent if the driver does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub host_driver_version: Option<String>,
    /// Branch, such as `r550_40`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub host_driver_branch: Option<String>,
}

/// Place of a GPU in an NVLink fabric that spans nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Fabric {
    /// UUID of the fabric.
    #[schemars(length(max = 36))]
    pub cluster_uuid: String,
    /// ID of the part of the fabric within which GPUs can reach each other.
    pub clique_id: i64,
}

/// MIG mode of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(description = "")]
pub enum MigMode {
    /// The GPU is divided, or can be.
    Enabled,
    /// The GPU is whole.
    Disabled,
}

/// Connection between two GPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct GpuLink {
    /// Index of the other GPU.
    #[schemars(with = "i32")]
    pub peer: u32,
    /// Nearest common ancestor on the PCI bus, in the terms of `nvidia-smi topo -m`.
    pub level: LinkLevel,
    /// Number of active NVLinks to the other GPU, direct or through NVSwitch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i32>")]
    pub nvlinks: Option<u32>,
}

/// Levels of the PCI topology in the terms of `nvidia-smi topo -m`, nearest first.
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
    /// The driver does not report the level, or this version does not know it.
    #[serde(other)]
    Unknown,
}
