//! The status of one policy: counts, conditions with the meanings of kstatus, failures, preview.

use crate::{
    fleet::{
        messages::{
            NO_CHANGE, NO_CONFLICT, NO_FAILURE, NO_MATCH, NOT_STALLED, NOTHING_WAITS, agents_late, agents_updating,
            devices_waiting, in_force, nodes_conflict, nodes_failed, nodes_updating, not_in_force_on, paused,
            pods_get_no_gpu, policy_unreadable, preview_only, rollout_stopped,
        },
        tally::PolicyTally,
    },
    input::policies::Policy,
    names::policy_daemonset_name,
    time::whole_second,
};
use gpunode_crds::{ConditionType, GpuNodePolicyStatus, NodeCounts, PolicyMode, Reason, UntimedCondition};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

/// Progress of the DaemonSet of a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentUpdate {
    /// Reason why the API server refuses the DaemonSet, if it does.
    pub refusal: Option<String>,
    /// Number of nodes with an outdated agent. It serves until the new one takes over.
    pub behind: i32,
    /// Number of them on which the policy waits for the new one.
    pub waited_for: i32,
    /// Number of nodes that run an agent.
    pub all: i32,
    /// True if no agent has taken over for the policy's `progressDeadline`.
    pub is_late: bool,
}

/// Returns the status of a policy. `before` is the status it has; its transition times stay where nothing changed, so that an
/// unchanged cluster gives an equal status.
pub fn policy_status(
    policy: &Policy,
    tally: &PolicyTally,
    agents: &AgentUpdate,
    before: Option<&GpuNodePolicyStatus>,
    now: Timestamp,
) -> GpuNodePolicyStatus {
    // In whole seconds, as the API server stores them.
    let now = whole_second(now);
    let before = before.map_or(&[][..], |before| &before.conditions);
    let conditions = conditions(policy, tally, agents).map(|condition| Condition {
        observed_generation: policy.generation,
        ..condition.at(now, before)
    });
    GpuNodePolicyStatus {
        observed_generation: policy.generation,
        conditions: conditions.into(),
        nodes: Some(tally.counts()),
        failures: tally.failures(),
        waiting: tally.waiting(),
        preview: tally.previews(),
    }
}

/// Returns the status of a policy that cannot be read, for this reason. `before` is the status it has.
pub fn unreadable_policy_status(
    generation: Option<i64>,
    error: &str,
    before: Option<&GpuNodePolicyStatus>,
    now: Timestamp,
) -> GpuNodePolicyStatus {
    let now = whole_second(now);
    let before = before.map_or(&[][..], |before| &before.conditions);
    let message = policy_unreadable(error);
    let conditions = [
        UntimedCondition::new(ConditionType::Ready, false, Reason::Unreadable, message.clone()),
        UntimedCondition::new(ConditionType::Reconciling, false, Reason::Unreadable, NO_CHANGE),
        UntimedCondition::new(ConditionType::Stalled, true, Reason::Unreadable, message),
    ];
    let conditions = conditions.map(|condition| Condition {
        observed_generation: generation,
        ..condition.at(now, before)
    });
    GpuNodePolicyStatus {
        observed_generation: generation,
        conditions: conditions.into(),
        ..GpuNodePolicyStatus::default()
    }
}

fn conditions(policy: &Policy, tally: &PolicyTally, agents: &AgentUpdate) -> [UntimedCondition; 6] {
    let counts = tally.counts();
    let stop = stopped(policy, tally).or_else(|| late(policy, agents));
    let is_idle = policy.mode != PolicyMode::Enforce || policy.refusal.is_some() || stop.is_some();
    let updating = if is_idle { 0 } else { counts.updating };
    let replaced = if is_idle { None } else { agents_progress(agents) };
    let ready = ready(policy, tally, agents, &counts, stop.as_ref(), updating);
    let waiting = waiting(tally, &ready);
    [
        ready,
        if updating > 0 {
            let message = updating_message(tally, updating, &counts);
            UntimedCondition::new(ConditionType::Reconciling, true, Reason::NodesUpdating, message)
        } else if let Some(replaced) = replaced {
            UntimedCondition::new(ConditionType::Reconciling, true, Reason::NodesUpdating, replaced)
        } else {
            UntimedCondition::new(ConditionType::Reconciling, false, Reason::UpToDate, NO_CHANGE)
        },
        match (&policy.refusal, stop) {
            (Some(refusal), _) => UntimedCondition::new(ConditionType::Stalled, true, Reason::InvalidSpec, refusal),
            (None, Some(stop)) => UntimedCondition::new(ConditionType::Stalled, true, Reason::RolloutStopped, stop),
            (None, None) => UntimedCondition::new(ConditionType::Stalled, false, Reason::UpToDate, NOT_STALLED),
        },
        if let Some((node, reason, message)) = tally.first_conflicted() {
            let message = nodes_conflict(node, message, &counts);
            UntimedCondition::new(ConditionType::Conflict, true, reason, message)
        } else {
            UntimedCondition::new(ConditionType::Conflict, false, Reason::NoConflict, NO_CONFLICT)
        },
        degraded(tally, &counts),
        waiting,
    ]
}

/// Returns the condition Degraded: nodes that failed, and nodes in force on which pods get no GPU all the same.
fn degraded(tally: &PolicyTally, counts: &NodeCounts) -> UntimedCondition {
    let condition =
        |holds, reason, message: String| UntimedCondition::new(ConditionType::Degraded, holds, reason, message);
    let failed = tally
        .first_failed()
        .map(|(node, reason, message)| nodes_failed(node, reason.as_str(), message, counts));
    let refused = tally
        .gpu_refusals()
        .map(|(nodes, first, reason)| pods_get_no_gpu(nodes, first, reason, counts));
    match (failed, refused) {
        (Some(failed), Some(refused)) => condition(true, Reason::NodesFailed, format!("{failed}; {refused}")),
        (Some(failed), None) => condition(true, Reason::NodesFailed, failed),
        (None, Some(refused)) => condition(true, Reason::PodsGetNoGpu, refused),
        (None, None) => condition(false, Reason::NodesHealthy, NO_FAILURE.to_owned()),
    }
}

/// Returns the condition Waiting. It is False only where the change is done: the policy is in force, and no device waits.
fn waiting(tally: &PolicyTally, ready: &UntimedCondition) -> UntimedCondition {
    let condition = |holds, reason, message| UntimedCondition::new(ConditionType::Waiting, holds, reason, message);
    if let Some((devices, nodes, first)) = tally.waiting_devices() {
        let is_held = first.message.is_none() || !first.pods.is_empty();
        let reason = if is_held {
            Reason::PodsHoldDevices
        } else {
            Reason::MigBlocked
        };
        condition(true, reason, devices_waiting(devices, nodes, first))
    } else if ready.holds {
        condition(false, Reason::NothingWaits, NOTHING_WAITS.to_owned())
    } else {
        condition(true, ready.reason, ready.message.clone())
    }
}

/// Returns the condition Ready. Broken nodes do not hold it up, since nobody could wait for them. A node that works does, also
/// where somebody has to act first.
fn ready(
    policy: &Policy,
    tally: &PolicyTally,
    agents: &AgentUpdate,
    counts: &NodeCounts,
    stop: Option<&String>,
    updating: i32,
) -> UntimedCondition {
    let condition =
        |holds, reason, message: String| UntimedCondition::new(ConditionType::Ready, holds, reason, message);
    if let Some(refusal) = &policy.refusal {
        condition(false, Reason::InvalidSpec, refusal.clone())
    } else if policy.mode == PolicyMode::Preview {
        condition(true, Reason::Preview, preview_only(counts))
    } else if policy.mode == PolicyMode::Paused {
        condition(true, Reason::Paused, paused(counts))
    } else if let Some(refusal) = &agents.refusal {
        condition(false, Reason::WriteFailed, refusal.clone())
    } else if let Some(stop) = stop {
        condition(false, Reason::RolloutStopped, stop.clone())
    } else if counts.matched == 0 {
        condition(true, Reason::NoMatchingNodes, NO_MATCH.to_owned())
    } else if let Some((node, reason, message)) = tally.first_blocked() {
        condition(false, reason, not_in_force_on(node, message, counts))
    } else if updating > 0 {
        condition(false, Reason::NodesUpdating, updating_message(tally, updating, counts))
    } else if let Some(replaced) = agents_progress(agents) {
        condition(false, Reason::NodesUpdating, replaced)
    } else {
        // A device that waits for its holders has taken the configuration: a job of a week must not keep a pipeline red for a
        // week.
        let (lost, overridden) = (tally.lost_nodes(), tally.first_overridden());
        let message = in_force(tally.waiting_nodes(), agents.behind, lost, overridden, counts);
        condition(true, Reason::InForce, message)
    }
}

/// Describes the node that stopped the rollout, if any.
fn stopped(policy: &Policy, tally: &PolicyTally) -> Option<String> {
    let (node, message) = tally.rollout.stopped().filter(|_| policy.mode == PolicyMode::Enforce)?;
    let progress = tally.rollout.progress().unwrap_or_default();
    Some(format!("{}; {progress}", rollout_stopped(node, message)))
}

/// Describes the replacement of agents that is under way, if any.
fn agents_progress(agents: &AgentUpdate) -> Option<String> {
    (agents.waited_for > 0).then(|| agents_updating(agents.all - agents.behind, agents.all))
}

/// Describes the replacement of agents that missed its deadline, if any.
fn late(policy: &Policy, agents: &AgentUpdate) -> Option<String> {
    let progress = agents_progress(agents).filter(|_| agents.is_late && policy.mode == PolicyMode::Enforce)?;
    let daemonset = policy_daemonset_name(&policy.name);
    Some(agents_late(policy.pace.progress_deadline(), &progress, &daemonset))
}

fn updating_message(tally: &PolicyTally, updating: i32, counts: &NodeCounts) -> String {
    let both = [tally.rollout.progress(), tally.taint_rollout.taints_progress()];
    let both: Vec<String> = both.into_iter().flatten().collect();
    if both.is_empty() {
        nodes_updating(updating, counts)
    } else {
        both.join("; ")
    }
}
