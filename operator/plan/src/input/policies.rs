//! The policies as the planner uses them: checked, with their documents written, ordered by priority.

use crate::{
    input::facts::{Taint, TaintKey},
    input::inventory::mig_resources,
    input::selectors::Selector,
};
use gpunode_config::{AgentConfig, ConfigDocument, MigStrategy, ResourceConfig};
use gpunode_crds::{
    AUTOSCALER_STARTUP_PREFIX, GpuNodePolicy, GpuNodeStatus, NOT_READY_TAINT, OnConflict, PolicyMode, RolloutPace,
    StartupTaint, UnhealthyTaint, is_gpunode_key, is_kubernetes_key,
};
use std::collections::{BTreeMap, BTreeSet};

/// One policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.generation`.
    pub generation: Option<i64>,
    /// The higher wins.
    pub priority: i32,
    /// Whether it is put in force.
    pub mode: PolicyMode,
    /// Whether it takes over keys that somebody else owns.
    pub takes_over: bool,
    /// Which nodes it is about.
    pub selector: Selector,
    /// Labels that it wants, without keys that no policy may write.
    pub labels: BTreeMap<String, String>,
    /// Taints that it wants, without keys that no policy may write.
    pub taints: Vec<Taint>,
    /// Key of the startup taint that it wants, if it does.
    pub startup_taint: Option<String>,
    /// When it wants the taint of nodes with too few healthy GPUs, if it does.
    pub unhealthy_taint: Option<UnhealthyTaint>,
    /// How it runs the device plugin, if it does.
    pub device_plugin: Option<DevicePlugin>,
    /// Whether pods that hold a broken device are to be evicted.
    pub evicts_pods: bool,
    /// Whether pods that a node rejected are to be deleted.
    pub deletes_rejected_pods: bool,
    /// How a change of the device plugin goes through the nodes.
    pub pace: RolloutPace,
    /// Why its spec cannot be carried out, if so.
    pub refusal: Option<String>,
}

/// The device plugin of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DevicePlugin {
    /// What agents are to put in force. `None` for a configuration that is refused: whatever is in force stays.
    pub document: Option<ConfigDocument>,
    /// Whether that configuration needs MPS daemons.
    pub wants_mps: bool,
    /// Names of the resources that it may offer, whatever GPUs a node has.
    resources: BTreeSet<String>,
    /// The configuration, where MIG devices have names by their profiles besides.
    by_profile: Option<AgentConfig>,
    /// Image of the agent, where the policy names one.
    pub image: Option<String>,
}

impl DevicePlugin {
    /// Names of the resources that it may offer on a node whose agent reports this.
    pub fn resources(&self, status: Option<&GpuNodeStatus>) -> BTreeSet<String> {
        let mut names = self.resources.clone();
        if let (Some(config), Some(status)) = (&self.by_profile, status) {
            names.extend(mig_resources(status, config));
        }
        names
    }
}

/// Every policy that exists and is not being deleted, the highest priority first, then by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PolicySet {
    policies: Vec<Policy>,
    no_gpu_labels: bool,
}

impl PolicySet {
    /// The set of some policies.
    pub fn new<'a>(policies: impl IntoIterator<Item = &'a GpuNodePolicy>) -> Self {
        let mut policies: Vec<_> = policies
            .into_iter()
            .filter(|policy| policy.metadata.deletion_timestamp.is_none())
            .map(Policy::of)
            .collect();
        policies.sort_by(|a, b| b.priority.cmp(&a.priority).then_with(|| a.name.cmp(&b.name)));
        Self {
            policies,
            no_gpu_labels: false,
        }
    }

    /// The same policies; `false` where no node is to have labels with facts about its GPUs.
    #[must_use]
    pub fn with_gpu_labels(self, gpu_labels: bool) -> Self {
        Self {
            no_gpu_labels: !gpu_labels,
            ..self
        }
    }

    /// Whether nodes are to have labels with facts about their GPUs.
    pub fn gpu_labels(&self) -> bool {
        !self.no_gpu_labels
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Policy> {
        self.policies.iter()
    }

    /// The policy of a name.
    pub fn get(&self, name: &str) -> Option<&Policy> {
        self.iter().find(|policy| policy.name == name)
    }
}

impl Policy {
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
        // The CRD refuses such keys; the rule holds all the same where somebody weakened the CRD.
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
                .map(wanted_taint)
                .collect(),
            startup_taint: startup.filter(|key| may_start(key)).map(str::to_owned),
            unhealthy_taint: spec.unhealthy_taint.clone(),
            device_plugin: spec.device_plugin.as_ref().map(|config| DevicePlugin {
                document: problems.is_empty().then(|| ConfigDocument::of(config)),
                wants_mps: problems.is_empty() && config.wants_mps(),
                resources: config
                    .effective_resources()
                    .iter()
                    .map(ResourceConfig::advertised_name)
                    .collect(),
                by_profile: (problems.is_empty() && config.mig_strategy() == MigStrategy::Mixed)
                    .then(|| config.clone()),
                image: spec.image.clone(),
            }),
            evicts_pods: spec.evict_pods == Some(true),
            deletes_rejected_pods: spec.delete_rejected_pods == Some(true),
            pace: spec.rollout.clone().unwrap_or_default(),
            refusal: (!refusals.is_empty()).then(|| refusals.join("; ")),
        }
    }
}

fn wanted_taint(taint: &gpunode_crds::PolicyTaint) -> Taint {
    Taint {
        id: TaintKey {
            key: taint.key.clone(),
            effect: taint.effect.as_str().to_owned(),
        },
        value: taint.value.clone().unwrap_or_default(),
    }
}
