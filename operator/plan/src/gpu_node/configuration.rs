//! The configuration in `GpuNode.spec`.

use crate::{
    fleet::rollout::RolloutStage, gpu_node::requests::asked_at_first, input::facts::NodeFacts, input::policies::Policy,
};
use gpunode_config::CONFIG_VERSION;
use gpunode_crds::{
    Configuration, ConfigurationStep, GpuNode, GpuNodeSpec, GpuNodeStatus, MAX_FAILED_MESSAGE, NodeWaiting,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};

/// What has to be written about the `GpuNode` of one node.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum GpuNodeChange {
    /// Nothing.
    #[default]
    None,
    /// It is missing.
    Create(Box<GpuNode>),
    /// It is to have another configuration or none, if it still is the one of this version.
    Configure {
        /// `metadata.resourceVersion`.
        resource_version: String,
        /// `spec.config`.
        config: Option<Configuration>,
        /// `spec.step`: whether the node worked before, so that a rollout waits for it.
        step: Option<ConfigurationStep>,
    },
    /// Its turn in a rollout is over, or its state is to be written down, if it still is the one of this version.
    Step {
        /// `metadata.resourceVersion`.
        resource_version: String,
        /// `spec.step`.
        step: Option<ConfigurationStep>,
    },
    /// People ask something else of the agent, if it still is the one of this version.
    Ask {
        /// `metadata.resourceVersion`.
        resource_version: String,
        /// `spec.release`.
        release: bool,
        /// `spec.recovered`.
        recovered: Option<Time>,
    },
    /// It has no configuration any more and describes neither GPU nor MPS daemon, if it still is the one of this uid and version.
    Delete {
        /// `metadata.uid`.
        uid: String,
        /// `metadata.resourceVersion`.
        resource_version: String,
    },
}

impl GpuNodeChange {
    /// Whether this change gives the node a configuration.
    pub fn gives_configuration(&self) -> bool {
        matches!(self, Self::Create(_) | Self::Configure { config: Some(_), .. })
    }
}

/// The configuration that a node is to have under a governing policy.
///
/// `None` where there is nothing to write: the policy's configuration is refused, so whatever is in force stays.
pub fn wanted_configuration(governing: &Policy) -> Option<Configuration> {
    let document = governing.device_plugin.as_ref()?.document.as_ref()?;
    Some(Configuration {
        policy: governing.name.clone(),
        version: CONFIG_VERSION,
        hash: document.hash.clone(),
        document: document.text.clone(),
    })
}

/// The versions that the agent of the node reads, if it says and ours is not among them.
pub fn unreadable_versions(gpu_node: Option<&GpuNode>) -> Option<&[i32]> {
    let agent = gpu_node?.status.as_ref()?.agent.as_ref()?;
    (!agent.config_versions.is_empty() && !agent.config_versions.contains(&CONFIG_VERSION))
        .then_some(agent.config_versions.as_slice())
}

/// Whether the configuration of a policy can be written for a node.
pub fn is_writable(governing: &Policy, gpu_node: Option<&GpuNode>) -> bool {
    wanted_configuration(governing).is_some() && unreadable_versions(gpu_node).is_none()
}

/// Whether a node needs MPS daemons: for its configuration, or because some are there, whoever wanted them. The label must
/// outlive the configuration, since a daemon ends with its last client.
pub fn needs_mps(governing: Option<&Policy>, gpu_node: Option<&GpuNode>) -> bool {
    let is_wanted = governing
        .and_then(|policy| policy.device_plugin.as_ref())
        .is_some_and(|plugin| plugin.wants_mps);
    let status = gpu_node.and_then(|gpu_node| gpu_node.status.as_ref());
    is_wanted || status.is_some_and(|status| !status.mps_daemons.is_empty())
}

/// The change that gives a node the configuration of its governing policy, or takes it away. `stage` is where the node is on
/// its way to that configuration.
pub fn change(
    node: &NodeFacts,
    governing: Option<&Policy>,
    gpu_node: Option<&GpuNode>,
    stage: Option<&RolloutStage>,
    now: Timestamp,
) -> GpuNodeChange {
    match (governing, gpu_node) {
        (Some(policy), Some(gpu_node)) => {
            let wanted = wanted_configuration(policy).filter(|_| unreadable_versions(Some(gpu_node)).is_none());
            match (wanted, &gpu_node.spec.config) {
                (None, _) => GpuNodeChange::None,
                (Some(wanted), Some(current)) if wanted == *current => {
                    let step = gpu_node.spec.step.as_ref();
                    step.map_or(GpuNodeChange::None, |step| {
                        step_change(gpu_node, step, policy, stage, now)
                    })
                }
                (Some(wanted), _) => {
                    let was_ready = matches!(stage, Some(RolloutStage::Pending | RolloutStage::Stepping));
                    configure(gpu_node, Some(wanted), was_ready.then(|| begin(policy, now)))
                }
            }
        }
        (Some(policy), None) => wanted_configuration(policy).map_or(GpuNodeChange::None, |wanted| {
            let mut gpu_node = GpuNode::new(
                &node.name,
                GpuNodeSpec {
                    config: Some(wanted),
                    ..asked_at_first(node)
                },
            );
            gpu_node.metadata.owner_references = Some(vec![owner(node)]);
            GpuNodeChange::Create(Box::new(gpu_node))
        }),
        (None, Some(gpu_node)) if gpu_node.spec.config.is_some() => {
            let is_of_use = |status: &GpuNodeStatus| !status.gpus.is_empty() || !status.mps_daemons.is_empty();
            if gpu_node.status.as_ref().is_some_and(is_of_use) {
                configure(gpu_node, None, None)
            } else {
                // In one step, so that a crash leaves no empty object; the agent's own without a spec is never touched.
                GpuNodeChange::Delete {
                    uid: gpu_node.metadata.uid.clone().unwrap_or_default(),
                    resource_version: version(gpu_node),
                }
            }
        }
        (None, _) => GpuNodeChange::None,
    }
}

/// What becomes of the turn of a node that has the configuration wanted.
fn step_change(
    gpu_node: &GpuNode,
    step: &ConfigurationStep,
    policy: &Policy,
    stage: Option<&RolloutStage>,
    now: Timestamp,
) -> GpuNodeChange {
    let next = match stage {
        Some(RolloutStage::Done) => None,
        Some(RolloutStage::Stopped(why)) if step.failed.is_none() => {
            let failed = Some(why.chars().take(MAX_FAILED_MESSAGE).collect());
            Some(ConfigurationStep { failed, ..step.clone() })
        }
        Some(RolloutStage::Stepping) if step.generation != policy.generation => Some(begin(policy, now)),
        _ => return GpuNodeChange::None,
    };
    GpuNodeChange::Step {
        resource_version: version(gpu_node),
        step: next,
    }
}

fn begin(policy: &Policy, now: Timestamp) -> ConfigurationStep {
    ConfigurationStep {
        started_at: Time(whole_second(now)),
        generation: policy.generation,
        failed: None,
    }
}

/// The devices of a node whose change waits for their holders.
pub fn waiting(node: &NodeFacts, gpu_node: Option<&GpuNode>) -> Vec<NodeWaiting> {
    let status = gpu_node.and_then(|gpu_node| gpu_node.status.as_ref());
    let devices = status.into_iter().flat_map(|status| &status.waiting);
    let waiting = devices.map(|it| NodeWaiting {
        node: node.name.clone(),
        device: it.device.clone(),
        pods: it.pods.clone(),
    });
    waiting.collect()
}

fn configure(gpu_node: &GpuNode, config: Option<Configuration>, step: Option<ConfigurationStep>) -> GpuNodeChange {
    GpuNodeChange::Configure {
        resource_version: version(gpu_node),
        config,
        step,
    }
}

/// As the API server keeps times.
pub fn whole_second(now: Timestamp) -> Timestamp {
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}

fn version(gpu_node: &GpuNode) -> String {
    gpu_node.metadata.resource_version.clone().unwrap_or_default()
}

fn owner(node: &NodeFacts) -> OwnerReference {
    OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: node.name.clone(),
        uid: node.uid.clone(),
        ..OwnerReference::default()
    }
}
