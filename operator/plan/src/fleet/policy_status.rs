//! The status of one policy: counts, conditions with the meanings of kstatus, failures, preview.

use crate::{
    fleet::tally::PolicyTally, gpu_node::configuration::whole_second, input::policies::Policy,
    output::daemonsets::policy_daemonset_name,
};
use gpunode_crds::{ConditionType, GpuNodePolicyStatus, NodeCounts, PolicyMode, Reason};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// The schema of conditions bounds messages at 32768; a screen holds less.
const MAX_MESSAGE_CHARS: usize = 1024;

/// What is known of the DaemonSet of a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentUpdate {
    /// Why the API server does not take it.
    pub refusal: Option<String>,
    /// On how many nodes the agent is still another than the policy asks for. It serves until the new one takes over.
    pub behind: i32,
    /// On how many of them the new one is waited for.
    pub waited_for: i32,
    /// On how many it is to run.
    pub all: i32,
    /// No further agent has taken over for as long as the policy's `progressDeadline`.
    pub is_late: bool,
}

/// A condition without its times.
struct Verdict {
    type_: ConditionType,
    holds: bool,
    reason: Reason,
    message: String,
}

impl Verdict {
    fn new(type_: ConditionType, holds: bool, reason: Reason, message: impl Into<String>) -> Self {
        Self {
            type_,
            holds,
            reason,
            message: message.into(),
        }
    }
}

/// The status that a policy is to have. `before` is the one it has, whose transition times stay where nothing changed, so
/// that an unchanged world gives an equal status.
pub fn policy_status(
    policy: &Policy,
    tally: &PolicyTally,
    agents: &AgentUpdate,
    before: Option<&GpuNodePolicyStatus>,
    now: Timestamp,
) -> GpuNodePolicyStatus {
    let conditions = verdicts(policy, tally, agents).map(|verdict| {
        let status = if verdict.holds { "True" } else { "False" };
        let old = before.and_then(|before| verdict.type_.find(&before.conditions));
        Condition {
            type_: verdict.type_.as_str().to_owned(),
            status: status.to_owned(),
            reason: verdict.reason.as_str().to_owned(),
            message: verdict.message.chars().take(MAX_MESSAGE_CHARS).collect(),
            observed_generation: policy.generation,
            // Whole seconds, as the API server keeps them.
            last_transition_time: old
                .filter(|old| old.status == status)
                .map_or_else(|| Time(whole_second(now)), |old| old.last_transition_time.clone()),
        }
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

fn verdicts(policy: &Policy, tally: &PolicyTally, agents: &AgentUpdate) -> [Verdict; 5] {
    let counts = tally.counts();
    let stop = stop(policy, tally).or_else(|| late(policy, agents));
    let is_idle = policy.mode != PolicyMode::Enforce || policy.refusal.is_some() || stop.is_some();
    let updating = if is_idle { 0 } else { counts.updating };
    let replaced = if is_idle { None } else { replaced(agents) };
    [
        ready(policy, tally, agents, &counts, stop.as_ref(), updating),
        if updating > 0 {
            let message = under_way(tally, updating, &counts);
            Verdict::new(ConditionType::Reconciling, true, Reason::NodesUpdating, message)
        } else if let Some(replaced) = replaced {
            Verdict::new(ConditionType::Reconciling, true, Reason::NodesUpdating, replaced)
        } else {
            Verdict::new(
                ConditionType::Reconciling,
                false,
                Reason::UpToDate,
                "nothing is under way",
            )
        },
        match (&policy.refusal, stop) {
            (Some(refusal), _) => Verdict::new(ConditionType::Stalled, true, Reason::InvalidSpec, refusal),
            (None, Some(stop)) => Verdict::new(ConditionType::Stalled, true, Reason::RolloutStopped, stop),
            (None, None) => Verdict::new(
                ConditionType::Stalled,
                false,
                Reason::UpToDate,
                "the spec can be carried out",
            ),
        },
        if let Some((node, reason, message)) = tally.first_conflicted() {
            let message = format!("{} conflict; {node}: {message}", of_matched(counts.conflicted, &counts));
            Verdict::new(ConditionType::Conflict, true, reason, message)
        } else {
            Verdict::new(
                ConditionType::Conflict,
                false,
                Reason::NoConflict,
                "no other owner is in the way",
            )
        },
        if let Some((node, reason, message)) = tally.first_failed() {
            let message = format!(
                "{} failed; {node}: {}: {message}",
                of_matched(counts.failed, &counts),
                reason.as_str()
            );
            Verdict::new(ConditionType::Degraded, true, Reason::NodesFailed, message)
        } else {
            Verdict::new(
                ConditionType::Degraded,
                false,
                Reason::NodesHealthy,
                "no matched node failed",
            )
        },
    ]
}

/// Broken nodes do not hold Ready, since nobody could wait for them. A node that could carry the policy out does, also where
/// somebody has to act before it can.
fn ready(
    policy: &Policy,
    tally: &PolicyTally,
    agents: &AgentUpdate,
    counts: &NodeCounts,
    stop: Option<&String>,
    updating: i32,
) -> Verdict {
    let verdict = |holds, reason, message: String| Verdict::new(ConditionType::Ready, holds, reason, message);
    if let Some(refusal) = &policy.refusal {
        verdict(false, Reason::InvalidSpec, refusal.clone())
    } else if policy.mode == PolicyMode::Preview {
        let message = format!(
            "{} would change; nothing is written",
            of_matched(counts.updating, counts)
        );
        verdict(true, Reason::Preview, message)
    } else if policy.mode == PolicyMode::Paused {
        let message = format!("{} nodes stay as they are, and none is added", counts.matched);
        verdict(true, Reason::Paused, message)
    } else if let Some(refusal) = &agents.refusal {
        verdict(false, Reason::WriteFailed, refusal.clone())
    } else if let Some(stop) = stop {
        verdict(false, Reason::RolloutStopped, stop.clone())
    } else if counts.matched == 0 {
        verdict(true, Reason::NoMatchingNodes, "no node matches".to_owned())
    } else if let Some((node, reason, message)) = tally.first_stuck() {
        let message = format!(
            "in force on {}; not on {node}: {message}",
            of_matched(counts.ready, counts)
        );
        verdict(false, reason, message)
    } else if updating > 0 {
        verdict(false, Reason::NodesUpdating, under_way(tally, updating, counts))
    } else if let Some(replaced) = replaced(agents) {
        verdict(false, Reason::NodesUpdating, replaced)
    } else {
        // What waits for its holders has taken the configuration; a job of a week must not keep a pipeline red for a week.
        let waiting = match tally.waiting_nodes() {
            0 => String::new(),
            nodes => format!("; on {nodes} of them devices wait for their holders"),
        };
        // Which nodes have them is not known, only that no more are behind than nobody waits for.
        let old = match agents.behind {
            0 => String::new(),
            1 => "; 1 agent is still the old one".to_owned(),
            old => format!("; {old} agents are still the old ones"),
        };
        verdict(
            true,
            Reason::InForce,
            format!("in force on {}{waiting}{old}", of_matched(counts.ready, counts)),
        )
    }
}

/// Why no further node gets the configuration, if so.
fn stop(policy: &Policy, tally: &PolicyTally) -> Option<String> {
    let (node, message) = tally.rollout.stopped().filter(|_| policy.mode == PolicyMode::Enforce)?;
    let progress = tally.rollout.progress().unwrap_or_default();
    Some(format!(
        "stopped at {node}, which failed: {message}; {progress}; no other node changes until the spec does"
    ))
}

/// How far the replacement of agents has come, in words; nothing where none is under way.
fn replaced(agents: &AgentUpdate) -> Option<String> {
    let AgentUpdate { behind: old, all, .. } = agents;
    (agents.waited_for > 0).then(|| {
        format!(
            "{} of {all} agents are the new ones; the old ones serve until then",
            all - old
        )
    })
}

/// Why no further agent is replaced, if so.
fn late(policy: &Policy, agents: &AgentUpdate) -> Option<String> {
    let replaced = replaced(agents).filter(|_| agents.is_late && policy.mode == PolicyMode::Enforce)?;
    let (deadline, name) = (policy.pace.progress_deadline(), policy_daemonset_name(&policy.name));
    Some(format!(
        "no further agent has taken over for {deadline:#}: {replaced}; see the pods of DaemonSet {name} that are not Ready"
    ))
}

fn under_way(tally: &PolicyTally, updating: i32, counts: &NodeCounts) -> String {
    tally
        .rollout
        .progress()
        .unwrap_or_else(|| format!("{} are updating", of_matched(updating, counts)))
}

fn of_matched(number: i32, counts: &NodeCounts) -> String {
    format!("{number} of {} matched nodes", counts.matched)
}
