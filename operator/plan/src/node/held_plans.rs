//! Plans for nodes that are left as they are, and the outcomes of the policies there meanwhile.

use crate::{
    gpu_node::{
        change::GpuNodeChange,
        conditions::conditions_change,
        configuration::{ended_drain, waiting_devices, withdraw_change, withdraw_ignored},
        drain::reconfiguring_taint,
        gpu_refusal::gpu_refusal,
        mig_progress::has_phase,
        progress::{outcome_in_force, rollout_stage},
        requests::unreadable_annotation,
    },
    input::{
        context::NodeContext,
        gpu_node_facts::GpuNodeFacts,
        policies::{Policy, PolicySet},
    },
    node::{
        claim::KeyClaims,
        hold::NodeHold,
        patches::NodeClaims,
        permit::RolloutPermit,
        plan::NodePlan,
        stale_resources::find_stale_resources,
        startup_taint::ended_startup_taints,
        taints::current_taints,
        unhealthy_taint::{all_healthy, has_rule, unhealthy_taints},
    },
    outcome::PolicyOutcome,
    record::{
        node_record::{NodeRecord, RecordError},
        resource_use::ResourceUse,
    },
    rollout_stage::RolloutStage,
    taint::TaintKey,
    time::earliest,
};
use gpunode_crds::{ConditionType, MigPhase, Reason, UNHEALTHY_TAINT};
use std::collections::BTreeSet;

/// Returns the plan for a node whose record is unreadable, which ends a drain: whether its taint is there nobody knows.
pub fn held_by_record(error: &RecordError, matched: &[&Policy], context: NodeContext<'_>) -> NodePlan {
    let outcome = |message| PolicyOutcome::failed(Reason::RecordUnreadable, message);
    NodePlan {
        gpu_node: ended_drain(context),
        ..held(matched, NodeHold::RecordUnreadable(error.to_string()), outcome)
    }
}

/// Returns the plan for a node with the label `gpunode.dev/ignore`. It ends what would go on there, a drain and an approval that the
/// agent has not carried out, and writes nothing else. A node that waits for its reboot, or was rebooted since the approval, keeps it:
/// the boot changes the MIG mode, and the instances need the approval.
pub fn held_by_ignore_label(policies: &PolicySet, context: NodeContext<'_>) -> NodePlan {
    let mut plan = NodePlan {
        hold: Some(NodeHold::Ignored),
        ..NodePlan::default()
    };
    keep_stage(&mut plan, policies, context);
    if context.gpu_node.is_some_and(|gpu_node| is_in_reboot(gpu_node, context)) {
        return plan;
    }
    plan.gpu_node = match (
        context.gpu_node,
        plan.governing.as_ref().and_then(|name| policies.get(name)),
    ) {
        (Some(gpu_node), Some(policy)) => withdraw_ignored(gpu_node, policy, plan.stage.as_ref()),
        (Some(gpu_node), None) => withdraw_change(gpu_node),
        (None, _) => GpuNodeChange::None,
    };
    plan
}

/// Returns true if the approved change of a node takes a reboot, which is to come, under way or over.
fn is_in_reboot(gpu_node: &GpuNodeFacts, context: NodeContext<'_>) -> bool {
    let Some(approval) = gpu_node.unfinished_approval() else {
        return false;
    };
    let awaits = context
        .status()
        .is_some_and(|status| has_phase(status, MigPhase::RebootRequired));
    let is_back = context.node.ready_since.is_some_and(|since| since > approval.since.0);
    awaits || !context.node.ready || is_back
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
/// configuration it has there. gpunode still removes what it set for a time, once its condition holds, ends a drain, and takes
/// back an approval that the agent has not carried out.
pub fn held_by_pause(
    first: &Policy,
    paused: &[&Policy],
    matched: &[&Policy],
    policies: &PolicySet,
    record: &NodeRecord,
    context: NodeContext<'_>,
) -> NodePlan {
    let outcome = |message| PolicyOutcome::conflicted(Reason::Paused, message);
    let mut plan = held(matched, NodeHold::Paused(first.name.clone()), outcome);
    plan.gpu_node = context.gpu_node.map(withdraw_change).unwrap_or_default();
    if plan.gpu_node == GpuNodeChange::None {
        let kept = [ConditionType::Conflict, ConditionType::FactLabels];
        let desired = unreadable_annotation(context.node).into_iter().collect();
        plan.conditions = conditions_change(context.gpu_node, desired, &kept, context.now);
    }
    for policy in paused {
        let governs = context.configuration().filter(|config| config.policy == policy.name);
        let (outcome, recheck) = governs.map_or((PolicyOutcome::Ready, None), |config| {
            outcome_in_force(policy, &config.hash, context)
        });
        plan.outcomes.insert(policy.name.clone(), outcome);
        plan.recheck = earliest([plan.recheck, recheck]);
        if governs.is_some() {
            plan.waiting = waiting_devices(context);
            plan.gpu_refusal = gpu_refusal(policy, context);
        }
    }
    remove_what_ended(&mut plan, policies, record, context);
    plan
}

/// Adds the removal of startup and unhealthy taints whose condition holds, and of stale resources, to the plan of a held node.
fn remove_what_ended(plan: &mut NodePlan, policies: &PolicySet, record: &NodeRecord, context: NodeContext<'_>) {
    let NodeContext { node, now, .. } = context;
    let configured = context.configuration().and_then(|config| policies.get(&config.policy));
    let (mut ended, recheck) = ended_startup_taints(policies, configured, record, context);
    let started = if ended.is_empty() || configured.is_none() {
        record.started.clone()
    } else {
        Some(node.boot.clone())
    };
    ended.extend(ended_unhealthy_taints(policies, record, context));
    // A held node is not drained.
    let id = reconfiguring_taint();
    ended.extend(record.taints.owned.contains_key(&id).then_some(id));
    let in_use: BTreeSet<String> = record
        .resources
        .iter()
        .filter(|(_, of)| **of == ResourceUse::InUse)
        .map(|(name, _)| name.clone())
        .collect();
    let stale = find_stale_resources(&record.resources, &in_use, &node.recorded_resources, now);
    plan.recheck = earliest([plan.recheck, recheck, stale.recheck]);
    plan.urgent_recheck = recheck;
    if ended.is_empty() && stale.remove.is_empty() && stale.record == record.resources {
        return;
    }
    let mut taints = KeyClaims::unchanged(record.taints.clone(), record.policies.clone());
    for id in &ended {
        taints.entries.release(id);
    }
    taints.remove = ended;
    let claims = NodeClaims {
        labels: KeyClaims::unchanged(record.labels.clone(), record.policies.clone()),
        taints,
        started: started.as_ref(),
        unknown: &record.unknown,
        deselected: record.deselected.clone(),
        evicting: record.evicting.clone(),
    };
    plan.patch = claims.node_patch(node, claims.record_after(stale.record.clone()).as_deref());
    plan.status_patch = claims.status_patch(&stale, context).filter(|_| plan.patch.is_none());
}

/// Returns the unhealthy taints of a held node that no policy with something there wants any more.
fn ended_unhealthy_taints(policies: &PolicySet, record: &NodeRecord, context: NodeContext<'_>) -> BTreeSet<TaintKey> {
    let there: Vec<&Policy> = policies
        .iter()
        .filter(|policy| record.policies.contains(&policy.name))
        .collect();
    let (wanted, _) = unhealthy_taints(&there, RolloutPermit::Granted, context);
    // The rule may be gone since: the spec changed during the pause, or the policy was deleted.
    let is_unknown = |name: &String| policies.is_unreadable(name) || context.is_departing(name);
    let has_recovered = all_healthy(context) && !record.policies.iter().any(is_unknown);
    let ends = |id: &TaintKey| has_rule(&there, id) || (id.key == UNHEALTHY_TAINT && has_recovered);
    let current = current_taints(context.node).into_keys();
    current.filter(|id| ends(id) && !wanted.contains_key(id)).collect()
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
        RolloutStage::Held | RolloutStage::AwaitsAgent | RolloutStage::Pending | RolloutStage::Done => return,
    };
    plan.recheck = earliest([plan.recheck, recheck]);
}
