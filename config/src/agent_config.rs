//! The types of the agent configuration and their defaults.
//!
//! Defaults are answered by methods and never written into a value, so that what a user applied is what a GitOps tool
//! reads back (`docs/adr/0001-api.md`).

use crate::{Allocation, DeviceSelector, HealthRules, MigConfig, MigStrategy, Sharing, SharingStrategy};
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// Name under which GPUs are offered when a configuration names no resources, as NVIDIA's device plugin does.
const DEFAULT_RESOURCE: &str = "nvidia.com/gpu";

/// Appended to a resource's name by `sharing.renameByDefault`, as NVIDIA's device plugin does.
const SHARED_SUFFIX: &str = ".shared";

/// How the device plugin on a node offers its GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("(has(self.mig) && self.mig.strategy != 'None') || !has(self.resources) || !self.resources.exists(r, has(r.devices) && (has(r.devices.migProfiles) || (has(r.devices.kind) && r.devices.kind == 'MigDevice')))")
    .message("resources that select MIG devices need mig.strategy Single or Mixed").field_path(".mig"))]
#[x_kube(validation = Rule::new("!has(self.resources) || !self.resources.exists(r, has(r.sharing) && has(r.sharing.renameByDefault) && r.sharing.renameByDefault && self.resources.exists(o, o.name == r.name + '.shared'))")
    .message("sharing.renameByDefault gives a resource the name of another entry; each name is offered by one entry").field_path(".resources"))]
pub struct AgentConfig {
    /// The resources that GPUs are offered as. The list is ordered: a GPU belongs to the first entry that selects it.
    /// Left out, every GPU is one `nvidia.com/gpu`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub resources: Vec<ResourceConfig>,

    /// How MIG devices that exist are offered. Left out: strategy `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig: Option<MigConfig>,

    /// Name the device nodes (`/dev/nvidia0`, `/dev/nvidiactl`, ...) in each allocation, for containers that run without
    /// NVIDIA's container runtime and with the kubelet's CPU manager. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pass_device_specs: Option<bool>,

    /// Which errors of the driver make a GPU unhealthy, and when it is healthy again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<HealthRules>,

    /// Exit when the driver or a GPU cannot be initialised, instead of waiting until it can. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fail_on_init_error: Option<bool>,
}

/// One extended resource and the GPUs that are offered under its name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.sharing) || !has(self.sharing.renameByDefault) || !self.sharing.renameByDefault || size(self.name) - self.name.indexOf('/') <= 57")
    .message("name must have at most 56 characters after the slash, since sharing.renameByDefault appends .shared").field_path(".name"))]
#[x_kube(validation = Rule::new("!has(self.allocation) || !has(self.sharing) || self.sharing.strategy != 'Memory'")
    .message("allocation has no meaning when sharing.strategy is Memory; remove it, and set sharing.placement instead").field_path(".allocation"))]
pub struct ResourceConfig {
    /// Name of the extended resource that pods ask for, such as `nvidia.com/gpu`; with `sharing.renameByDefault`, `.shared`
    /// is appended.
    #[schemars(length(min = 3, max = 253))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$')")
        .message("name must be DOMAIN/NAME, such as nvidia.com/gpu: a domain in lower case, then at most 63 letters, digits, '-', '_' and '.'"))]
    #[x_kube(validation = Rule::new("!self.contains('kubernetes.io/') && !self.startsWith('requests.') && self.indexOf('/') <= 244")
        .message("name must not be under kubernetes.io, start with \"requests.\" or have a domain of more than 244 characters; use a domain of your own, such as nvidia.com/gpu"))]
    pub name: String,

    /// Which GPUs belong to this resource; all conditions that are given must hold. Left out: every GPU that no entry
    /// above it took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub devices: Option<DeviceSelector>,

    /// Which of the free devices a container gets. `Topology`: GPUs that are linked best. `Packed`: as few GPUs and NUMA
    /// nodes as possible, those in use first. `Spread`: GPUs far from one another and from those in use. Units of memory go by
    /// `sharing.placement` instead. Default: Topology.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocation: Option<Allocation>,

    /// How one GPU is shared by several containers. Left out: not at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharing: Option<Sharing>,
}

impl AgentConfig {
    /// The resources in force: those named, or every GPU as `nvidia.com/gpu`.
    pub fn effective_resources(&self) -> Vec<ResourceConfig> {
        if self.resources.is_empty() {
            vec![ResourceConfig {
                name: DEFAULT_RESOURCE.to_owned(),
                ..ResourceConfig::default()
            }]
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

    /// How MIG devices are offered.
    pub fn mig_strategy(&self) -> MigStrategy {
        self.mig.as_ref().map_or(MigStrategy::None, |mig| mig.strategy)
    }

    /// Whether some resource needs MPS control daemons.
    pub fn wants_mps(&self) -> bool {
        self.resources
            .iter()
            .any(|resource| resource.strategy() == SharingStrategy::Mps)
    }
}

impl ResourceConfig {
    /// The name under which it is offered.
    pub fn advertised_name(&self) -> String {
        let renamed = self
            .sharing
            .as_ref()
            .and_then(|sharing| sharing.rename_by_default)
            .unwrap_or(false);
        if renamed {
            format!("{}{SHARED_SUFFIX}", self.name)
        } else {
            self.name.clone()
        }
    }

    /// How its devices are shared.
    pub fn strategy(&self) -> SharingStrategy {
        self.sharing
            .as_ref()
            .map_or(SharingStrategy::None, |sharing| sharing.strategy)
    }

    /// Which of its free devices a container gets.
    pub fn allocation(&self) -> Allocation {
        self.allocation.unwrap_or_default()
    }

    /// Whether a container that asks for more than one replica is refused.
    pub fn fail_requests_greater_than_one(&self) -> bool {
        self.sharing
            .as_ref()
            .and_then(|sharing| sharing.fail_requests_greater_than_one)
            .unwrap_or(false)
    }
}
