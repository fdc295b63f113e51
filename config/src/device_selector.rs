//! Which GPUs and MIG devices belong to a resource.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How MIG devices are offered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct MigConfig {
    /// `None`: as if there were no MIG, each GPU is offered whole. `Single`: the MIG devices of a GPU are offered in its
    /// place, under the same name; all devices of a resource must be equal. `Mixed`: MIG devices are offered beside whole
    /// GPUs, as `nvidia.com/mig-PROFILE` unless an entry of `resources` selects them.
    pub strategy: MigStrategy,
}

/// Names of MIG resources, as NVIDIA's device plugin has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum MigStrategy {
    /// Each GPU is offered whole.
    #[default]
    None,
    /// MIG devices are offered as GPUs.
    Single,
    /// MIG devices are offered by their profiles.
    Mixed,
}

/// Selects GPUs and MIG devices of a node. Conditions that are given are ANDed; the values within one are ORed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.indices) || has(self.uuids) || has(self.products) || has(self.architectures) || has(self.minMemory) || has(self.kind) || has(self.migProfiles)")
    .message("devices must name a condition, such as indices, uuids or products; for every GPU, leave devices out of the resource, or set sharing.replicas alone"))]
#[x_kube(validation = Rule::new("!has(self.migProfiles) || !has(self.kind) || self.kind == 'MigDevice'")
    .message("devices.migProfiles selects MIG devices; remove it, or set kind to MigDevice").field_path(".migProfiles"))]
pub struct DeviceSelector {
    /// NVML indices, as `nvidia-smi` shows them; a MIG device has the index of its GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64), inner(range(min = 0, max = 63)))]
    pub indices: Option<Vec<i32>>,

    /// UUIDs of GPUs, such as `GPU-0c1b5e0a-...`, or of MIG devices, `MIG-...`; that of a GPU selects its MIG devices too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 64),
        inner(length(min = 5, max = 64), regex(pattern = r"^(GPU|MIG)-[0-9a-fA-F-]+$"))
    )]
    pub uuids: Option<Vec<String>>,

    /// Globs on the product name in label form, such as `Tesla-V100*`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 16),
        inner(length(min = 1, max = 63), regex(pattern = r"^[-A-Za-z0-9_.*?]+$"))
    )]
    pub products: Option<Vec<String>>,

    /// Architectures, as GPU feature discovery names them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16))]
    pub architectures: Option<Vec<Architecture>>,

    /// Least memory of a device, in `Mi`, `Gi` or `Ti`, such as `30Gi`; for a MIG device its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    #[x_kube(validation = Rule::new(crate::MEMORY_RULE)
        .message("memory needs a unit; write a whole number of Mi, Gi or Ti, such as 16Gi or 512Mi"))]
    pub min_memory: Option<String>,

    /// Whether whole GPUs or MIG devices are selected. Left out: MIG devices where `migProfiles` is given, under strategy
    /// `Single` both, otherwise whole GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<DeviceKind>,

    /// Globs on the profile of a MIG device, such as `1g.10gb` or `*+me`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 16),
        inner(length(min = 1, max = 63), regex(pattern = r"^[-a-z0-9_.+*?]+$"))
    )]
    pub mig_profiles: Option<Vec<String>>,
}

/// The two kinds of devices that containers can be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum DeviceKind {
    /// A whole GPU.
    FullGpu,
    /// A MIG device: a compute instance of a GPU that is divided by MIG.
    MigDevice,
}

/// Architectures by GPU feature discovery's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, reason = "the names are the documentation")]
pub enum Architecture {
    Kepler,
    Maxwell,
    Pascal,
    Volta,
    Turing,
    Ampere,
    AdaLovelace,
    Hopper,
    Blackwell,
    Unknown,
}
