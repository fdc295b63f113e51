//! Container runtime in `GpuNode.status.runtime`: its settings that decide if containers get GPUs.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Maximum number of entries in each list of the runtime's handlers.
pub const MAX_RUNTIME_HANDLERS: usize = 32;

/// Maximum number of entries in `status.runtime.cdiSpecDirs`.
pub const MAX_CDI_SPEC_DIRS: usize = 16;

/// Maximum length of a path in `status.runtime`, in characters.
pub const MAX_RUNTIME_PATH: usize = 256;

/// Maximum length of a name or version in `status.runtime`, in characters.
pub const MAX_RUNTIME_NAME: usize = 128;

/// Maximum length of a reason in `status.runtime`, in characters.
pub const MAX_RUNTIME_PROBLEM: usize = 512;

/// Container runtime of a node, and the settings of the node that decide if containers get GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct RuntimeStatus {
    /// Name by which the runtime calls itself, such as `containerd` or `cri-o`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_RUNTIME_NAME))]
    pub name: Option<String>,
    /// Version of the runtime.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_RUNTIME_NAME))]
    pub version: Option<String>,
    /// State of the Container Device Interface in the runtime; absent if the runtime does not tell.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::newer_value::known_or_none"
    )]
    pub cdi: Option<CdiMode>,
    /// Folders in which the runtime looks for CDI files; empty if the runtime does not tell.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_CDI_SPEC_DIRS), inner(length(max = MAX_RUNTIME_PATH)))]
    pub cdi_spec_dirs: Vec<String>,
    /// Reason why gpunode's CDI file describes none of the devices that pods can get; absent if it describes one, or if
    /// `deviceListStrategy` does not use CDI.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_RUNTIME_PROBLEM))]
    pub cdi_problem: Option<String>,
    /// Devices that pods can get and gpunode's CDI file does not describe, with the reason, while it describes others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_RUNTIME_PROBLEM))]
    pub cdi_left_out: Option<String>,
    /// Handler of pods without a RuntimeClass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_RUNTIME_NAME))]
    pub default_handler: Option<String>,
    /// Handlers that a RuntimeClass can name, in order; empty if the runtime does not tell.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_RUNTIME_HANDLERS), inner(length(max = MAX_RUNTIME_NAME)))]
    pub handlers: Vec<String>,
    /// Those of the handlers that run NVIDIA's container runtime.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_RUNTIME_HANDLERS), inner(length(max = MAX_RUNTIME_NAME)))]
    pub nvidia_handlers: Vec<String>,
    /// Mode of SELinux; absent if the kernel runs without it.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::newer_value::known_or_none"
    )]
    pub selinux: Option<SelinuxMode>,
    /// Root of the NVIDIA driver's files on the host; absent if the driver is not found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_RUNTIME_PATH))]
    pub driver_root: Option<String>,
    /// Reason why the runtime's settings are unknown, if they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_RUNTIME_PROBLEM))]
    pub problem: Option<String>,
    /// True if NVIDIA's container runtime lets unprivileged containers name their GPUs. Absent without that runtime.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accepts_envvar: Option<bool>,
}

/// State of the Container Device Interface (CDI) in a container runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(description = "")]
pub enum CdiMode {
    /// Containers get the CDI devices that the kubelet names.
    Enabled,
    /// The runtime ignores CDI devices.
    Disabled,
}

/// Modes of SELinux.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(description = "")]
pub enum SelinuxMode {
    /// The kernel denies what the policy does not allow.
    Enforcing,
    /// The kernel logs what the policy does not allow.
    Permissive,
}
