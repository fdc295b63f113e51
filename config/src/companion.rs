//! Companions: resources whose devices are files of the node, such as RDMA interfaces and FPGA cards.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Maximum number of companions in a configuration.
pub(crate) const MAX_COMPANIONS: usize = 16;
/// Maximum number of globs of a companion.
pub(crate) const MAX_PATHS: usize = 16;
/// Maximum length of a glob, and of a file that it matches. Longer paths do not fit into status.
pub const MAX_COMPANION_PATH: usize = 255;
/// Maximum number of shares of a companion; with more, the list of one device alone comes near the kubelet's limit.
pub(crate) const MAX_SHARES: i32 = 8192;
/// Permissions of a device node if the configuration names none.
const DEFAULT_PERMISSIONS: &str = "rw";
/// Maximum length of a variable's name.
pub(crate) const MAX_VARIABLE: usize = 63;

/// Refusal of a glob that is no absolute path in its shortest form.
pub(crate) const GLOB_RULE: &str = "must be an absolute path such as /dev/infiniband/*, of letters, digits and -_.:@+=~, with the \
    wildcards * and ? within a name, and without .., . and **";
/// Refusal of a variable that decides how programs of a container run.
pub(crate) const VARIABLE_RULE: &str = "must be the name of a variable, such as RDMA_DEVICES, that is not PATH and does not begin \
    with LD_, NVIDIA_ or CUDA_";
/// Refusal of a name in two lists.
pub(crate) const RESOURCE_TWICE: &str = "a companion must not have the name of another resource";
/// Refusal of a variable of two companions.
pub(crate) const VARIABLE_TWICE: &str =
    "two companions must not set the same variable: a container that gets both would lose one";

/// Resource whose devices are files of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CompanionConfig {
    /// Name of the extended resource that pods request, such as `rdma/hca`.
    #[schemars(length(min = 3, max = 253))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$')")
        .message("resource must be DOMAIN/NAME, such as rdma/hca: a domain in lower case, then at most 63 letters, digits, '-', '_' and '.'"))]
    #[x_kube(validation = Rule::new("!self.contains('kubernetes.io/') && !self.startsWith('requests.') && !self.startsWith('nvidia.com/mig-') && self.indexOf('/') <= 244")
        .message("resource must not be under kubernetes.io, start with \"requests.\" or \"nvidia.com/mig-\", or have a domain of more than 244 characters"))]
    pub resource: String,

    /// Globs for the files, such as `/dev/infiniband/*`. `*` and `?` stand for characters within a name. Each must be in a folder
    /// of the operator's flag `--companion-roots`.
    #[schemars(length(min = 1, max = MAX_PATHS), inner(length(min = 2, max = MAX_COMPANION_PATH)))]
    #[x_kube(validation = Rule::new("self.all(p, p.matches('^(/[-A-Za-z0-9_.:@+=~*?]+)+$') && !p.contains('**') && !p.matches('/[.][.]?(/|$)'))")
        .message("paths must be absolute paths such as /dev/infiniband/*, of letters, digits and -_.:@+=~, with the wildcards * and ? within a name, and without .., . and **"))]
    pub paths: Vec<String>,

    /// Files that make up one device. `Each`: every file is a device. `Together`: all files are one device. `PciSlot`: the files of
    /// one PCI card, by their slot in sysfs, are a device. Default: Each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<CompanionGroup>,

    /// Number of containers that can hold a device at the same time. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = MAX_SHARES))]
    pub shares: Option<i32>,

    /// Gives containers their devices: as device nodes, as mounts, or named in a variable. If unset: as device nodes, to read and
    /// write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inject: Option<CompanionInjection>,
}

/// Files that make up one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(description = "")]
pub enum CompanionGroup {
    /// Every file is a device.
    #[default]
    Each,
    /// All files are one device.
    Together,
    /// The files of one PCI card are a device.
    PciSlot,
}

/// Ways in which a container gets its companions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
#[x_kube(validation = Rule::new("has(self.deviceNodes) || has(self.mounts) || has(self.env)")
    .message("inject must set deviceNodes, mounts or env; leave it out for device nodes to read and write"))]
pub struct CompanionInjection {
    /// Gives the files as device nodes, at the same paths. A file that is no device is refused then. `{}` uses the defaults.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_nodes: Option<CompanionDeviceNodes>,

    /// Mounts the files at the same paths. `{}` uses the defaults.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mounts: Option<CompanionMounts>,

    /// Names the devices in an environment variable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<CompanionVariable>,
}

/// Device nodes of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct CompanionDeviceNodes {
    /// Permissions: `r` to read, `w` to write and `m` to make the node, in this order. Default: rw.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 3), regex(pattern = r"^r?w?m?$"))]
    pub permissions: Option<String>,
}

/// Mounts of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct CompanionMounts {
    /// True keeps containers from writing. Default: true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
}

/// Environment variable of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CompanionVariable {
    /// Name of the variable, such as `RDMA_DEVICES`.
    #[schemars(length(min = 1, max = MAX_VARIABLE))]
    #[x_kube(validation = Rule::new("self.matches('^[A-Za-z_][A-Za-z0-9_]*$') && self != 'PATH' && !self.startsWith('LD_') && !self.startsWith('NVIDIA_') && !self.startsWith('CUDA_')")
        .message("name must be the name of a variable, such as RDMA_DEVICES, that is not PATH and does not begin with LD_, NVIDIA_ or CUDA_"))]
    pub name: String,
    /// `Ids`: the ids of the shares. `Paths`: the paths of the files in the container. Several have commas between them.
    pub value: CompanionVariableValue,
}

/// Value of an environment variable of a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(description = "")]
pub enum CompanionVariableValue {
    /// The ids of the shares.
    #[default]
    Ids,
    /// The paths of the files.
    Paths,
}

impl CompanionConfig {
    /// Returns the grouping in force.
    pub fn group(&self) -> CompanionGroup {
        self.group.unwrap_or_default()
    }

    /// Returns the number of shares of a device, at least 1.
    pub fn shares(&self) -> u32 {
        self.shares
            .and_then(|shares| u32::try_from(shares).ok())
            .unwrap_or(1)
            .max(1)
    }

    /// Returns what containers get.
    pub fn injection(&self) -> CompanionInjection {
        self.inject.clone().unwrap_or_else(|| CompanionInjection {
            device_nodes: Some(CompanionDeviceNodes::default()),
            ..CompanionInjection::default()
        })
    }
}

impl CompanionDeviceNodes {
    /// Returns the permissions in force.
    pub fn permissions(&self) -> &str {
        self.permissions.as_deref().unwrap_or(DEFAULT_PERMISSIONS)
    }
}

impl CompanionMounts {
    /// Returns true if containers cannot write.
    pub fn read_only(&self) -> bool {
        self.read_only.unwrap_or(true)
    }
}
