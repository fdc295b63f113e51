//! Selection of the GPUs and MIG devices of a resource.

use crate::mig_layout::{MAX_GROUPS, MigGroup};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Refusal of a layout whose instances nobody could get.
pub(crate) const LAYOUT_WITHOUT_STRATEGY: &str = "mig.layout creates instances, which mig.strategy None does not advertise; set \
    mig.strategy to Single or Mixed, or disabled in each group";

/// Use of MIG devices.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.strategy != 'None' || !has(self.layout) || self.layout.all(g, has(g.disabled))")
    .message(LAYOUT_WITHOUT_STRATEGY).field_path(".layout"))]
pub struct MigConfig {
    /// `None` ignores MIG and advertises each GPU whole. `Single` advertises the MIG devices of a GPU in its place,
    /// under the same name; all devices of a resource must be equal. `Mixed` advertises MIG devices beside whole GPUs,
    /// as `nvidia.com/mig-PROFILE` unless an entry of `resources` selects them.
    pub strategy: MigStrategy,

    /// MIG mode and GPU instances by group of GPUs. A GPU belongs to the first group that selects it; a GPU of no group
    /// stays as it is. gpunode changes a GPU only once no pod and no process uses what has to go.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_GROUPS))]
    pub layout: Vec<MigGroup>,
}

/// MIG strategies, with the names of NVIDIA's device plugin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(description = "")]
pub enum MigStrategy {
    /// Each GPU is advertised whole.
    #[default]
    None,
    /// MIG devices are advertised in place of their GPU, under its name.
    Single,
    /// MIG devices are advertised by profile, beside whole GPUs.
    Mixed,
}

/// Selects GPUs and MIG devices of a node. A device must meet every condition that is set; the values of one condition
/// are alternatives.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.indices) || has(self.uuids) || has(self.products) || has(self.architectures) || has(self.minMemory) || has(self.kind) || has(self.migProfiles)")
    .message("devices must set a condition, such as indices, uuids or products; to select every GPU, leave out devices, or set only sharing.replicas"))]
#[x_kube(validation = Rule::new("!has(self.migProfiles) || !has(self.kind) || self.kind == 'MigDevice'")
    .message("devices.migProfiles selects MIG devices; remove it or set kind to MigDevice").field_path(".migProfiles"))]
pub struct DeviceSelector {
    /// NVML indices, as in `nvidia-smi`. A MIG device has the index of its GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64), inner(range(min = 0, max = 63)))]
    pub indices: Option<Vec<i32>>,

    /// UUIDs of GPUs, such as `GPU-0c1b5e0a-...`, or of MIG devices, `MIG-...`. The UUID of a GPU also selects its MIG
    /// devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 64),
        inner(
            length(min = 5, max = 64),
            regex(pattern = r"^((GPU|MIG)-[0-9a-fA-F-]+|MIG-GPU-[0-9a-fA-F-]+/[0-9]+/[0-9]+)$")
        )
    )]
    pub uuids: Option<Vec<String>>,

    /// Globs for the product name in label form, such as `Tesla-V100*`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 16),
        inner(length(min = 1, max = 63), regex(pattern = r"^[-A-Za-z0-9_.*?]+$"))
    )]
    pub products: Option<Vec<String>>,

    /// Architectures, with the names of GPU feature discovery.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16))]
    pub architectures: Option<Vec<Architecture>>,

    /// Minimum memory of a device in `Mi`, `Gi` or `Ti`, such as `30Gi`. For a MIG device, its own memory counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    #[x_kube(validation = Rule::new(crate::MEMORY_RULE)
        .message("memory needs a unit; write a whole number of Mi, Gi or Ti, such as 16Gi or 512Mi"))]
    pub min_memory: Option<String>,

    /// Kind of device to select. If unset: MIG devices if `migProfiles` is set, both kinds under strategy `Single`,
    /// otherwise whole GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<DeviceKind>,

    /// Globs for the profile of a MIG device, such as `1g.10gb` or `*+me`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 16),
        inner(length(min = 1, max = 63), regex(pattern = r"^[-a-z0-9_.+*?]+$"))
    )]
    pub mig_profiles: Option<Vec<String>>,
}

/// Kinds of devices that a container can get.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[schemars(description = "")]
pub enum DeviceKind {
    /// A whole GPU.
    FullGpu,
    /// A MIG device: a compute instance of a GPU in MIG mode.
    MigDevice,
}

/// Architectures, with the names of GPU feature discovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(description = "")]
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
    Rubin,
    Unknown,
}
