//! Whether the agent of one node has put its configuration in force, and where the node is in the rollout of its policy.
//!
//! A node that is on its way counts as updating for the policy's `progressDeadline`; after that, and at once where it is
//! plainly broken, it counts as failed, so that nobody waits for it for ever.

use crate::{
    fleet::rollout::RolloutStage,
    gpu_node::configuration::{unreadable_versions, wanted_configuration},
    gpu_node::requests::is_released,
    input::facts::NodeFacts,
    input::policies::Policy,
    outcome::PolicyOutcome,
};
use gpunode_crds::{AgentMode, ConditionType, GpuNode, GpuNodeStatus, OPERATOR_FIELD_MANAGER, Reason};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

/// The outcome of the governing policy on a node to which nothing is left to write, and when to look again though nothing
/// changed.
pub fn agent_outcome(
    node: &NodeFacts,
    governing: &Policy,
    gpu_node: Option<&GpuNode>,
    now: Timestamp,
) -> (PolicyOutcome, Option<Timestamp>) {
    let Some(wanted) = wanted_configuration(governing) else {
        let why = governing.refusal.as_deref().unwrap_or("the configuration is refused");
        return (PolicyOutcome::failed(Reason::InvalidSpec, why), None);
    };
    if let Some(versions) = unreadable_versions(gpu_node) {
        let message = format!(
            "the agent reads configuration versions {versions:?}, not {}; give it the image that came with the operator",
            wanted.version
        );
        return (PolicyOutcome::failed(Reason::ConfigurationPending, message), None);
    }
    outcome_of(
        node,
        Given::to(&wanted.hash, governing),
        Clock::of(node, governing, gpu_node, now),
        gpu_node,
    )
}

/// The outcome of a policy on a node that keeps the configuration with this hash, whatever the policy says.
pub fn outcome_in_force(
    node: &NodeFacts,
    governing: &Policy,
    hash: &str,
    gpu_node: Option<&GpuNode>,
    now: Timestamp,
) -> (PolicyOutcome, Option<Timestamp>) {
    outcome_of(
        node,
        Given::to(hash, governing),
        Clock::of(node, governing, gpu_node, now),
        gpu_node,
    )
}

/// Whether some agent serves a node with the configuration of this hash, be it that of another policy.
pub fn is_served(node: &NodeFacts, governing: &Policy, hash: &str, gpu_node: Option<&GpuNode>, now: Timestamp) -> bool {
    let given = Given { hash, policy: None };
    outcome_of(node, given, Clock::of(node, governing, gpu_node, now), gpu_node).0 == PolicyOutcome::Ready
}

/// What a node was given.
#[derive(Clone, Copy)]
struct Given<'a> {
    /// The configuration with this hash.
    hash: &'a str,
    /// The agent of the policy of this name, where that matters.
    policy: Option<&'a str>,
}

impl<'a> Given<'a> {
    fn to(hash: &'a str, policy: &'a Policy) -> Self {
        Self {
            hash,
            policy: Some(&policy.name),
        }
    }
}

/// Where a node is on its way to the configuration of the policy that governs it, and when to look again; nowhere where that
/// configuration is refused.
pub fn stage(
    node: &NodeFacts,
    governing: &Policy,
    gpu_node: Option<&GpuNode>,
    now: Timestamp,
) -> Option<(RolloutStage, Option<Timestamp>)> {
    let wanted = wanted_configuration(governing)?;
    let Some((gpu_node, current)) = gpu_node.and_then(|it| Some((it, it.spec.config.as_ref()?))) else {
        return Some((RolloutStage::Outside, None));
    };
    let clock = Clock::of(node, governing, Some(gpu_node), now);
    let given = Given {
        hash: &current.hash,
        policy: Some(&current.policy),
    };
    let (outcome, deadline) = outcome_of(node, given, clock, Some(gpu_node));
    let is_wanted = *current == wanted;
    // A verdict lasts, whatever becomes of the node: the configuration is as bad as it was.
    if is_wanted
        && outcome != PolicyOutcome::Ready
        && let Some(why) = verdict(gpu_node, &current.hash)
    {
        return Some((RolloutStage::Stopped(why), None));
    }
    if unreadable_versions(Some(gpu_node)).is_some() {
        return Some((RolloutStage::Outside, None));
    }
    let is_down = !node.ready || is_released(node);
    let had_a_turn = gpu_node.spec.step.as_ref().is_some_and(|step| step.failed.is_none());
    let stage = match outcome {
        PolicyOutcome::Ready if is_wanted => RolloutStage::Done,
        PolicyOutcome::Ready => RolloutStage::Pending,
        // One that goes down at its turn keeps its place for as long as any other would.
        PolicyOutcome::Updating | PolicyOutcome::Failed { .. } if had_a_turn && is_down => match clock.turn_ends() {
            Some(end) => return Some((RolloutStage::Stepping, Some(end))),
            None => RolloutStage::Outside,
        },
        PolicyOutcome::Updating if had_a_turn => return Some((RolloutStage::Stepping, deadline)),
        // An agent that starts again, or takes over, for a moment has worked before.
        PolicyOutcome::Updating if !is_down && has_in_force(gpu_node, &current.hash) => {
            if is_wanted {
                RolloutStage::Done
            } else {
                RolloutStage::Pending
            }
        }
        PolicyOutcome::Failed { reason, message } if had_a_turn && is_wanted => {
            RolloutStage::Stopped(format!("{}: {message}", reason.as_str()))
        }
        PolicyOutcome::Updating | PolicyOutcome::Failed { .. } | PolicyOutcome::Conflicted { .. } => {
            RolloutStage::Outside
        }
    };
    Some((stage, None))
}

/// Why a node failed with the configuration of this hash that it was given at its turn, as it is written down or as the
/// agent says.
fn verdict(gpu_node: &GpuNode, hash: &str) -> Option<String> {
    let step = gpu_node.spec.step.as_ref()?;
    let rejected = || {
        gpu_node
            .status
            .as_ref()?
            .rejected_config
            .as_ref()
            .filter(|rejected| rejected.hash == hash)
    };
    let words = |message: &str| format!("{}: {message}", Reason::ConfigurationRejected.as_str());
    step.failed
        .clone()
        .or_else(|| rejected().map(|rejected| words(&rejected.message)))
}

/// Since when a node has had its configuration, and how long that may take.
#[derive(Clone, Copy)]
struct Clock {
    began: Timestamp,
    allowed: SignedDuration,
    /// Since when it counts that it is its turn in a rollout.
    turn: Option<Timestamp>,
    now: Timestamp,
}

impl Clock {
    fn of(node: &NodeFacts, governing: &Policy, gpu_node: Option<&GpuNode>, now: Timestamp) -> Self {
        let began = [node.created, gpu_node.and_then(written_at)]
            .into_iter()
            .flatten()
            .max()
            .unwrap_or(now);
        let clock = Self {
            began,
            allowed: governing.pace.progress_deadline(),
            turn: None,
            now,
        };
        let turn = gpu_node
            .and_then(|gpu_node| gpu_node.spec.step.as_ref())
            .map(|step| match step.failed {
                Some(_) => step.started_at.0,
                None if step.generation != governing.generation => now,
                // Nothing comes into force on a node that is down.
                None => clock.latest(step.started_at.0, node.ready_since),
            });
        Self { turn, ..clock }
    }

    /// The later of two moments, of which a node told the second. A node whose clock is ahead by more than the time allowed
    /// would be waited for until then, so such a moment does not count.
    fn latest(self, known: Timestamp, told: Option<Timestamp>) -> Timestamp {
        let told = told.filter(|told| told.duration_since(self.now) <= self.allowed);
        told.map_or(known, |told| known.max(told))
    }

    /// The end of a turn that is not over.
    fn turn_ends(self) -> Option<Timestamp> {
        self.turn?.checked_add(self.allowed).ok().filter(|end| self.now < *end)
    }

    /// A rollout waits from the moment on in which it was the node's turn, whatever its agent does meanwhile.
    fn wait(self, since: Timestamp, reason: Reason, message: &str) -> (PolicyOutcome, Option<Timestamp>) {
        let Some(turn) = self.turn else {
            return within(self.allowed, since, self.now, reason, message);
        };
        let message = format!("not in force after {:#}: {message}", self.allowed);
        within(self.allowed, turn, self.now, Reason::ProgressDeadlineExceeded, &message)
    }
}

/// What became of the configuration with this hash.
fn outcome_of(
    node: &NodeFacts,
    given: Given<'_>,
    clock: Clock,
    gpu_node: Option<&GpuNode>,
) -> (PolicyOutcome, Option<Timestamp>) {
    let hash = given.hash;
    let status = gpu_node.and_then(|gpu_node| gpu_node.status.as_ref());
    let in_force = status.filter(|status| is_in_force(status, hash));
    if !node.ready {
        let message = "the node is not Ready; see the kubelet on it";
        return if in_force.is_some() {
            (PolicyOutcome::failed(Reason::NodeNotReady, message), None)
        } else {
            // A node that has just joined is not Ready for a while.
            within(
                clock.allowed,
                node.created.unwrap_or(clock.now),
                clock.now,
                Reason::NodeNotReady,
                message,
            )
        };
    }
    if is_released(node) {
        let message = "the agents have let go of the GPUs, as a label of the node asks";
        return (PolicyOutcome::failed(Reason::Released, message), None);
    }
    match in_force {
        None => pending(node, status, hash, clock),
        Some(status) => match ConditionType::Ready.find(&status.conditions) {
            Some(condition) if condition.status == "True" => match missing(node, status) {
                None => handed_over(node, status, given, clock),
                Some(missing) => {
                    // The kubelet tells the node of its devices some seconds after it has told the agent.
                    let began = clock.latest(clock.began, Some(condition.last_transition_time.0));
                    clock.wait(began, Reason::AgentNotReporting, &missing)
                }
            },
            Some(condition) => not_ready(condition, clock),
            None => clock.wait(
                clock.began,
                Reason::Registering,
                "the agent does not say whether it is Ready",
            ),
        },
    }
}

/// An agent serves the node. That of another policy does until the one of this policy takes over, which a broken one never does.
fn handed_over(
    node: &NodeFacts,
    status: &GpuNodeStatus,
    given: Given<'_>,
    clock: Clock,
) -> (PolicyOutcome, Option<Timestamp>) {
    let serving = status.agent.as_ref().and_then(|agent| agent.policy.as_deref());
    let (Some(serving), Some(policy)) = (serving, given.policy) else {
        return (PolicyOutcome::Ready, None);
    };
    if serving == policy {
        return (PolicyOutcome::Ready, None);
    }
    let message = format!(
        "the agent of policy {serving} still serves the node, that of {policy} has not taken over; see its pod on {}",
        node.name
    );
    clock.wait(clock.began, Reason::HandOverPending, &message)
}

/// The configuration is not in force.
fn pending(
    node: &NodeFacts,
    status: Option<&GpuNodeStatus>,
    hash: &str,
    clock: Clock,
) -> (PolicyOutcome, Option<Timestamp>) {
    if let Some(rejected) = status
        .and_then(|status| status.rejected_config.as_ref())
        .filter(|it| it.hash == hash)
    {
        return (
            PolicyOutcome::failed(Reason::ConfigurationRejected, &rejected.message),
            None,
        );
    }
    let plugin = status.filter(|status| runs_plugin(status));
    let (reason, message) = match plugin.map(|status| missing(node, status)) {
        Some(None) => (
            Reason::ConfigurationPending,
            "the agent reports another configuration than it was given; see its log".to_owned(),
        ),
        Some(Some(missing)) => (Reason::AgentNotReporting, missing),
        None => (
            Reason::AgentNotReporting,
            "no agent with the device plugin reports; see its pod".to_owned(),
        ),
    };
    clock.wait(clock.began, reason, &message)
}

/// What an agent reported stays when the agent is gone. The kubelet knows better: it offers nothing of a device plugin
/// that does not answer.
fn missing(node: &NodeFacts, status: &GpuNodeStatus) -> Option<String> {
    let mut promised = status.resources.iter().filter(|resource| resource.allocatable > 0);
    let resource = promised.find(|resource| !node.offered.contains_key(&resource.name))?;
    let (name, resource, count) = (&node.name, &resource.name, resource.allocatable);
    Some(format!(
        "the agent reported {count} {resource}, node {name} has 0 to give out; see the agent's pod on {name} and its log"
    ))
}

fn has_in_force(gpu_node: &GpuNode, hash: &str) -> bool {
    gpu_node.status.as_ref().is_some_and(|status| is_in_force(status, hash))
}

fn is_in_force(status: &GpuNodeStatus, hash: &str) -> bool {
    status.config_hash.as_deref() == Some(hash) && runs_plugin(status)
}

fn runs_plugin(status: &GpuNodeStatus) -> bool {
    status
        .agent
        .as_ref()
        .is_some_and(|agent| agent.mode == AgentMode::DevicePlugin)
}

/// What only a person mends: waiting for it helps nobody.
const BROKEN: [Reason; 7] = [
    Reason::DriverNotFound,
    Reason::DriverFailed,
    Reason::MigInstancesUnequal,
    Reason::MigWithoutInstances,
    Reason::MpsUnsupported,
    Reason::MemoryBelowUnit,
    Reason::ServedByAnother,
];
/// What may mend itself.
const UNSETTLED: [Reason; 3] = [Reason::MpsDaemonNotAnswering, Reason::HoldersUnknown, Reason::Released];

/// The configuration is in force, but the agent says that it is not Ready.
fn not_ready(condition: &Condition, clock: Clock) -> (PolicyOutcome, Option<Timestamp>) {
    let said = |reasons: &[Reason]| {
        reasons
            .iter()
            .copied()
            .find(|reason| condition.reason == reason.as_str())
    };
    if let Some(reason) = said(&BROKEN) {
        return (PolicyOutcome::failed(reason, condition.message.clone()), None);
    }
    let reason = said(&UNSETTLED).unwrap_or(Reason::Registering);
    let began = clock.latest(clock.began, Some(condition.last_transition_time.0));
    clock.wait(began, reason, &condition.message)
}

fn within(
    allowed: SignedDuration,
    since: Timestamp,
    now: Timestamp,
    reason: Reason,
    message: &str,
) -> (PolicyOutcome, Option<Timestamp>) {
    match since.checked_add(allowed) {
        Ok(deadline) if now < deadline => (PolicyOutcome::Updating, Some(deadline)),
        _ => (PolicyOutcome::failed(reason, message), None),
    }
}

/// When the operator last wrote the configuration; the API server keeps that time for each field manager.
fn written_at(gpu_node: &GpuNode) -> Option<Timestamp> {
    let entries = gpu_node.metadata.managed_fields.iter().flatten();
    entries
        // It writes conditions of the status as well.
        .filter(|entry| entry.manager.as_deref() == Some(OPERATOR_FIELD_MANAGER) && entry.subresource.is_none())
        .filter_map(|entry| entry.time.as_ref().map(|time| time.0))
        .max()
}
