//! Whether the agent of one node has put its configuration in force.
//!
//! A node that is on its way counts as updating for [`PROGRESS_DEADLINE`]; after that, and at once where it is plainly
//! broken, it counts as failed, so that nobody waits for it for ever.

use crate::{
    agent_config::{unreadable_versions, wanted_configuration},
    facts::NodeFacts,
    outcome::Outcome,
    policies::Policy,
};
use gpunode_crds::{AgentMode, ConditionType, GpuNode, GpuNodeStatus, OPERATOR_FIELD_MANAGER, Reason};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

/// How long a node may take to put a new configuration in force before it counts as failed. As long as the Deployment
/// controller's default `progressDeadlineSeconds`.
pub const PROGRESS_DEADLINE: SignedDuration = SignedDuration::from_mins(10);

/// The outcome of the governing policy on a node to which nothing is left to write, and when to look again though nothing
/// changed.
pub fn agent_outcome(
    node: &NodeFacts,
    governing: &Policy,
    gpu_node: Option<&GpuNode>,
    now: Timestamp,
) -> (Outcome, Option<Timestamp>) {
    let Some(wanted) = wanted_configuration(governing) else {
        let why = governing.refusal.as_deref().unwrap_or("the configuration is refused");
        return (Outcome::failed(Reason::InvalidSpec, why), None);
    };
    if let Some(versions) = unreadable_versions(gpu_node) {
        let message = format!(
            "the agent reads configuration versions {versions:?}, not {}; give it the image that came with the operator",
            wanted.version
        );
        return (Outcome::failed(Reason::ConfigurationPending, message), None);
    }
    let status = gpu_node.and_then(|gpu_node| gpu_node.status.as_ref());
    let in_force = status.filter(|status| is_in_force(status, &wanted.hash));
    if !node.ready {
        let message = "the node is not Ready; see the kubelet on it";
        return if in_force.is_some() {
            (Outcome::failed(Reason::NodeNotReady, message), None)
        } else {
            // A node that has just joined is not Ready for a while.
            within_deadline(node.created.unwrap_or(now), now, Reason::NodeNotReady, message)
        };
    }
    let began = [node.created, gpu_node.and_then(written_at)].into_iter().flatten().max().unwrap_or(now);
    match in_force {
        None => pending(node, status, &wanted.hash, began, now),
        Some(status) => match ConditionType::Ready.find(&status.conditions) {
            Some(condition) if condition.status == "True" => match missing(node, status) {
                None => (Outcome::Ready, None),
                Some(missing) => {
                    // The kubelet tells the node of its devices some seconds after it has told the agent.
                    let began = began.max(condition.last_transition_time.0);
                    within_deadline(began, now, Reason::AgentNotReporting, &missing)
                }
            },
            Some(condition) => not_ready(condition, began, now),
            None => within_deadline(began, now, Reason::Registering, "the agent does not say whether it is Ready"),
        },
    }
}

/// The configuration is not in force.
fn pending(
    node: &NodeFacts,
    status: Option<&GpuNodeStatus>,
    hash: &str,
    began: Timestamp,
    now: Timestamp,
) -> (Outcome, Option<Timestamp>) {
    if let Some(rejected) = status.and_then(|status| status.rejected_config.as_ref()).filter(|it| it.hash == hash) {
        return (Outcome::failed(Reason::ConfigurationRejected, &rejected.message), None);
    }
    let plugin = status.filter(|status| runs_plugin(status));
    let (reason, message) = match plugin.map(|status| missing(node, status)) {
        Some(None) => (
            Reason::ConfigurationPending,
            "the agent reports another configuration than it was given; see its log".to_owned(),
        ),
        Some(Some(missing)) => (Reason::AgentNotReporting, missing),
        None => (Reason::AgentNotReporting, "no agent with the device plugin reports; see its pod".to_owned()),
    };
    within_deadline(began, now, reason, &message)
}

/// What an agent reported stays when the agent is gone. The kubelet knows better: it offers nothing of a device plugin
/// that does not answer.
fn missing(node: &NodeFacts, status: &GpuNodeStatus) -> Option<String> {
    let mut promised = status.resources.iter().filter(|resource| resource.allocatable > 0);
    let resource = promised.find(|resource| !node.offered.contains(&resource.name))?;
    let (name, resource, count) = (&node.name, &resource.name, resource.allocatable);
    Some(format!(
        "the agent reported {count} {resource}, node {name} has 0 to give out; see the agent's pod on {name} and its log"
    ))
}

fn is_in_force(status: &GpuNodeStatus, hash: &str) -> bool {
    status.config_hash.as_deref() == Some(hash) && runs_plugin(status)
}

fn runs_plugin(status: &GpuNodeStatus) -> bool {
    status.agent.as_ref().is_some_and(|agent| agent.mode == AgentMode::DevicePlugin)
}

/// What only a person mends: waiting for it helps nobody.
const BROKEN: [Reason; 6] = [
    Reason::DriverNotFound,
    Reason::DriverFailed,
    Reason::MigInstancesUnequal,
    Reason::MigWithoutInstances,
    Reason::MpsUnsupported,
    Reason::MemoryBelowUnit,
];
/// What may mend itself.
const UNSETTLED: [Reason; 2] = [Reason::MpsDaemonNotAnswering, Reason::HoldersUnknown];

/// The configuration is in force, but the agent says that it is not Ready.
fn not_ready(condition: &Condition, began: Timestamp, now: Timestamp) -> (Outcome, Option<Timestamp>) {
    let said = |reasons: &[Reason]| reasons.iter().copied().find(|reason| condition.reason == reason.as_str());
    if let Some(reason) = said(&BROKEN) {
        return (Outcome::failed(reason, condition.message.clone()), None);
    }
    let reason = said(&UNSETTLED).unwrap_or(Reason::Registering);
    within_deadline(began.max(condition.last_transition_time.0), now, reason, &condition.message)
}

fn within_deadline(began: Timestamp, now: Timestamp, reason: Reason, message: &str) -> (Outcome, Option<Timestamp>) {
    match began.checked_add(PROGRESS_DEADLINE) {
        Ok(deadline) if now < deadline => (Outcome::Updating, Some(deadline)),
        _ => (Outcome::failed(reason, message), None),
    }
}

/// When the operator last wrote the configuration; the API server keeps that time for each field manager.
fn written_at(gpu_node: &GpuNode) -> Option<Timestamp> {
    let entries = gpu_node.metadata.managed_fields.iter().flatten();
    entries
        .filter(|entry| entry.manager.as_deref() == Some(OPERATOR_FIELD_MANAGER))
        .filter_map(|entry| entry.time.as_ref().map(|time| time.0))
        .max()
}
