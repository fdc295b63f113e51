//! The configuration in `GpuNode.spec`.

use crate::{
    gpu_node::{change::GpuNodeChange, requests::initial_requests},
    input::{context::NodeContext, facts::NodeFacts, gpu_node_facts::GpuNodeFacts, policies::Policy},
    rollout_stage::RolloutStage,
    time::whole_second,
};
use gpunode_config::CONFIG_VERSION;
use gpunode_crds::{
    Configuration, ConfigurationStep, GpuNode, GpuNodeSpec, GpuNodeStatus, MAX_FAILED_MESSAGE, NodeWaiting,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
use std::collections::BTreeSet;

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

/// Part of a policy's configuration that the agent of a node cannot read.
#[derive(Debug, PartialEq, Eq)]
pub enum UnreadableConfiguration<'a> {
    /// The agent reads these versions of the document alone.
    Version(&'a [i32]),
    /// Fields, and values of enums, that the agent does not know.
    Fields(Vec<&'a str>),
}

/// Returns the part of a policy's configuration that the agent of the node cannot read, as far as it reports what it can.
pub fn unreadable_configuration<'a>(
    governing: &'a Policy,
    gpu_node: Option<&'a GpuNodeFacts>,
) -> Option<UnreadableConfiguration<'a>> {
    let agent = gpu_node?.status()?.agent.as_ref()?;
    if !agent.config_versions.is_empty() && !agent.config_versions.contains(&CONFIG_VERSION) {
        return Some(UnreadableConfiguration::Version(&agent.config_versions));
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
    (!unknown.is_empty()).then_some(UnreadableConfiguration::Fields(unknown))
}

/// Returns true if the policy's configuration can be written for the node.
pub fn is_writable(governing: &Policy, gpu_node: Option<&GpuNodeFacts>) -> bool {
    desired_configuration(governing).is_some() && unreadable_configuration(governing, gpu_node).is_none()
}

/// Returns true if a node needs MPS daemons: for its configuration, or because daemons still run there. The label must outlive
/// the configuration, since a daemon ends with its last client.
pub fn needs_mps(governing: Option<&Policy>, context: NodeContext<'_>) -> bool {
    let is_desired = governing
        .and_then(|policy| policy.device_plugin.as_ref())
        .is_some_and(|plugin| plugin.wants_mps);
    is_desired || context.status().is_some_and(|status| !status.mps_daemons.is_empty())
}

/// Returns the change that gives a node the configuration of its governing policy, or takes it away. `stage` is the node's
/// stage on the way to that configuration.
pub fn configuration_change(
    governing: Option<&Policy>,
    context: NodeContext<'_>,
    stage: Option<&RolloutStage>,
) -> GpuNodeChange {
    let NodeContext { node, now, .. } = context;
    match (governing, context.gpu_node) {
        (Some(policy), Some(gpu_node)) => {
            let desired =
                desired_configuration(policy).filter(|_| unreadable_configuration(policy, Some(gpu_node)).is_none());
            match (desired, &gpu_node.spec.config) {
                (None, _) => GpuNodeChange::None,
                (Some(desired), Some(current)) if desired == *current => {
                    // A step that the agent has finished needs no write.
                    let step = gpu_node.unfinished_step();
                    step.map_or(GpuNodeChange::None, |step| {
                        step_change(gpu_node, step, policy, stage, now)
                    })
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

/// Returns the change of the unfinished step of a node that already has the desired configuration.
fn step_change(
    gpu_node: &GpuNodeFacts,
    step: &ConfigurationStep,
    policy: &Policy,
    stage: Option<&RolloutStage>,
    now: Timestamp,
) -> GpuNodeChange {
    let next = match stage {
        // An older agent does not say that it has finished the step. Left in the spec, it would count again in an outage.
        Some(RolloutStage::Done) => None,
        Some(RolloutStage::Stopped(why)) if step.failed.is_none() => {
            let failed = Some(why.chars().take(MAX_FAILED_MESSAGE).collect());
            Some(ConfigurationStep { failed, ..step.clone() })
        }
        Some(RolloutStage::Stepping) if step.generation != policy.generation => Some(new_step(gpu_node, policy, now)),
        _ => return GpuNodeChange::None,
    };
    GpuNodeChange::Step {
        resource_version: gpu_node.resource_version.clone(),
        step: next,
    }
}

fn new_step(gpu_node: &GpuNodeFacts, policy: &Policy, now: Timestamp) -> ConfigurationStep {
    ConfigurationStep {
        started_at: Time(step_start(gpu_node, now)),
        generation: policy.generation,
        failed: None,
    }
}

/// Returns the start of a new step: the first second that neither the step before nor the agent's report has, which
/// would finish the new one.
fn step_start(gpu_node: &GpuNodeFacts, now: Timestamp) -> Timestamp {
    let before = gpu_node.step.as_ref().map(|step| step.started_at.0);
    let taken = [before, gpu_node.finished_step].map(|start| start.map(whole_second));
    let start = whole_second(now);
    (0..=2)
        .filter_map(|seconds| start.checked_add(SignedDuration::from_secs(seconds)).ok())
        .find(|start| !taken.contains(&Some(*start)))
        .unwrap_or(start)
}

/// Returns the devices of a node whose change waits for their holders; none of a node that is down, whose agent reports pods
/// that may have ended long ago.
pub fn waiting_devices(context: NodeContext<'_>) -> Vec<NodeWaiting> {
    let status = context.status().filter(|_| context.node.ready);
    let devices = status.into_iter().flat_map(|status| &status.waiting);
    let waiting = devices.map(|it| NodeWaiting {
        node: context.node.name.clone(),
        device: it.device.clone(),
        pods: it.pods.clone(),
    });
    waiting.collect()
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
