//! The types of the agent configuration and their defaults.
//!
//! Defaults are answered by methods and never written into a value, so that what a user applied is what a GitOps tool
//! reads back (`docs/adr/0001-api.md`).

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Name under which GPUs are offered when a configuration names no resources, as NVIDIA's device plugin does.
pub const DEFAULT_RESOURCE: &str = "nvidia.com/gpu";

/// Most replicas of one GPU that a configuration can ask for.
///
/// The list of one resource must also fit the kubelet's 4 MiB message limit, which the agent checks for its own GPUs.
pub const MAX_REPLICAS: i32 = 8192;

/// How the device plugin on a node offers its GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentConfig {
    /// The resources that GPUs are offered as. The list is ordered: a GPU belongs to the first entry that selects it.
    /// Left out, every GPU is one `nvidia.com/gpu`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub resources: Vec<ResourceConfig>,

    /// Name the device nodes (`/dev/nvidia0`, `/dev/nvidiactl`, ...) in each allocation, for containers that run without
    /// NVIDIA's container runtime and with the kubelet's CPU manager. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pass_device_specs: Option<bool>,

    /// Exit when the driver or a GPU cannot be initialised, instead of waiting until it can. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fail_on_init_error: Option<bool>,
}

/// One extended resource and the GPUs that are offered under its name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResourceConfig {
    /// Name of the extended resource that pods ask for, such as `nvidia.com/gpu`.
    #[schemars(
        length(min = 3, max = 253),
        regex(
            pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
        )
    )]
    #[x_kube(validation = Rule::new("!self.contains('kubernetes.io/') && !self.startsWith('requests.') && self.indexOf('/') <= 244")
        .message("name must not be under kubernetes.io, start with \"requests.\" or have a domain of more than 244 characters; use a domain of your own, such as nvidia.com/gpu"))]
    pub name: String,

    /// Which GPUs belong to this resource; all conditions that are given must hold. Left out: every GPU that no entry
    /// above it took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub devices: Option<DeviceSelector>,

    /// How one GPU is shared by several containers. Left out: not at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharing: Option<Sharing>,
}

/// Selects GPUs of a node. Conditions that are given are ANDed; the values within one are ORed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.indices) || has(self.uuids) || has(self.products)")
    .message("devices must name indices, uuids or products; leave devices out to select every GPU"))]
pub struct DeviceSelector {
    /// NVML indices, as `nvidia-smi` shows them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64), inner(range(min = 0, max = 63)))]
    pub indices: Option<Vec<i32>>,

    /// GPU UUIDs, such as `GPU-0c1b5e0a-...`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64), inner(length(min = 5, max = 64), regex(pattern = r"^GPU-[0-9a-fA-F-]+$")))]
    pub uuids: Option<Vec<String>>,

    /// Globs on the product name in label form, such as `Tesla-V100*`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16), inner(length(min = 1, max = 63), regex(pattern = r"^[-A-Za-z0-9_.*?]+$")))]
    pub products: Option<Vec<String>>,
}

/// How one GPU is shared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.strategy != 'TimeSlicing' || has(self.replicas)")
    .message("sharing.replicas is required when sharing.strategy is TimeSlicing").reason(Reason::FieldValueRequired).field_path(".replicas"))]
#[x_kube(validation = Rule::new("self.strategy == 'TimeSlicing' || !has(self.replicas)")
    .message("sharing.replicas has a meaning only when sharing.strategy is TimeSlicing; remove it or set the strategy").field_path(".replicas"))]
#[x_kube(validation = Rule::new("self.strategy == 'TimeSlicing' || !has(self.failRequestsGreaterThanOne)")
    .message("sharing.failRequestsGreaterThanOne has a meaning only when sharing.strategy is TimeSlicing; remove it or set the strategy").field_path(".failRequestsGreaterThanOne"))]
pub struct Sharing {
    /// `None`: one container holds a GPU alone. `TimeSlicing`: containers take turns on it; neither memory nor faults are
    /// isolated.
    pub strategy: SharingStrategy,

    /// How many containers share one GPU: each GPU is offered this many times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 2, max = MAX_REPLICAS))]
    pub replicas: Option<i32>,

    /// Refuse a container that asks for more than one replica, since two replicas do not give twice the GPU.
    /// Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fail_requests_greater_than_one: Option<bool>,
}

/// The ways a GPU can be shared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SharingStrategy {
    /// One container holds a GPU alone.
    #[default]
    None,
    /// Containers take turns on a GPU.
    TimeSlicing,
}

impl AgentConfig {
    /// The resources in force: those named, or every GPU as [`DEFAULT_RESOURCE`].
    pub fn effective_resources(&self) -> Vec<ResourceConfig> {
        if self.resources.is_empty() {
            vec![ResourceConfig { name: DEFAULT_RESOURCE.to_owned(), ..ResourceConfig::default() }]
        } else {
            self.resources.clone()
        }
    }

    /// Whether device nodes are named in each allocation.
    pub fn pass_device_specs(&self) -> bool {
        self.pass_device_specs.unwrap_or(false)
    }

    /// Whether the agent exits when the driver cannot be initialised.
    pub fn fail_on_init_error(&self) -> bool {
        self.fail_on_init_error.unwrap_or(false)
    }
}

impl ResourceConfig {
    /// How often each GPU is offered; 1 when it is not shared.
    pub fn replicas(&self) -> u32 {
        self.sharing
            .as_ref()
            .filter(|sharing| sharing.strategy == SharingStrategy::TimeSlicing)
            .and_then(|sharing| sharing.replicas)
            .and_then(|replicas| u32::try_from(replicas).ok())
            .map_or(1, |replicas| replicas.max(1))
    }

    /// Whether a container that asks for more than one replica is refused.
    pub fn fail_requests_greater_than_one(&self) -> bool {
        self.sharing.as_ref().and_then(|sharing| sharing.fail_requests_greater_than_one).unwrap_or(false)
    }
}
