//! The status of one policy: counts, conditions with the meanings of kstatus, failures, preview.

use crate::{policies::Policy, tally::Tally};
use gpunode_crds::{ConditionType, GpuNodePolicyStatus, Mode, NodeCounts, Reason};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// The schema of conditions bounds messages at 32768; a screen holds less.
const MAX_MESSAGE_CHARS: usize = 1024;

/// A condition without its times.
struct Verdict {
    type_: ConditionType,
    holds: bool,
    reason: Reason,
    message: String,
}

impl Verdict {
    fn new(type_: ConditionType, holds: bool, reason: Reason, message: impl Into<String>) -> Self {
        Self { type_, holds, reason, message: message.into() }
    }
}

/// The status that a policy is to have. `before` is the one it has, whose transition times stay where nothing changed, so
/// that an unchanged world gives an equal status.
pub fn policy_status(
    policy: &Policy,
    tally: &Tally,
    before: Option<&GpuNodePolicyStatus>,
    now: Timestamp,
) -> GpuNodePolicyStatus {
    let conditions = verdicts(policy, tally).map(|verdict| {
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

fn whole_second(now: Timestamp) -> Timestamp {
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}

fn verdicts(policy: &Policy, tally: &Tally) -> [Verdict; 5] {
    let counts = tally.counts();
    let is_idle = policy.mode != Mode::Enforce || policy.refusal.is_some() || tally.rollout.stopped().is_some();
    let updating = if is_idle { 0 } else { counts.updating };
    [
        ready(policy, tally, &counts, updating),
        if updating > 0 {
            let message = under_way(tally, updating, &counts);
            Verdict::new(ConditionType::Reconciling, true, Reason::NodesUpdating, message)
        } else {
            Verdict::new(ConditionType::Reconciling, false, Reason::UpToDate, "nothing is under way")
        },
        match (&policy.refusal, stop(policy, tally)) {
            (Some(refusal), _) => Verdict::new(ConditionType::Stalled, true, Reason::InvalidSpec, refusal),
            (None, Some(stop)) => Verdict::new(ConditionType::Stalled, true, Reason::RolloutStopped, stop),
            (None, None) => {
                Verdict::new(ConditionType::Stalled, false, Reason::UpToDate, "the spec can be carried out")
            }
        },
        if let Some((node, reason, message)) = tally.first_conflicted() {
            let message = format!("{} conflict; {node}: {message}", of_matched(counts.conflicted, &counts));
            Verdict::new(ConditionType::Conflict, true, reason, message)
        } else {
            Verdict::new(ConditionType::Conflict, false, Reason::NoConflict, "no other owner is in the way")
        },
        if let Some((node, reason, message)) = tally.first_failed() {
            let message =
                format!("{} failed; {node}: {}: {message}", of_matched(counts.failed, &counts), reason.as_str());
            Verdict::new(ConditionType::Degraded, true, Reason::NodesFailed, message)
        } else {
            Verdict::new(ConditionType::Degraded, false, Reason::NodesHealthy, "no matched node failed")
        },
    ]
}

/// Broken nodes do not hold Ready, since nobody could wait for them. A node that could carry the policy out does, also where
/// somebody has to act before it can.
fn ready(policy: &Policy, tally: &Tally, counts: &NodeCounts, updating: i32) -> Verdict {
    let verdict = |holds, reason, message: String| Verdict::new(ConditionType::Ready, holds, reason, message);
    if let Some(refusal) = &policy.refusal {
        verdict(false, Reason::InvalidSpec, refusal.clone())
    } else if policy.mode == Mode::Preview {
        let message = format!("{} would change; nothing is written", of_matched(counts.updating, counts));
        verdict(true, Reason::Preview, message)
    } else if policy.mode == Mode::Paused {
        let message = format!("{} nodes stay as they are, and none is added", counts.matched);
        verdict(true, Reason::Paused, message)
    } else if let Some(stop) = stop(policy, tally) {
        verdict(false, Reason::RolloutStopped, stop)
    } else if counts.matched == 0 {
        verdict(true, Reason::NoMatchingNodes, "no node matches".to_owned())
    } else if let Some((node, reason, message)) = tally.first_stuck() {
        let message = format!("in force on {}; not on {node}: {message}", of_matched(counts.ready, counts));
        verdict(false, reason, message)
    } else if updating > 0 {
        verdict(false, Reason::NodesUpdating, under_way(tally, updating, counts))
    } else {
        // What waits for its holders has taken the configuration; a job of a week must not keep a pipeline red for a week.
        let waiting = match tally.waiting_nodes() {
            0 => String::new(),
            nodes => format!("; on {nodes} of them devices wait for their holders"),
        };
        verdict(true, Reason::InForce, format!("in force on {}{waiting}", of_matched(counts.ready, counts)))
    }
}

/// Why no further node gets the configuration, if so.
fn stop(policy: &Policy, tally: &Tally) -> Option<String> {
    let (node, message) = tally.rollout.stopped().filter(|_| policy.mode == Mode::Enforce)?;
    let progress = tally.rollout.progress().unwrap_or_default();
    Some(format!("stopped at {node}, which failed: {message}; {progress}; no other node changes until the spec does"))
}

fn under_way(tally: &Tally, updating: i32, counts: &NodeCounts) -> String {
    tally.rollout.progress().unwrap_or_else(|| format!("{} are updating", of_matched(updating, counts)))
}

fn of_matched(number: i32, counts: &NodeCounts) -> String {
    format!("{number} of {} matched nodes", counts.matched)
}
