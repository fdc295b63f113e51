//! The policies in the form that the planner uses: checked, with rendered documents, ordered by priority.

use crate::{
    input::{agent_images::AgentImages, inventory::mig_resources, selectors::Selector},
    names::policy_of_daemonset_name,
    taint::{Taint, TaintKey},
};
use gpunode_config::{AgentConfig, CompanionRootList, ConfigDocument, MigGroup, MigStrategy, ResourceConfig};
use gpunode_crds::{
    AUTOSCALER_STARTUP_PREFIX, Configuration, DrainRules, GpuNodePolicy, GpuNodeStatus, NOT_READY_TAINT, OnConflict,
    PolicyMode, RolloutPace, StartupTaint, UnhealthyTaint, is_gpunode_key, is_kubernetes_key,
};
use gpunode_gpu::InjectionWays;
use jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet};

/// One policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.generation`.
    pub generation: Option<i64>,
    /// Priority; the higher wins.
    pub priority: i32,
    /// `spec.mode`.
    pub mode: PolicyMode,
    /// True if it takes over keys that somebody else owns.
    pub takes_over: bool,
    /// Selects its nodes.
    pub selector: Selector,
    /// Labels it wants, without keys that no policy may write.
    pub labels: BTreeMap<String, String>,
    /// Taints it wants, without keys that no policy may write.
    pub taints: Vec<Taint>,
    /// Key of its startup taint, if any.
    pub startup_taint: Option<String>,
    /// Rule of its taint for nodes with too few healthy GPUs, if any.
    pub unhealthy_taint: Option<UnhealthyTaint>,
    /// Its device plugin, if any.
    pub device_plugin: Option<PolicyDevicePlugin>,
    /// True if pods that hold an unhealthy device are evicted.
    pub evicts_pods: bool,
    /// True if pods that a node rejected are deleted.
    pub deletes_rejected_pods: bool,
    /// Pace of a change of the device plugin.
    pub pace: RolloutPace,
    /// Rules of its drains; none if its changes wait for the pods.
    pub drain: Option<DrainRules>,
    /// Reason why its spec is invalid, if it is.
    pub refusal: Option<String>,
    /// Moment at which somebody changed it last; none if nobody knows.
    pub changed: Option<Timestamp>,
    /// Moment at which it leaves a node whose labels no longer match; set in plans of that node alone.
    pub leaves_at: Option<Timestamp>,
}

/// Device plugin of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyDevicePlugin {
    /// Configuration of the agents. `None` for an invalid one: the configuration in force stays.
    pub document: Option<ConfigDocument>,
    /// True if the configuration needs MPS daemons.
    pub wants_mps: bool,
    /// Groups of its MIG layout; none if the configuration creates and destroys no MIG instances.
    pub mig_layout: Vec<MigGroup>,
    /// Ways by which containers get their GPUs.
    pub ways: InjectionWays,
    /// Fields of the configuration, and values of its enums, that its agents must know.
    pub fields: BTreeSet<String>,
    /// Names of the resources it may advertise on any node.
    resources: BTreeSet<String>,
    /// Fields of its companions that name files, with their globs.
    companion_paths: Vec<(String, String)>,
    /// Configuration, where MIG devices get names by profile as well.
    mig_by_profile: Option<AgentConfig>,
    /// Image of the agent, with its registry if it was checked; none if the policy sets none or may not use it.
    pub image: Option<String>,
    /// True if the policy sets an image that it may not use. Its agents keep the image that they have.
    pub is_image_refused: bool,
}

impl PolicyDevicePlugin {
    /// Reads a configuration.
    fn of(config: &AgentConfig, is_valid: bool, image: Option<String>) -> Self {
        let names = config.effective_resources();
        Self {
            document: is_valid.then(|| ConfigDocument::of(config)),
            ways: InjectionWays::of(config),
            fields: gpunode_config::fields_of(config),
            wants_mps: is_valid && config.wants_mps(),
            mig_layout: config.mig.as_ref().map(|mig| mig.layout.clone()).unwrap_or_default(),
            resources: names
                .iter()
                .map(ResourceConfig::advertised_name)
                .chain(config.companions.iter().map(|companion| companion.resource.clone()))
                .collect(),
            companion_paths: companion_paths(config),
            mig_by_profile: (is_valid && config.mig_strategy() == MigStrategy::Mixed).then(|| config.clone()),
            image,
            is_image_refused: false,
        }
    }

    /// Returns the names of the resources it may advertise on a node with this status.
    pub fn resources(&self, status: Option<&GpuNodeStatus>) -> BTreeSet<String> {
        let mut names = self.resources.clone();
        if let (Some(config), Some(status)) = (&self.mig_by_profile, status) {
            names.extend(mig_resources(status, config));
        }
        names
    }
}

/// Returns the names of the resources that the configuration in `GpuNode.spec` may yield on a node with this status.
pub fn configured_resources(configuration: &Configuration, status: Option<&GpuNodeStatus>) -> BTreeSet<String> {
    let config = gpunode_config::load(&configuration.document);
    config.map_or_else(
        |_| BTreeSet::new(),
        |config| PolicyDevicePlugin::of(&config, true, None).resources(status),
    )
}

/// All policies that are not being deleted, by falling priority, then by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PolicySet {
    policies: Vec<Policy>,
    /// Names of policies that exist and cannot be read: what they want is unknown, so what is there for them stays.
    unreadable: BTreeSet<String>,
    no_gpu_labels: bool,
    agent_images: Option<AgentImages>,
    companion_roots: Option<CompanionRootList>,
}

impl PolicySet {
    /// Checks and orders policies.
    pub fn new<'a>(policies: impl IntoIterator<Item = &'a GpuNodePolicy>) -> Self {
        let mut policies: Vec<_> = policies
            .into_iter()
            .filter(|policy| policy.metadata.deletion_timestamp.is_none())
            .map(Policy::of)
            .collect();
        policies.sort_by(|a, b| b.priority.cmp(&a.priority).then_with(|| a.name.cmp(&b.name)));
        Self {
            policies,
            ..Self::default()
        }
    }

    /// Returns the same policies, together with the names of those that exist and cannot be read.
    #[must_use]
    pub fn with_unreadable(self, names: impl IntoIterator<Item = String>) -> Self {
        Self {
            unreadable: names.into_iter().collect(),
            ..self
        }
    }

    /// Returns true if a policy of this name exists and cannot be read.
    pub fn is_unreadable(&self, name: &str) -> bool {
        self.unreadable.contains(name)
    }

    /// Returns the policy of a configuration in `GpuNode.spec`, if that policy exists and cannot be read.
    pub(crate) fn unreadable_policy_of(&self, configuration: Option<&Configuration>) -> Option<&str> {
        self.unreadable.get(&configuration?.policy).map(String::as_str)
    }

    /// Returns true if a DaemonSet of this name belongs to a policy that cannot be read, and must stay as it is.
    pub fn keeps_daemonset(&self, name: &str) -> bool {
        policy_of_daemonset_name(name).is_some_and(|policy| self.is_unreadable(policy))
    }

    /// Returns the same policies, of which those with another image than these are refused. `None` allows every image.
    #[must_use]
    pub fn with_agent_images(mut self, agent_images: Option<AgentImages>) -> Self {
        if let Some(images) = &agent_images {
            for policy in &mut self.policies {
                policy.refuse_image(images);
            }
        }
        self.agent_images = agent_images;
        self
    }

    /// Returns the same policies, of which those with companions elsewhere than in these folders are refused. `None` allows every
    /// folder.
    #[must_use]
    pub fn with_companion_roots(mut self, roots: Option<CompanionRootList>) -> Self {
        if let Some(roots) = &roots {
            for policy in &mut self.policies {
                policy.refuse_companions(roots);
            }
        }
        self.companion_roots = roots;
        self
    }

    /// Returns the folders whose files companions may hand out; `None` for every folder.
    pub fn companion_roots(&self) -> Option<&CompanionRootList> {
        self.companion_roots.as_ref()
    }

    /// Returns the images that policies may use; `None` for every image.
    pub fn agent_images(&self) -> Option<&AgentImages> {
        self.agent_images.as_ref()
    }

    /// Returns the same policies, with GPU fact labels switched on or off.
    #[must_use]
    pub fn with_gpu_labels(self, gpu_labels: bool) -> Self {
        Self {
            no_gpu_labels: !gpu_labels,
            ..self
        }
    }

    /// Returns true if nodes get GPU fact labels.
    pub fn gpu_labels(&self) -> bool {
        !self.no_gpu_labels
    }

    /// Returns all policies.
    pub fn iter(&self) -> impl Iterator<Item = &Policy> {
        self.policies.iter()
    }

    /// Returns the policy with a name.
    pub fn get(&self, name: &str) -> Option<&Policy> {
        self.iter().find(|policy| policy.name == name)
    }

    /// Returns the policy whose DaemonSet has this name.
    pub fn of_daemonset(&self, name: &str) -> Option<&Policy> {
        self.get(policy_of_daemonset_name(name)?)
    }
}

impl Policy {
    /// Returns the policy as it counts on a node that it leaves: all others come first.
    pub(crate) fn leaving_at(&self, end: Timestamp) -> Self {
        Self {
            priority: i32::MIN,
            leaves_at: Some(end),
            ..self.clone()
        }
    }

    fn of(policy: &GpuNodePolicy) -> Self {
        let spec = &policy.spec;
        let may_write = |key: &str| !is_kubernetes_key(key) && !is_gpunode_key(key);
        let problems = spec
            .device_plugin
            .as_ref()
            .map(gpunode_config::AgentConfig::validate)
            .unwrap_or_default();
        let mut refusals: Vec<_> = problems
            .iter()
            .map(|problem| format!("spec.devicePlugin.{}: {}", problem.path, problem.message))
            .collect();
        // The CRD refuses such keys; this check holds where somebody weakened the CRD.
        let keys = spec.labels.keys().chain(spec.taints.iter().map(|taint| &taint.key));
        let startup = spec.startup_taint.as_ref().map(StartupTaint::key);
        let may_start =
            |key: &str| may_write(key) || key == NOT_READY_TAINT || key.starts_with(AUTOSCALER_STARTUP_PREFIX);
        let refused = keys.map(String::as_str).filter(|key| !may_write(key));
        let refused = refused.chain(startup.filter(|key| !may_start(key)));
        refusals.extend(refused.map(|key| format!("{key}: only its owner may write this key")));
        Self {
            name: policy.metadata.name.clone().unwrap_or_default(),
            generation: policy.metadata.generation,
            priority: spec.priority(),
            mode: spec.mode(),
            takes_over: spec.on_conflict() == OnConflict::TakeOver,
            selector: Selector::of(spec),
            labels: spec
                .labels
                .iter()
                .filter(|(key, _)| may_write(key))
                .map(|(k, v)| (k.clone(), v.clone()))
                .collect(),
            taints: spec
                .taints
                .iter()
                .filter(|taint| may_write(&taint.key))
                .map(taint_of)
                .collect(),
            startup_taint: startup.filter(|key| may_start(key)).map(str::to_owned),
            unhealthy_taint: spec.unhealthy_taint.clone(),
            device_plugin: spec
                .device_plugin
                .as_ref()
                .map(|config| PolicyDevicePlugin::of(config, problems.is_empty(), spec.image.clone())),
            evicts_pods: spec.evict_pods == Some(true),
            deletes_rejected_pods: spec.delete_rejected_pods == Some(true),
            pace: spec.rollout.clone().unwrap_or_default(),
            drain: spec.drain.clone().filter(DrainRules::evicts),
            changed: changed(policy),
            leaves_at: None,
            refusal: (!refusals.is_empty()).then(|| refusals.join("; ")),
        }
    }

    /// Refuses the policy's image if it is none of these. The configuration in force stays on its nodes.
    fn refuse_image(&mut self, images: &AgentImages) {
        let Some(plugin) = &mut self.device_plugin else { return };
        let Some(image) = plugin.image.take() else { return };
        if let Some(allowed) = images.allowed(&image) {
            plugin.image = Some(allowed);
            return;
        }
        plugin.is_image_refused = true;
        plugin.document = None;
        plugin.mig_by_profile = None;
        self.refuse(refused_image(&image, images));
    }

    /// Refuses the policy if a companion hands out files elsewhere than in these folders. The configuration in force stays on its
    /// nodes.
    fn refuse_companions(&mut self, roots: &CompanionRootList) {
        let Some(plugin) = &mut self.device_plugin else { return };
        let refusals = plugin.companion_paths.iter().filter_map(|(field, path)| {
            let refusal = roots.refusal(path)?;
            Some(format!("spec.devicePlugin.{field}: {refusal}"))
        });
        let refusals: Vec<String> = refusals.collect();
        if !refusals.is_empty() {
            plugin.document = None;
            plugin.mig_by_profile = None;
            self.refuse(refusals.join("; "));
        }
    }

    fn refuse(&mut self, refusal: String) {
        self.refusal = Some(match self.refusal.take() {
            Some(other) => format!("{other}; {refusal}"),
            None => refusal,
        });
    }
}

/// Returns the fields of companions that name files, with their globs.
fn companion_paths(config: &AgentConfig) -> Vec<(String, String)> {
    let companions = config.companions.iter().enumerate();
    let paths = companions.flat_map(|(companion, of)| {
        let paths = of.paths.iter().enumerate();
        paths.map(move |(path, glob)| (format!("companions[{companion}].paths[{path}]"), glob.clone()))
    });
    paths.collect()
}

/// Returns the moment of the last change that was not one of the status.
fn changed(policy: &GpuNodePolicy) -> Option<Timestamp> {
    let managers = policy.metadata.managed_fields.iter().flatten();
    let of_spec = managers.filter(|entry| entry.subresource.as_ref().is_none_or(String::is_empty));
    let times = of_spec.filter_map(|entry| entry.time.as_ref());
    times
        .chain(&policy.metadata.creation_timestamp)
        .map(|time| time.0)
        .max()
}

/// The operator does not allow the image of a policy.
fn refused_image(image: &str, images: &AgentImages) -> String {
    format!(
        "spec.image: {image} is not allowed; use an image of {}, or let an administrator add its repository to AGENT_IMAGES of the \
         operator",
        images.names()
    )
}

fn taint_of(taint: &gpunode_crds::PolicyTaint) -> Taint {
    Taint {
        id: TaintKey {
            key: taint.key.clone(),
            effect: taint.effect.as_str().to_owned(),
        },
        value: taint.value.clone().unwrap_or_default(),
    }
}
