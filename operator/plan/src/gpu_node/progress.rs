//! The progress of a node's agent with its configuration, and the node's stage in the rollout of its policy.
//!
//! A changing node counts as updating until the policy's `progressDeadline`. After that, and at once where it is plainly
//! broken, it counts as failed, so that nobody waits for it for ever.

use crate::{
    gpu_node::{
        configuration::{configuration_obstacle, desired_configuration},
        drain::{DrainStage, drain_stage},
        mig_progress::{awaits_approval, failed_change, has_phase, mig_failure, rolled_back, unfinished_change},
        progress_messages::{
            INVALID_CONFIGURATION, NO_DEVICE_PLUGIN, NO_READY_CONDITION, NODE_NOT_READY, OTHER_CONFIGURATION, RELEASED,
            deadline_exceeded, hand_over_pending, not_allocatable,
        },
    },
    input::{context::NodeContext, facts::NodeFacts, gpu_node_facts::GpuNodeFacts, policies::Policy},
    outcome::PolicyOutcome,
    rollout_stage::RolloutStage,
    time::earliest,
};
use gpunode_crds::{AgentMode, ConditionType, GpuNodeStatus, MigPhase, Reason, SERVED_BY_DRA};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

/// Returns the outcome of the governing policy on a node that needs no more writes, and the moment to plan again.
pub fn agent_outcome(governing: &Policy, context: NodeContext<'_>) -> (PolicyOutcome, Option<Timestamp>) {
    let Some(desired) = desired_configuration(governing) else {
        let why = governing.refusal.as_deref().unwrap_or(INVALID_CONFIGURATION);
        return (PolicyOutcome::failed(Reason::InvalidSpec, why), None);
    };
    if let Some(obstacle) = configuration_obstacle(governing, context) {
        return (PolicyOutcome::failed(obstacle.reason(), obstacle.to_string()), None);
    }
    outcome_in_force(governing, &desired.hash, context)
}

/// Returns the outcome of a policy on a node that keeps the configuration with this hash, whatever the policy says.
pub fn outcome_in_force(
    governing: &Policy,
    hash: &str,
    context: NodeContext<'_>,
) -> (PolicyOutcome, Option<Timestamp>) {
    let assigned = AssignedConfiguration {
        hash,
        policy: Some(&governing.name),
    };
    let deadline = ProgressDeadline::of(governing, context);
    match outcome_of(assigned, deadline, context) {
        (PolicyOutcome::Ready, None) => match drain_stage(governing, context) {
            Some(DrainStage::Due) => (PolicyOutcome::Updating, None),
            Some(DrainStage::UnderWay(end)) => (PolicyOutcome::Updating, end),
            Some(DrainStage::Postponed(_)) | None => mig_outcome(deadline, context),
        },
        outcome => outcome,
    }
}

/// Returns true if an agent, perhaps of another policy, serves a node with the configuration of this hash.
pub fn is_served(governing: &Policy, hash: &str, context: NodeContext<'_>) -> bool {
    let assigned = AssignedConfiguration { hash, policy: None };
    outcome_of(assigned, ProgressDeadline::of(governing, context), context).0 == PolicyOutcome::Ready
}

/// Configuration that a node was given.
#[derive(Clone, Copy)]
struct AssignedConfiguration<'a> {
    /// Hash of the configuration.
    hash: &'a str,
    /// Policy whose agent must serve; `None` if any agent will do.
    policy: Option<&'a str>,
}

/// Returns the node's stage on the way to the configuration of its governing policy, and the moment to plan again; none where
/// that configuration is invalid.
pub fn rollout_stage(governing: &Policy, context: NodeContext<'_>) -> Option<(RolloutStage, Option<Timestamp>)> {
    let desired = desired_configuration(governing)?;
    let Some((gpu_node, current)) = context.gpu_node.and_then(|it| Some((it, it.configuration()?))) else {
        return Some((RolloutStage::Outside, None));
    };
    let deadline = ProgressDeadline::of(governing, context);
    let assigned = AssignedConfiguration {
        hash: &current.hash,
        policy: Some(&current.policy),
    };
    let (outcome, recheck) = outcome_of(assigned, deadline, context);
    let is_desired = *current == desired;
    let is_approved = gpu_node.unfinished_approval().is_some();
    let has_failed_gpu = context.status().and_then(failed_change).is_some();
    // A recorded failure lasts, whatever becomes of the node: the configuration is as bad as it was.
    if is_desired
        && (outcome != PolicyOutcome::Ready || is_approved || has_failed_gpu)
        && let Some(why) = recorded_failure(gpu_node, &current.hash)
    {
        return Some((RolloutStage::Stopped(why), None));
    }
    // Another owner of the GPUs is no failure of this configuration.
    let is_down = context.is_down() || context.is_served_by_dra();
    if configuration_obstacle(governing, context).is_some() {
        let works = match outcome {
            PolicyOutcome::Ready => true,
            PolicyOutcome::Updating => !is_down && has_in_force(gpu_node, &current.hash),
            PolicyOutcome::Failed { .. } | PolicyOutcome::Conflicted { .. } => false,
        };
        let stage = if works {
            RolloutStage::AwaitsAgent
        } else {
            RolloutStage::Outside
        };
        return Some((stage, None));
    }
    // The agent has finished the step, and the kubelet shows the resources some seconds later.
    if outcome == PolicyOutcome::Updating
        && let Some(end) = deadline.settling_ends()
    {
        return Some((RolloutStage::Stepping, earliest([recheck, Some(end)])));
    }
    if is_approved
        && !context.is_released()
        && !context.is_served_by_dra()
        && let Some(stage) = approved_stage(&outcome, is_desired, deadline, context)
    {
        return Some(stage);
    }
    // Whatever became of the approval: a GPU goes back only from a change that was approved. A drain under way ends first.
    let reported = context.status().filter(|status| is_in_force(status, &current.hash));
    if is_desired
        && gpu_node.preparation().is_none()
        && !context.is_released()
        && !context.is_served_by_dra()
        && let Some(message) = reported.and_then(rolled_back)
    {
        let why = format!("{}: {message}", Reason::MigFailed.as_str());
        return Some((RolloutStage::Stopped(why), None));
    }
    let works = outcome == PolicyOutcome::Ready && !has_failed_gpu;
    let awaits_approval = awaits_approval(context);
    match drain_stage(governing, context).filter(|_| is_desired) {
        Some(DrainStage::UnderWay(end)) => return Some((RolloutStage::Stepping, end)),
        Some(DrainStage::Due) if works => return Some((RolloutStage::Pending, None)),
        // A GPU that is free has not to wait for pods of another one.
        Some(DrainStage::Postponed(until)) if works && !awaits_approval => {
            return Some((RolloutStage::Done, Some(until)));
        }
        Some(DrainStage::Due | DrainStage::Postponed(_)) | None => {}
    }
    let is_stepping = gpu_node.unfinished_step().is_some_and(|step| step.failed.is_none());
    // Maps the outcome to a stage, depending on a step under way.
    let stage = match outcome {
        PolicyOutcome::Ready if is_desired && awaits_approval => RolloutStage::Pending,
        PolicyOutcome::Ready if is_desired => match unapproved_change_ends(deadline, context) {
            Some(end) => return Some((RolloutStage::Stepping, Some(end))),
            None => RolloutStage::Done,
        },
        PolicyOutcome::Ready => RolloutStage::Pending,
        // A node that goes down during its step keeps its stage for as long as any other would.
        PolicyOutcome::Updating | PolicyOutcome::Failed { .. } if is_stepping && is_down => {
            match deadline.step_ends() {
                Some(end) => return Some((RolloutStage::Stepping, Some(end))),
                None => RolloutStage::Outside,
            }
        }
        PolicyOutcome::Updating if is_stepping => return Some((RolloutStage::Stepping, recheck)),
        // An agent that restarts, or takes over, for a moment has worked before.
        PolicyOutcome::Updating if !is_down && has_in_force(gpu_node, &current.hash) => {
            if is_desired {
                RolloutStage::Done
            } else {
                RolloutStage::Pending
            }
        }
        PolicyOutcome::Failed { reason, message } if is_stepping && is_desired => {
            RolloutStage::Stopped(format!("{}: {message}", reason.as_str()))
        }
        PolicyOutcome::Updating | PolicyOutcome::Failed { .. } | PolicyOutcome::Conflicted { .. } => {
            RolloutStage::Outside
        }
    };
    Some((stage, None))
}

/// Returns the stage of a node with an unfinished approval; none once nobody waits for it. `outcome` is that of its agent.
fn approved_stage(
    outcome: &PolicyOutcome,
    is_desired: bool,
    deadline: ProgressDeadline,
    context: NodeContext<'_>,
) -> Option<(RolloutStage, Option<Timestamp>)> {
    let status = context.status();
    let stopped = |reason: Reason, message: &str| {
        let why = format!("{}: {message}", reason.as_str());
        // Another configuration may mend it.
        is_desired.then_some((RolloutStage::Stopped(why), None))
    };
    if let Some(message) = status.and_then(failed_change) {
        return stopped(Reason::MigFailed, &message);
    }
    // A person reboots it when it suits; it is down meanwhile.
    if status.is_some_and(|status| has_phase(status, MigPhase::RebootRequired)) {
        return Some((RolloutStage::Stepping, None));
    }
    match (outcome, deadline.step_ends()) {
        (PolicyOutcome::Failed { reason, message }, _) if context.node.ready => stopped(*reason, message),
        // A node that goes down keeps its place for as long as in a step: others must not follow it at once.
        (_, Some(end)) => Some((RolloutStage::Stepping, Some(end))),
        (_, None) if !context.node.ready => None,
        (_, None) => {
            let message = deadline_exceeded(deadline.allowed, &unfinished_change(status));
            stopped(Reason::ProgressDeadlineExceeded, &message)
        }
    }
}

/// Returns the end of the time in which a change without an approval uses the rollout's budget; none if none is under way. The
/// approval was taken back after the agent had begun, or the agent makes the layout again after a reboot.
fn unapproved_change_ends(deadline: ProgressDeadline, context: NodeContext<'_>) -> Option<Timestamp> {
    let is_changing = context
        .status()
        .is_some_and(|status| has_phase(status, MigPhase::Applying));
    let began = deadline.latest(deadline.began, context.node.ready_since);
    deadline.later_end(began).filter(|_| is_changing)
}

/// Returns the outcome of the MIG layouts of a node whose agent serves it.
fn mig_outcome(deadline: ProgressDeadline, context: NodeContext<'_>) -> (PolicyOutcome, Option<Timestamp>) {
    let Some((gpu_node, status)) = context.gpu_node.zip(context.status()) else {
        return (PolicyOutcome::Ready, None);
    };
    if let Some((reason, message)) = mig_failure(status) {
        return (PolicyOutcome::failed(reason, message), None);
    }
    let is_approved = gpu_node.unfinished_approval().is_some();
    if is_approved || has_phase(status, MigPhase::Applying) {
        let began = deadline.latest(deadline.began, context.node.ready_since);
        let message = unfinished_change(Some(status));
        return deadline.wait(began, Reason::ProgressDeadlineExceeded, &message);
    }
    let awaits = has_phase(status, MigPhase::AwaitingApproval);
    (
        if awaits {
            PolicyOutcome::Updating
        } else {
            PolicyOutcome::Ready
        },
        None,
    )
}

/// Returns the failure of a node's step to the configuration of this hash: the recorded one, or the agent's rejection.
/// None of a step that the agent has finished: whatever fails later fails for another reason.
fn recorded_failure(gpu_node: &GpuNodeFacts, hash: &str) -> Option<String> {
    let step = gpu_node.unfinished_step()?;
    let rejected = || {
        gpu_node
            .status()?
            .rejected_config
            .as_ref()
            .filter(|rejected| rejected.hash == hash)
    };
    let rejection = |message: &str| format!("{}: {message}", Reason::ConfigurationRejected.as_str());
    step.failed
        .clone()
        .or_else(|| rejected().map(|rejected| rejection(&rejected.message)))
}

/// Start and length of the time in which a configuration must come into force.
#[derive(Clone, Copy)]
struct ProgressDeadline {
    began: Timestamp,
    allowed: SignedDuration,
    /// Start of the node's step in a rollout, or of an approved change, unless the agent has finished it.
    step: Option<Timestamp>,
    /// Start of the node's last step or change that the agent has finished.
    finished: Option<Timestamp>,
    now: Timestamp,
}

impl ProgressDeadline {
    fn of(
        governing: &Policy,
        NodeContext {
            node, gpu_node, now, ..
        }: NodeContext<'_>,
    ) -> Self {
        let began = [node.created, gpu_node.and_then(|gpu_node| gpu_node.written_at)]
            .into_iter()
            .flatten()
            .max()
            .unwrap_or(now);
        let deadline = Self {
            began,
            allowed: governing.pace.progress_deadline(),
            step: None,
            finished: gpu_node
                .and_then(|gpu_node| gpu_node.finished_step_start().max(gpu_node.finished_change_start())),
            now,
        };
        let step = gpu_node
            .and_then(GpuNodeFacts::unfinished_step)
            .map(|step| match step.failed {
                Some(_) => step.started_at.0,
                None if step.generation != governing.generation => now,
                // Nothing comes into force on a node that is down.
                None => deadline.latest(step.started_at.0, node.ready_since),
            });
        let approval = gpu_node.and_then(GpuNodeFacts::unfinished_approval);
        let step = step.or_else(|| Some(deadline.latest(approval?.since.0, node.ready_since)));
        Self { step, ..deadline }
    }

    /// Returns the later of two moments, of which a node reported the second. Ignores a report further ahead than the time
    /// allowed: the node's clock is wrong.
    fn latest(self, known: Timestamp, reported: Option<Timestamp>) -> Timestamp {
        let reported = reported.filter(|reported| reported.duration_since(self.now) <= self.allowed);
        reported.map_or(known, |reported| known.max(reported))
    }

    /// Returns the end of a step that is still under way.
    fn step_ends(self) -> Option<Timestamp> {
        self.later_end(self.step?)
    }

    /// Returns the end of the time in which a node whose agent has finished its step may still use the rollout's budget.
    fn settling_ends(self) -> Option<Timestamp> {
        self.later_end(self.finished?)
    }

    /// Returns the end of the time allowed from `start`, if it is to come.
    fn later_end(self, start: Timestamp) -> Option<Timestamp> {
        start.checked_add(self.allowed).ok().filter(|end| self.now < *end)
    }

    /// Waits for the node. A rollout counts from the start of the node's step, whatever its agent does meanwhile.
    fn wait(self, since: Timestamp, reason: Reason, message: &str) -> (PolicyOutcome, Option<Timestamp>) {
        let Some(step) = self.step else {
            return self.within(since, reason, message);
        };
        let message = deadline_exceeded(self.allowed, message);
        self.within(step, Reason::ProgressDeadlineExceeded, &message)
    }

    /// Counts as updating until the time allowed is over, and as failed after.
    fn within(self, since: Timestamp, reason: Reason, message: &str) -> (PolicyOutcome, Option<Timestamp>) {
        match since.checked_add(self.allowed) {
            Ok(end) if self.now < end => (PolicyOutcome::Updating, Some(end)),
            _ => (PolicyOutcome::failed(reason, message), None),
        }
    }
}

/// Returns the outcome of an assigned configuration.
fn outcome_of(
    assigned: AssignedConfiguration<'_>,
    deadline: ProgressDeadline,
    context: NodeContext<'_>,
) -> (PolicyOutcome, Option<Timestamp>) {
    let NodeContext { node, .. } = context;
    let status = context.status();
    let in_force = status.filter(|status| is_in_force(status, assigned.hash));
    if !node.ready {
        return if in_force.is_some() {
            (PolicyOutcome::failed(Reason::NodeNotReady, NODE_NOT_READY), None)
        } else {
            // A node that has just joined is not Ready for a while.
            let joined = node.created.unwrap_or(deadline.now);
            deadline.within(joined, Reason::NodeNotReady, NODE_NOT_READY)
        };
    }
    if context.is_released() {
        return (PolicyOutcome::failed(Reason::Released, RELEASED), None);
    }
    // An older agent does not know, and reports that it serves the node.
    if context.is_served_by_dra() {
        return (PolicyOutcome::failed(Reason::ServedByAnother, SERVED_BY_DRA), None);
    }
    let Some(status) = in_force else {
        return configuration_pending(node, status, assigned.hash, deadline);
    };
    match ConditionType::Ready.find(context.conditions()) {
        Some(condition) if condition.status == "True" => match missing_resource(node, status) {
            None => hand_over_outcome(node, status, assigned, deadline),
            Some(missing) => {
                // The kubelet updates the node some seconds after it tells the agent.
                let began = deadline.latest(deadline.began, Some(condition.last_transition_time.0));
                deadline.wait(began, Reason::AgentNotReporting, &missing)
            }
        },
        Some(condition) => not_ready_outcome(condition, deadline),
        None => deadline.wait(deadline.began, Reason::Registering, NO_READY_CONDITION),
    }
}

/// Returns the outcome where an agent serves the node. The agent of another policy serves until the one of this policy takes
/// over, which a broken one never does.
fn hand_over_outcome(
    node: &NodeFacts,
    status: &GpuNodeStatus,
    assigned: AssignedConfiguration<'_>,
    deadline: ProgressDeadline,
) -> (PolicyOutcome, Option<Timestamp>) {
    let serving = status.agent.as_ref().and_then(|agent| agent.policy.as_deref());
    let (Some(serving), Some(policy)) = (serving, assigned.policy) else {
        return (PolicyOutcome::Ready, None);
    };
    if serving == policy {
        return (PolicyOutcome::Ready, None);
    }
    let message = hand_over_pending(serving, policy, &node.name);
    deadline.wait(deadline.began, Reason::HandOverPending, &message)
}

/// Returns the outcome where the configuration is not in force.
fn configuration_pending(
    node: &NodeFacts,
    status: Option<&GpuNodeStatus>,
    hash: &str,
    deadline: ProgressDeadline,
) -> (PolicyOutcome, Option<Timestamp>) {
    if let Some(rejected) = status
        .and_then(|status| status.rejected_config.as_ref())
        .filter(|it| it.hash == hash)
    {
        let outcome = PolicyOutcome::failed(Reason::ConfigurationRejected, &rejected.message);
        return (outcome, None);
    }
    let plugin = status.filter(|status| runs_plugin(status));
    let (reason, message) = match plugin.map(|status| missing_resource(node, status)) {
        Some(None) => (Reason::ConfigurationPending, OTHER_CONFIGURATION.to_owned()),
        Some(Some(missing)) => (Reason::AgentNotReporting, missing),
        None => (Reason::AgentNotReporting, NO_DEVICE_PLUGIN.to_owned()),
    };
    deadline.wait(deadline.began, reason, &message)
}

/// Describes a reported resource that is not allocatable. An agent's report outlives the agent, and the kubelet knows better:
/// it advertises nothing of a device plugin that does not answer.
fn missing_resource(node: &NodeFacts, status: &GpuNodeStatus) -> Option<String> {
    let mut promised = status.resources.iter().filter(|resource| resource.allocatable > 0);
    let resource = promised.find(|resource| !node.allocatable.contains_key(&resource.name))?;
    Some(not_allocatable(resource.allocatable, &resource.name, &node.name))
}

fn has_in_force(gpu_node: &GpuNodeFacts, hash: &str) -> bool {
    gpu_node.status().is_some_and(|status| is_in_force(status, hash))
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

/// Reasons that only a person can resolve: waiting helps nobody.
const NEEDS_A_PERSON: [Reason; 8] = [
    Reason::DriverNotFound,
    Reason::DriverFailed,
    Reason::MigInstancesUnequal,
    Reason::MigWithoutInstances,
    Reason::MpsUnsupported,
    Reason::MemoryBelowUnit,
    Reason::FileRefused,
    Reason::ServedByAnother,
];
/// Reasons that may resolve themselves.
const MAY_RESOLVE: [Reason; 5] = [
    Reason::MpsDaemonNotAnswering,
    Reason::CdiNotDescribed,
    Reason::HoldersUnknown,
    Reason::Released,
    Reason::DriverNotReady,
];

/// Returns the outcome where the configuration is in force and the agent reports that it is not Ready.
fn not_ready_outcome(condition: &Condition, deadline: ProgressDeadline) -> (PolicyOutcome, Option<Timestamp>) {
    let reported = |reasons: &[Reason]| {
        reasons
            .iter()
            .copied()
            .find(|reason| condition.reason == reason.as_str())
    };
    if let Some(reason) = reported(&NEEDS_A_PERSON) {
        return (PolicyOutcome::failed(reason, condition.message.clone()), None);
    }
    let reason = reported(&MAY_RESOLVE).unwrap_or(Reason::Registering);
    let began = deadline.latest(deadline.began, Some(condition.last_transition_time.0));
    deadline.wait(began, reason, &condition.message)
}
