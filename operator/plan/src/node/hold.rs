//! Nodes that are left exactly as they are: why, and what becomes of the policies there meanwhile.

use crate::{
    fleet::rollout::RolloutStage,
    gpu_node::conditions::{self, Verdict},
    gpu_node::configuration,
    gpu_node::progress::{outcome_in_force, stage},
    gpu_node::requests::unreadable,
    input::facts::NodeFacts,
    input::policies::{Policy, PolicySet},
    node::compose::Disagreement,
    node::plan::NodePlan,
    outcome::PolicyOutcome,
    record::RecordError,
};
use gpunode_crds::{ConditionType, GpuNode, IGNORE_LABEL, Reason};
use jiff::Timestamp;
use std::fmt;

/// Why a node is left exactly as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeHold {
    /// A person labelled it `gpunode.dev/ignore`. Policies do not count it.
    Ignored,
    /// The record of what gpunode wrote cannot be read, for the reason given.
    RecordUnreadable(String),
    /// Policies of equal priority disagree.
    Disagreement(Disagreement),
    /// The policy of this name has something there, and is in mode Paused.
    Paused(String),
}

impl fmt::Display for NodeHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ignored => write!(f, "the node is labelled {IGNORE_LABEL} and left as it is"),
            Self::RecordUnreadable(error) => write!(f, "{error}; the node is left as it is until then"),
            Self::Disagreement(Disagreement { about, values }) => {
                let policies: Vec<_> = values.keys().map(String::as_str).collect();
                let wishes: Vec<_> = values
                    .iter()
                    .map(|(name, value)| format!("{name} wants \"{value}\""))
                    .collect();
                write!(
                    f,
                    "policies {} have equal priority and disagree about {about}: {}; the node is left as it is until their \
                     priorities differ",
                    policies.join(", "),
                    wishes.join(", ")
                )
            }
            Self::Paused(policy) => {
                write!(
                    f,
                    "policy {policy} is paused and has something on the node, which stays as it is until that policy goes on or is deleted"
                )
            }
        }
    }
}

/// The plan for a node whose record cannot be read.
pub fn held_by_record(error: &RecordError, matched: &[&Policy]) -> NodePlan {
    held(matched, NodeHold::RecordUnreadable(error.to_string()), |message| {
        PolicyOutcome::failed(Reason::RecordUnreadable, message)
    })
}

/// The plan for a node about which policies disagree.
pub fn held_by_disagreement(
    disagreement: Disagreement,
    matched: &[&Policy],
    node: &NodeFacts,
    gpu_node: Option<&GpuNode>,
    now: Timestamp,
) -> NodePlan {
    let mut plan = held(matched, NodeHold::Disagreement(disagreement), |message| {
        PolicyOutcome::conflicted(Reason::EqualPriority, message)
    });
    let message = plan.hold.as_ref().map(ToString::to_string).unwrap_or_default();
    let verdict = Verdict {
        of: ConditionType::Conflict,
        holds: true,
        reason: Reason::EqualPriority,
        message,
    };
    let verdicts = [verdict].into_iter().chain(unreadable(node)).collect();
    plan.conditions = conditions::change(gpu_node, verdicts, &[ConditionType::FactLabels], now);
    plan
}

fn held(matched: &[&Policy], hold: NodeHold, outcome: impl Fn(String) -> PolicyOutcome) -> NodePlan {
    let outcome = outcome(hold.to_string());
    NodePlan {
        hold: Some(hold),
        matched: matched.iter().map(|policy| policy.name.clone()).collect(),
        outcomes: matched
            .iter()
            .map(|policy| (policy.name.clone(), outcome.clone()))
            .collect(),
        ..NodePlan::default()
    }
}

/// The plan for a node on which a paused policy has something. It counts there as what it has there.
pub fn held_by_pause(
    first: &Policy,
    paused: &[&Policy],
    matched: &[&Policy],
    node: &NodeFacts,
    gpu_node: Option<&GpuNode>,
    now: Timestamp,
) -> NodePlan {
    let outcome = |message| PolicyOutcome::conflicted(Reason::Paused, message);
    let mut plan = held(matched, NodeHold::Paused(first.name.clone()), outcome);
    let kept = [ConditionType::Conflict, ConditionType::FactLabels];
    plan.conditions = conditions::change(gpu_node, unreadable(node).into_iter().collect(), &kept, now);
    let in_force = gpu_node.and_then(|gpu_node| gpu_node.spec.config.as_ref());
    for policy in paused {
        let governs = in_force.filter(|config| config.policy == policy.name);
        let (outcome, recheck) = governs.map_or((PolicyOutcome::Ready, None), |config| {
            outcome_in_force(node, policy, &config.hash, gpu_node, now)
        });
        plan.outcomes.insert(policy.name.clone(), outcome);
        plan.recheck = [plan.recheck, recheck].into_iter().flatten().min();
        if governs.is_some() {
            plan.waiting = configuration::waiting(node, gpu_node);
        }
    }
    plan
}

/// Adds what holds for every node that is left as it is: it keeps the place that it has in the rollout of the policy whose
/// configuration it has. It may not change, so it takes no turn. Nobody waits for one that is down.
pub fn keep_place(
    plan: &mut NodePlan,
    policies: &PolicySet,
    node: &NodeFacts,
    gpu_node: Option<&GpuNode>,
    now: Timestamp,
) {
    let config = gpu_node.and_then(|gpu_node| gpu_node.spec.config.as_ref());
    let Some(policy) = config.and_then(|config| policies.get(&config.policy)) else {
        return;
    };
    plan.governing = Some(policy.name.clone());
    let Some((stage, recheck)) = stage(node, policy, gpu_node, now) else {
        return;
    };
    plan.stage = match stage {
        RolloutStage::Stepping | RolloutStage::Stopped(_) => Some(stage),
        RolloutStage::Outside => Some(RolloutStage::Held),
        RolloutStage::Held | RolloutStage::Pending | RolloutStage::Done => return,
    };
    plan.recheck = [plan.recheck, recheck].into_iter().flatten().min();
}
