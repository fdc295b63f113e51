//! The configuration in `GpuNode.spec`.

use crate::{
    gpu_node::{
        change::{GpuNodeChange, unused_second},
        drain::{approved_change, begun_drain, drain_stage, next_change},
        mig_progress::{awaits_approval, blocked_gpus, failed_change, has_phase},
        progress_messages::{mig_manager_is_there, unknown_fields, unreadable_version},
        requests::initial_requests,
    },
    input::{
        context::NodeContext, facts::NodeFacts, gpu_node_facts::GpuNodeFacts, mig_manager::runs_mig_manager,
        policies::Policy,
    },
    rollout_stage::RolloutStage,
};
use gpunode_config::CONFIG_VERSION;
use gpunode_crds::{
    Configuration, ConfigurationStep, GpuNode, GpuNodeSpec, GpuNodeStatus, MAX_FAILED_MESSAGE, MigPhase, NodeWaiting,
    Reason,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
use std::{collections::BTreeSet, fmt};

/// Returns the configuration that a node gets from its governing policy.
///
/// `None` if the policy's configuration is invalid: the configuration in force stays.
pub fn desired_configuration(governing: &Policy) -> Option<Configuration> {
    let document = governing.device_plugin.as_ref()?.document.as_ref()?;
    Some(Configuration {
        policy: governing.name.clone(),
        version: CONFIG_VERSION,
        hash: document.hash.clone(),
        document: document.text.clone(),
    })
}

/// Obstacle to a policy's configuration on a node, which keeps the one that it has.
#[derive(Debug, PartialEq, Eq)]
pub enum ConfigurationObstacle<'a> {
    /// The configuration has a MIG layout, and NVIDIA's mig-manager changes MIG on the node.
    MigManager,
    /// The agent reads these versions of the document alone.
    Version(&'a [i32]),
    /// Fields, and values of enums, that the agent does not know.
    Fields(Vec<&'a str>),
}

impl ConfigurationObstacle<'_> {
    /// Returns the reason of a node that has it.
    pub(crate) fn reason(&self) -> Reason {
        match self {
            Self::MigManager => Reason::MigManager,
            Self::Version(_) | Self::Fields(_) => Reason::ConfigurationPending,
        }
    }
}

/// Writes the message of a node that has it.
impl fmt::Display for ConfigurationObstacle<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&match self {
            Self::MigManager => mig_manager_is_there(),
            Self::Version(read) => unreadable_version(read, CONFIG_VERSION),
            Self::Fields(fields) => unknown_fields(fields),
        })
    }
}

/// Returns the obstacle to a policy's configuration on a node: mig-manager, or a part that the agent cannot read, as far as it
/// reports what it can. An invalid configuration has none.
pub fn configuration_obstacle<'a>(
    governing: &'a Policy,
    context: NodeContext<'a>,
) -> Option<ConfigurationObstacle<'a>> {
    governing.device_plugin.as_ref()?.document.as_ref()?;
    if is_mig_managed(governing, context.node) {
        return Some(ConfigurationObstacle::MigManager);
    }
    let agent = context.status()?.agent.as_ref()?;
    if !agent.config_versions.is_empty() && !agent.config_versions.contains(&CONFIG_VERSION) {
        return Some(ConfigurationObstacle::Version(&agent.config_versions));
    }
    if agent.config_fields.is_empty() {
        return None;
    }
    let known: BTreeSet<&str> = agent.config_fields.iter().map(String::as_str).collect();
    let used = governing.device_plugin.iter().flat_map(|plugin| &plugin.fields);
    let unknown: Vec<&str> = used
        .map(String::as_str)
        .filter(|field| !known.contains(field))
        .collect();
    (!unknown.is_empty()).then_some(ConfigurationObstacle::Fields(unknown))
}

/// Returns true if the policy has a MIG layout and mig-manager changes MIG on the node.
pub fn is_mig_managed(governing: &Policy, node: &NodeFacts) -> bool {
    let plugin = governing.device_plugin.as_ref();
    plugin.is_some_and(|plugin| !plugin.mig_layout.is_empty()) && runs_mig_manager(node)
}

/// Returns true if the policy's configuration can be written for the node.
pub fn is_writable(governing: &Policy, context: NodeContext<'_>) -> bool {
    desired_configuration(governing).is_some() && configuration_obstacle(governing, context).is_none()
}

/// Returns true if a node needs MPS daemons: for its configuration, or because daemons still run there. The label must outlive
/// the configuration, since a daemon ends with its last client.
pub fn needs_mps(governing: Option<&Policy>, context: NodeContext<'_>) -> bool {
    let is_desired = governing
        .and_then(|policy| policy.device_plugin.as_ref())
        .is_some_and(|plugin| plugin.wants_mps);
    is_desired || context.status().is_some_and(|status| !status.mps_daemons.is_empty())
}

/// Returns the change that gives a node the configuration of its governing policy, or takes it away; with the configuration there,
/// the change of its step and of its approval. `stage` is the node's stage on the way to that configuration, and `is_permitted`
/// says if a pending one may go on.
pub fn configuration_change(
    governing: Option<&Policy>,
    context: NodeContext<'_>,
    stage: Option<&RolloutStage>,
    is_permitted: bool,
) -> GpuNodeChange {
    let NodeContext { node, now, .. } = context;
    match (governing, context.gpu_node) {
        (Some(policy), Some(gpu_node)) => {
            let desired = desired_configuration(policy).filter(|_| configuration_obstacle(policy, context).is_none());
            match (desired, &gpu_node.spec.config) {
                (None, _) if is_mig_managed(policy, node) => withdraw_change(gpu_node),
                (None, _) => ended_drain(context),
                (Some(desired), Some(current)) if desired == *current => {
                    step_change(gpu_node, policy, stage, is_permitted, context)
                }
                (Some(desired), _) => {
                    let has_worked = matches!(stage, Some(RolloutStage::Pending | RolloutStage::Stepping));
                    configure(
                        gpu_node,
                        Some(desired),
                        has_worked.then(|| new_step(gpu_node, policy, now)),
                    )
                }
            }
        }
        (Some(policy), None) if is_mig_managed(policy, node) => GpuNodeChange::None,
        (Some(policy), None) => desired_configuration(policy).map_or(GpuNodeChange::None, |desired| {
            let mut gpu_node = GpuNode::new(
                &node.name,
                GpuNodeSpec {
                    config: Some(desired),
                    ..initial_requests(context)
                },
            );
            gpu_node.metadata.owner_references = Some(vec![owner(node)]);
            GpuNodeChange::Create(Box::new(gpu_node))
        }),
        (None, Some(gpu_node)) if gpu_node.spec.config.is_some() => {
            let has_content = |status: &GpuNodeStatus| !status.gpus.is_empty() || !status.mps_daemons.is_empty();
            if gpu_node.status().is_some_and(has_content) {
                configure(gpu_node, None, None)
            } else {
                // One write, so that a crash leaves no empty object. An agent's own object without a spec stays.
                GpuNodeChange::delete(gpu_node)
            }
        }
        (None, _) => GpuNodeChange::None,
    }
}

/// Returns the change of the step, and of the approval, of a node that already has the desired configuration. What the agent has
/// finished needs no write.
fn step_change(
    gpu_node: &GpuNodeFacts,
    policy: &Policy,
    stage: Option<&RolloutStage>,
    is_permitted: bool,
    context: NodeContext<'_>,
) -> GpuNodeChange {
    let now = context.now;
    let mut step = gpu_node.step.clone();
    let mut change = gpu_node
        .change
        .clone()
        .filter(|_| !loses_change(gpu_node, policy, stage, context));
    let unfinished = gpu_node.unfinished_step();
    match stage {
        // An older agent does not say that it has finished the step. Left in the spec, it would count again in an outage.
        Some(RolloutStage::Done) if unfinished.is_some() => step = None,
        Some(RolloutStage::Stopped(why)) => step = failed_step(gpu_node, policy, why),
        Some(RolloutStage::Stepping) if unfinished.is_some_and(|step| step.generation != policy.generation) => {
            step = Some(new_step(gpu_node, policy, now));
        }
        Some(RolloutStage::Pending) if is_permitted => {
            let next = if awaits_approval(context) {
                approved_change(gpu_node, now)
            } else {
                begun_drain(gpu_node, now)
            };
            (step, change) = (None, next);
        }
        Some(RolloutStage::Stepping) if change.is_some() => {
            if let Ok(next) = next_change(gpu_node, policy, context) {
                change = next;
            }
        }
        _ => {}
    }
    if (&step, &change) == (&gpu_node.step, &gpu_node.change) {
        return GpuNodeChange::None;
    }
    GpuNodeChange::Step {
        resource_version: gpu_node.resource_version.clone(),
        step,
        change,
    }
}

/// Returns true if the change in the spec belongs to another configuration, or is an unfinished approval and the node must not
/// change: its GPUs are released or served by a DRA driver, or it is down for longer than a step may take. A drain, and what
/// is left of one, goes with its reason.
fn loses_change(
    gpu_node: &GpuNodeFacts,
    policy: &Policy,
    stage: Option<&RolloutStage>,
    context: NodeContext<'_>,
) -> bool {
    // The memory of a drain that failed outlives an outage, of the node and of its agent, and the change of MIG that goes back then.
    let goes_back = |status| has_phase(status, MigPhase::Applying) || failed_change(status).is_some();
    let is_over = !context.is_down() && !gpu_node.is_silent() && !gpu_node.status().is_some_and(goes_back);
    let may_end = gpu_node.preparation().is_some() || (gpu_node.failed_drain().is_some() && is_over);
    if may_end && drain_stage(policy, context).is_none() {
        return true;
    }
    let keeps_place = matches!(stage, Some(RolloutStage::Stepping | RolloutStage::Stopped(_)));
    let must_not_change = context.is_released() || context.is_served_by_dra() || (!context.node.ready && !keeps_place);
    let is_void = gpu_node.change.as_ref().is_some_and(|change| gpu_node.is_void(change));
    is_void || (must_not_change && gpu_node.unfinished_approval().is_some())
}

/// Returns the change that ends a drain, or takes an unfinished approval back; none if there is neither. What the agent has begun
/// it finishes.
pub fn withdraw_change(gpu_node: &GpuNodeFacts) -> GpuNodeChange {
    if gpu_node.unfinished_approval().is_none() && gpu_node.preparation().is_none() {
        return GpuNodeChange::None;
    }
    GpuNodeChange::Step {
        resource_version: gpu_node.resource_version.clone(),
        step: gpu_node.step.clone(),
        change: None,
    }
}

/// The same for a node on which nothing else is written. A failure of the approved change stays recorded: it stops the rollout.
pub fn withdraw_ignored(gpu_node: &GpuNodeFacts, policy: &Policy, stage: Option<&RolloutStage>) -> GpuNodeChange {
    match (withdraw_change(gpu_node), stage) {
        (
            GpuNodeChange::Step {
                resource_version,
                change,
                ..
            },
            Some(RolloutStage::Stopped(why)),
        ) => GpuNodeChange::Step {
            resource_version,
            step: failed_step(gpu_node, policy, why),
            change,
        },
        (change, _) => change,
    }
}

/// Returns the step of a node that failed, or its last change that did, with the reason; what is recorded stays.
fn failed_step(gpu_node: &GpuNodeFacts, policy: &Policy, why: &str) -> Option<ConfigurationStep> {
    let unfinished = gpu_node.unfinished_step();
    if unfinished.is_some_and(|step| step.failed.is_some()) {
        return gpu_node.step.clone();
    }
    let changed = || {
        let change = gpu_node.unfinished_approval().or(gpu_node.failed_drain());
        change.map(|change| change.since.clone())
    };
    let started_at = unfinished.map(|step| step.started_at.clone()).or_else(changed)?;
    Some(ConfigurationStep {
        started_at,
        generation: unfinished.map_or(policy.generation, |step| step.generation),
        failed: Some(why.chars().take(MAX_FAILED_MESSAGE).collect()),
    })
}

/// Returns the change that ends a drain, which would withhold the GPUs for as long; none if there is none.
pub fn ended_drain(context: NodeContext<'_>) -> GpuNodeChange {
    let drained = context.gpu_node.filter(|gpu_node| gpu_node.preparation().is_some());
    drained.map(withdraw_change).unwrap_or_default()
}

fn new_step(gpu_node: &GpuNodeFacts, policy: &Policy, now: Timestamp) -> ConfigurationStep {
    let before = gpu_node.step.as_ref().map(|step| step.started_at.0);
    ConfigurationStep {
        started_at: Time(unused_second([before, gpu_node.finished_step], now)),
        generation: policy.generation,
        failed: None,
    }
}

/// Returns the devices of a node whose change waits for their holders, and the GPUs that something else keeps from their layout;
/// none of a node that is down, whose agent reports pods that may have ended long ago.
pub fn waiting_devices(context: NodeContext<'_>) -> Vec<NodeWaiting> {
    let status = context.status().filter(|_| context.node.ready);
    let failed = context.gpu_node.and_then(GpuNodeFacts::failed_drain);
    let failed = failed.and_then(|failed| failed.message.clone());
    let devices = status.into_iter().flat_map(|status| &status.waiting);
    let waiting = devices.map(|it| NodeWaiting {
        node: context.node.name.clone(),
        device: it.device.clone(),
        pods: it.pods.clone(),
        message: failed.clone().filter(|_| it.switches),
    });
    waiting.chain(blocked_gpus(context)).collect()
}

fn configure(gpu_node: &GpuNodeFacts, config: Option<Configuration>, step: Option<ConfigurationStep>) -> GpuNodeChange {
    GpuNodeChange::Configure {
        resource_version: gpu_node.resource_version.clone(),
        config,
        step,
    }
}

/// Returns the change that puts a removed reference to the Node back; none if the `GpuNode` has one to any Node.
pub fn missing_owner(context: NodeContext<'_>) -> Option<GpuNodeChange> {
    let gpu_node = context.gpu_node?;
    let owners = &gpu_node.owners;
    let is_owned = owners.iter().any(|owner| owner.kind == "Node");
    (!is_owned && !context.node.uid.is_empty()).then(|| GpuNodeChange::Own {
        resource_version: gpu_node.resource_version.clone(),
        owners: owners.iter().cloned().chain([owner(context.node)]).collect(),
    })
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
