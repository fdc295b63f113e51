//! Layouts of MIG instances, by group of GPUs.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Maximum number of groups in `mig.layout`.
pub(crate) const MAX_GROUPS: usize = 16;
/// Maximum number of profiles in a layout; more than any board has.
pub(crate) const MAX_PROFILES: usize = 16;
/// Maximum number of instances of one profile; more than any board has.
pub(crate) const MAX_INSTANCES: i32 = 64;
/// Maximum length of the name of a profile or preset.
pub(crate) const MAX_NAME: usize = 63;

/// Refusal of a group that names no layout, or several.
pub(crate) const ONE_LAYOUT: &str = "a group of mig.layout must set exactly one of instances, preset and disabled";

/// Layout of MIG instances on a group of GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("(has(self.instances) ? 1 : 0) + (has(self.preset) ? 1 : 0) + (has(self.disabled) ? 1 : 0) == 1")
    .message(ONE_LAYOUT))]
pub struct MigGroup {
    /// Selects the GPUs of the group; a GPU must meet every condition that is set. If unset, the group has every GPU that
    /// no earlier group selects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub devices: Option<MigGpuSelector>,

    /// Number of GPU instances of each profile on each GPU, such as `{1g.10gb: 3, 4g.40gb: 1}`. `{}` turns MIG on and creates
    /// no instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxProperties" = MAX_PROFILES, "additionalProperties" = {"type": "integer", "format": "int32", "minimum": 1, "maximum": MAX_INSTANCES}))]
    #[x_kube(validation = Rule::new("self.all(profile, size(profile) <= 63 && profile.matches('^[0-9]+g[.][0-9]+gb([+](me|gfx|me[.]all)|-me)?$'))")
        .message("instances must name profiles of GPU instances, such as 1g.10gb or 1g.10gb+me; `kubectl gpunode mig --board BOARD` lists those of a board"))]
    pub instances: Option<BTreeMap<String, i32>>,

    /// Layout that gpunode computes for each board: `all-balanced`, `all-enabled` (no instance), or `all-PROFILE`, such as
    /// `all-1g.10gb`, for as many instances of the profile as the board allows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_NAME), regex(pattern = r"^all-(balanced|enabled|[0-9]+g\.[0-9]+gb([.+](me|gfx|me\.all)|-me)?)$"))]
    pub preset: Option<String>,

    /// True turns MIG off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self").message("disabled can only be true; leave it out to set instances or preset"))]
    pub disabled: Option<bool>,
}

/// Selects GPUs of a node for a layout. The values of one condition are alternatives.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.indices) || has(self.uuids) || has(self.products) || has(self.deviceIds)")
    .message("devices must set a condition: indices, uuids, products or deviceIds; to select every GPU, leave out devices"))]
pub struct MigGpuSelector {
    /// NVML indices, as in `nvidia-smi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64), inner(range(min = 0, max = 63)))]
    pub indices: Option<Vec<i32>>,

    /// UUIDs of GPUs, such as `GPU-0c1b5e0a-...`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 64),
        inner(length(min = 5, max = 64), regex(pattern = r"^GPU-[0-9a-fA-F-]+$"))
    )]
    pub uuids: Option<Vec<String>>,

    /// Globs for the product name in label form, such as `NVIDIA-A100*`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 16),
        inner(length(min = 1, max = 63), regex(pattern = r"^[-A-Za-z0-9_.*?]+$"))
    )]
    pub products: Option<Vec<String>>,

    /// PCI device and vendor as one number, such as `0x20B210DE`, as in the `device-filter` of NVIDIA's mig-parted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 16),
        inner(length(min = 10, max = 10), regex(pattern = r"^0x[0-9a-fA-F]{8}$"))
    )]
    pub device_ids: Option<Vec<String>>,
}
