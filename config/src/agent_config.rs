//! Types of the agent configuration and their defaults.
//!
//! Methods return the defaults; they are never written into a value, so that a GitOps tool reads back exactly what a user
//! applied (`docs/adr/0001-api.md`).

use crate::{
    Allocation, CompanionConfig, DeviceIdStrategy, DeviceListStrategy, DeviceSelector, HealthRules, MigConfig,
    MigStrategy, Sharing, SharingStrategy, UsageConfig,
    companion::{MAX_COMPANIONS, RESOURCE_TWICE, VARIABLE_TWICE},
};
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// Name of the resource when the configuration names none, as in NVIDIA's device plugin.
const DEFAULT_RESOURCE: &str = "nvidia.com/gpu";

/// Prefix of annotations by which runtimes find CDI devices (`AnnotationPrefix` in the Go package
/// `tags.cncf.io/container-device-interface/pkg/cdi`), and the default of NVIDIA's device plugin.
pub(crate) const CDI_ANNOTATION_PREFIX: &str = "cdi.k8s.io/";

/// Number of strategies.
pub(crate) const MAX_STRATEGIES: usize = 4;
/// Longest annotation prefix: the domain has at most 253 characters, then comes the slash.
pub(crate) const MAX_PREFIX: usize = 254;

/// Refusal of `VolumeMounts` beside a CDI strategy.
pub(crate) const MOUNTS_BESIDE_CDI: &str = "VolumeMounts beside CdiCri or CdiAnnotations injects devices twice: \
    NVIDIA's runtime reads the mounts before the variable by which a CDI device switches it off; remove one of them";
/// Refusal of ids by index.
pub(crate) const IDS_BY_INDEX: &str = "Index can give a container another GPU than the kubelet allocated: \
    indices shift when a GPU is lost or replaced; use Uuid";

/// Suffix that `sharing.renameByDefault` appends to a resource's name, as in NVIDIA's device plugin.
const SHARED_SUFFIX: &str = ".shared";

/// Configuration of the device plugin on a node: the resources it advertises and the GPUs behind them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
// Atomic: server-side apply turns an emptied granular block into null (structured-merge-diff 6.3.3).
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
#[x_kube(validation = Rule::new("(has(self.mig) && self.mig.strategy != 'None') || !has(self.resources) || !self.resources.exists(r, has(r.devices) && (has(r.devices.migProfiles) || (has(r.devices.kind) && r.devices.kind == 'MigDevice')))")
    .message("resources that select MIG devices require mig.strategy Single or Mixed").field_path(".mig"))]
#[x_kube(validation = Rule::new("!has(self.resources) || !self.resources.exists(r, has(r.sharing) && has(r.sharing.renameByDefault) && r.sharing.renameByDefault && self.resources.exists(o, o.name == r.name + '.shared'))")
    .message("sharing.renameByDefault gives this resource the name of another entry; resource names must be unique").field_path(".resources"))]
#[x_kube(validation = Rule::new("!has(self.deviceListStrategy) || !self.deviceListStrategy.exists(s, s == 'VolumeMounts') || !self.deviceListStrategy.exists(s, s == 'CdiCri' || s == 'CdiAnnotations')")
    .message(MOUNTS_BESIDE_CDI).field_path(".deviceListStrategy"))]
#[x_kube(validation = Rule::new("!has(self.deviceIdStrategy) || self.deviceIdStrategy != 'Index'")
    .message(IDS_BY_INDEX).field_path(".deviceIdStrategy"))]
#[x_kube(validation = Rule::new("!has(self.companions) || !self.companions.exists(c, has(self.resources) && size(self.resources) > 0 ? self.resources.exists(r, c.resource == r.name || c.resource == r.name + '.shared') : c.resource == 'nvidia.com/gpu')")
    .message(RESOURCE_TWICE).field_path(".companions"))]
#[x_kube(validation = Rule::new("!has(self.companions) || !self.companions.exists(c, has(c.inject) && has(c.inject.env) && self.companions.exists(o, o.resource != c.resource && has(o.inject) && has(o.inject.env) && o.inject.env.name == c.inject.env.name))")
    .message(VARIABLE_TWICE).field_path(".companions"))]
pub struct AgentConfig {
    /// Resources that the device plugin advertises. Order matters: a GPU belongs to the first entry that selects it. If
    /// unset, every GPU is advertised as one `nvidia.com/gpu`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub resources: Vec<ResourceConfig>,

    /// MIG: the layout that gpunode gives the GPUs, and the way in which MIG devices are advertised. If unset, instances
    /// stay as they are, and the strategy is `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig: Option<MigConfig>,

    /// Ways in which a container gets its devices. `CdiCri` and `CdiAnnotations` name devices of gpunode's CDI file, in the
    /// field of the container runtime interface and in an annotation. `Envvar` sets `NVIDIA_VISIBLE_DEVICES`.
    /// `VolumeMounts` mounts `/dev/null` under the names of the devices, and excludes both CDI strategies. With several,
    /// a device that the CDI file does not describe is handed over by the others. Default: CdiCri and Envvar.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_STRATEGIES))]
    pub device_list_strategy: Vec<DeviceListStrategy>,

    /// Form in which containers are told their devices. `Index` is refused: indices shift when a GPU is lost or replaced.
    /// Default: Uuid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_id_strategy: Option<DeviceIdStrategy>,

    /// Prefix of the annotation that `CdiAnnotations` sets, with the slash at its end. Default: `cdi.k8s.io/`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_PREFIX))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/$')")
        .message("cdiAnnotationPrefix must be a domain in lower case with a slash at its end, such as cdi.k8s.io/"))]
    pub cdi_annotation_prefix: Option<String>,

    /// Gives containers GPUDirect Storage: its devices by CDI, and `NVIDIA_GDS=enabled`. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gds: Option<bool>,

    /// Gives containers the devices of RDMA network cards: by CDI, and `NVIDIA_MOFED=enabled`. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mofed: Option<bool>,

    /// Gives containers the device of GDRCopy: by CDI, and `NVIDIA_GDRCOPY=enabled`. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gdrcopy: Option<bool>,

    /// IMEX channels that containers get where the node has them: `[0]` or none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1), inner(range(min = 0, max = 0)))]
    pub imex_channels: Vec<i32>,

    /// Adds device nodes (`/dev/nvidia0`, `/dev/nvidiactl`, ...) to each allocation. Set it for containers that run
    /// without NVIDIA's container runtime, or with the kubelet's CPU manager. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pass_device_specs: Option<bool>,

    /// Resources whose devices are files of the node, such as RDMA interfaces. A node needs no GPU for them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_COMPANIONS))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["resource".into()]))]
    pub companions: Vec<CompanionConfig>,

    /// Rules that decide which driver errors make a GPU unhealthy, and when it recovers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<HealthRules>,

    /// Figures of what containers use of the GPUs that they hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<UsageConfig>,

    /// Exits when the driver or a GPU cannot be initialized, instead of waiting until it can. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fail_on_init_error: Option<bool>,
}

/// An extended resource and the GPUs that are advertised under its name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.sharing) || !has(self.sharing.renameByDefault) || !self.sharing.renameByDefault || size(self.name) - self.name.indexOf('/') <= 57")
    .message("name must have at most 56 characters after the slash, because sharing.renameByDefault appends .shared").field_path(".name"))]
#[x_kube(validation = Rule::new("!has(self.allocation) || !has(self.sharing) || self.sharing.strategy != 'Memory'")
    .message("allocation does not apply when sharing.strategy is Memory; remove it and set sharing.placement instead").field_path(".allocation"))]
pub struct ResourceConfig {
    /// Name of the extended resource that pods request, such as `nvidia.com/gpu`. `sharing.renameByDefault` appends
    /// `.shared`.
    #[schemars(length(min = 3, max = 253))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$')")
        .message("name must be DOMAIN/NAME, such as nvidia.com/gpu: a domain in lower case, then at most 63 letters, digits, '-', '_' and '.'"))]
    #[x_kube(validation = Rule::new("!self.contains('kubernetes.io/') && !self.startsWith('requests.') && self.indexOf('/') <= 244")
        .message("name must not be under kubernetes.io, start with \"requests.\" or have a domain of more than 244 characters; use a domain of your own, such as nvidia.com/gpu"))]
    pub name: String,

    /// Selects the GPUs that belong to this resource; a GPU must meet every condition that is set. If unset, the
    /// resource gets every GPU that no earlier entry selects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub devices: Option<DeviceSelector>,

    /// Choice among the free devices for a container. `Topology` prefers GPUs with the best links between them.
    /// `Packed` uses as few GPUs and NUMA nodes as possible and prefers GPUs in use. `Spread` prefers GPUs far from
    /// each other and from GPUs in use. Not allowed with `strategy: Memory`; set `sharing.placement` instead. Default:
    /// Topology.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocation: Option<Allocation>,

    /// Sharing of one GPU between several containers. If unset, GPUs are not shared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharing: Option<Sharing>,
}

impl AgentConfig {
    /// Returns the configured resources, or `nvidia.com/gpu` for every GPU if there are none.
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

    /// Returns the strategies in force.
    pub fn effective_device_list_strategy(&self) -> Vec<DeviceListStrategy> {
        if self.device_list_strategy.is_empty() {
            vec![DeviceListStrategy::CdiCri, DeviceListStrategy::Envvar]
        } else {
            self.device_list_strategy.clone()
        }
    }

    /// Returns true if a strategy needs the CDI file.
    pub fn uses_cdi(&self) -> bool {
        self.effective_device_list_strategy()
            .into_iter()
            .any(DeviceListStrategy::is_cdi)
    }

    /// Returns the prefix of the annotation that names CDI devices.
    pub fn cdi_annotation_prefix(&self) -> &str {
        self.cdi_annotation_prefix.as_deref().unwrap_or(CDI_ANNOTATION_PREFIX)
    }

    /// Returns true if containers get GPUDirect Storage.
    pub fn gds(&self) -> bool {
        self.gds.unwrap_or(false)
    }

    /// Returns true if containers get the devices of RDMA network cards.
    pub fn mofed(&self) -> bool {
        self.mofed.unwrap_or(false)
    }

    /// Returns true if containers get `GDRCopy`.
    pub fn gdrcopy(&self) -> bool {
        self.gdrcopy.unwrap_or(false)
    }

    /// Returns the IMEX channels that containers get.
    pub fn imex_channels(&self) -> Vec<u32> {
        let channels = self.imex_channels.iter();
        channels.filter_map(|channel| u32::try_from(*channel).ok()).collect()
    }

    /// Returns true if each allocation names its device nodes.
    pub fn pass_device_specs(&self) -> bool {
        self.pass_device_specs.unwrap_or(false)
    }

    /// Returns true if the agent exits when the driver cannot be initialized.
    pub fn fail_on_init_error(&self) -> bool {
        self.fail_on_init_error.unwrap_or(false)
    }

    /// Returns the times of the figures of what containers use.
    pub fn usage(&self) -> UsageConfig {
        self.usage.clone().unwrap_or_default()
    }

    /// Returns the MIG strategy in force.
    pub fn mig_strategy(&self) -> MigStrategy {
        self.mig.as_ref().map_or(MigStrategy::None, |mig| mig.strategy)
    }

    /// Returns true if any resource needs MPS control daemons.
    pub fn wants_mps(&self) -> bool {
        self.resources
            .iter()
            .any(|resource| resource.strategy() == SharingStrategy::Mps)
    }
}

impl ResourceConfig {
    /// Returns the name that the kubelet sees, with `.shared` if sharing renames the resource.
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

    /// Returns the sharing strategy in force.
    pub fn strategy(&self) -> SharingStrategy {
        self.sharing
            .as_ref()
            .map_or(SharingStrategy::None, |sharing| sharing.strategy)
    }

    /// Returns the allocation policy in force.
    pub fn allocation(&self) -> Allocation {
        self.allocation.unwrap_or_default()
    }

    /// Returns true if containers that request more than one replica are refused.
    pub fn fail_requests_greater_than_one(&self) -> bool {
        self.sharing
            .as_ref()
            .and_then(|sharing| sharing.fail_requests_greater_than_one)
            .unwrap_or(false)
    }
}
