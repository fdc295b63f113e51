//! Plans for nodes that are left as they are, and the outcomes of the policies there meanwhile.

use crate::{
    gpu_node::{
        conditions::conditions_change,
        configuration::waiting_devices,
        progress::{outcome_in_force, rollout_stage},
        requests::unreadable_annotation,
    },
    input::{
        context::NodeContext,
        policies::{Policy, PolicySet},
    },
    node::{compose::Disagreement, hold::NodeHold, plan::NodePlan},
    outcome::PolicyOutcome,
    record::node_record::RecordError,
    rollout_stage::RolloutStage,
    time::earliest,
};
use gpunode_crds::{ConditionType, Reason, UntimedCondition};

/// Returns the plan for a node whose record is unreadable.
pub fn held_by_record(error: &RecordError, matched: &[&Policy]) -> NodePlan {
    held(matched, NodeHold::RecordUnreadable(error.to_string()), |message| {
        PolicyOutcome::failed(Reason::RecordUnreadable, message)
    })
}

/// Returns the plan for a node about which policies disagree.
pub fn held_by_disagreement(disagreement: Disagreement, matched: &[&Policy], context: NodeContext<'_>) -> NodePlan {
    let mut plan = held(matched, NodeHold::Disagreement(disagreement), |message| {
        PolicyOutcome::conflicted(Reason::EqualPriority, message)
    });
    let conflict = UntimedCondition {
        of: ConditionType::Conflict,
        holds: true,
        reason: Reason::EqualPriority,
        message: plan.hold.as_ref().map(ToString::to_string).unwrap_or_default(),
    };
    let desired = [conflict]
        .into_iter()
        .chain(unreadable_annotation(context.node))
        .collect();
    plan.conditions = conditions_change(context.gpu_node, desired, &[ConditionType::FactLabels], context.now);
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

/// Returns the plan for a node on which a paused policy owns keys. The outcome of the paused policy is that of the
/// configuration it has there.
pub fn held_by_pause(first: &Policy, paused: &[&Policy], matched: &[&Policy], context: NodeContext<'_>) -> NodePlan {
    let outcome = |message| PolicyOutcome::conflicted(Reason::Paused, message);
    let mut plan = held(matched, NodeHold::Paused(first.name.clone()), outcome);
    let kept = [ConditionType::Conflict, ConditionType::FactLabels];
    let desired = unreadable_annotation(context.node).into_iter().collect();
    plan.conditions = conditions_change(context.gpu_node, desired, &kept, context.now);
    for policy in paused {
        let governs = context.configuration().filter(|config| config.policy == policy.name);
        let (outcome, recheck) = governs.map_or((PolicyOutcome::Ready, None), |config| {
            outcome_in_force(policy, &config.hash, context)
        });
        plan.outcomes.insert(policy.name.clone(), outcome);
        plan.recheck = earliest([plan.recheck, recheck]);
        if governs.is_some() {
            plan.waiting = waiting_devices(context);
        }
    }
    plan
}

/// Keeps the stage of a held node in the rollout of the policy whose configuration it has. The node may not change, so it
/// uses no permit, and nobody waits for one that is down.
pub fn keep_stage(plan: &mut NodePlan, policies: &PolicySet, context: NodeContext<'_>) {
    let Some(policy) = context.configuration().and_then(|config| policies.get(&config.policy)) else {
        return;
    };
    plan.governing = Some(policy.name.clone());
    let Some((stage, recheck)) = rollout_stage(policy, context) else {
        return;
    };
    plan.stage = match stage {
        RolloutStage::Stepping | RolloutStage::Stopped(_) => Some(stage),
        RolloutStage::Outside => Some(RolloutStage::Held),
        RolloutStage::Held | RolloutStage::Pending | RolloutStage::Done => return,
    };
    plan.recheck = earliest([plan.recheck, recheck]);
}
