//! The hardware in `GpuNode.status.gpus`: GPUs, their MIG devices and the links between them.

use gpunode_config::Architecture;
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
