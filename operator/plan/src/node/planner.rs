//! The plan for one node, from start to end: writes, and the outcome of each policy.

use crate::{
    fact_labels::gpu_labels,
    gpu_node::{change::GpuNodeChange, requests::requests_change},
    input::{
        context::NodeContext,
        facts::NodeFacts,
        matching::matches,
        policies::{Policy, PolicySet},
        selection_grace::leaves_at,
    },
    node::{
        claim::{released, retaken},
        desired::DesiredNode,
        held_plans::{held_by_ignore_label, held_by_pause, held_by_record, keep_stage},
        hold::NodeHold,
        permit::RolloutPermit,
        plan::NodePlan,
        preview::preview_of,
    },
    outcome::PolicyNodeStatus,
    record::node_record::NodeRecord,
    time::earliest,
};
use gpunode_crds::{IGNORE_LABEL, PolicyMode};
use std::collections::{BTreeMap, BTreeSet};

/// Plans one node as if it had a permit to change.
pub fn plan_node(policies: &PolicySet, context: NodeContext<'_>) -> NodePlan {
    plan_node_with_permit(RolloutPermit::Granted, policies, context)
}

/// Plans one node, with the previews of all policies in mode Preview.
pub fn plan_node_with_permit(permit: RolloutPermit, policies: &PolicySet, context: NodeContext<'_>) -> NodePlan {
    let (mut plan, after) = plan_and_result(permit, policies, context);
    add_previews(&mut plan, policies, |_| true, context.with_node(&after));
    plan
}

/// Plans one node without previews, each of which would cost another plan.
pub fn plan_writes(permit: RolloutPermit, policies: &PolicySet, context: NodeContext<'_>) -> NodePlan {
    plan_and_result(permit, policies, context).0
}

/// Returns the status of those of the policies `names` in mode Preview that match a node.
pub fn preview_node(
    policies: &PolicySet,
    names: &BTreeSet<String>,
    context: NodeContext<'_>,
) -> BTreeMap<String, PolicyNodeStatus> {
    let (mut plan, after) = plan_and_result(RolloutPermit::Withheld, policies, context);
    plan.outcomes.clear();
    let is_wanted = |policy: &Policy| names.contains(&policy.name);
    add_previews(&mut plan, policies, is_wanted, context.with_node(&after));
    let NodePlan {
        outcomes, mut previews, ..
    } = plan;
    let statuses = outcomes.into_iter().map(|(name, outcome)| {
        let preview = previews.remove(&name);
        let status = PolicyNodeStatus {
            preview,
            ..outcome.into()
        };
        (name, status)
    });
    statuses.collect()
}

/// Plans one node without previews. Returns the plan, and the node once it is carried out.
fn plan_and_result(permit: RolloutPermit, policies: &PolicySet, context: NodeContext<'_>) -> (NodePlan, NodeFacts) {
    if context.node.labels.contains_key(IGNORE_LABEL) {
        return (held_by_ignore_label(policies, context), context.node.clone());
    }
    let (mut plan, after) = plan_enforced(policies, None, permit, context);
    if plan.hold.is_some() || plan.is_configuration_disputed() {
        keep_stage(&mut plan, policies, context);
    }
    if let Some(outdated) = context.outdated {
        // The next plan creates the one of this node.
        plan.gpu_node = GpuNodeChange::delete(outdated);
        plan.conditions = None;
    } else if permit != RolloutPermit::Simulated
        && !matches!(plan.gpu_node, GpuNodeChange::Create(_) | GpuNodeChange::Delete { .. })
        && let Some(change) = requests_change(context)
    {
        // A driver is being replaced: that waits for no rollout. The next plan brings all other writes.
        plan.gpu_node = change;
        plan.conditions = None;
    }
    (plan, after)
}

/// Adds the effect of each matching policy in mode Preview that `is_wanted`. `context` has the node as it is once the
/// plan is carried out.
fn add_previews(
    plan: &mut NodePlan,
    policies: &PolicySet,
    is_wanted: impl Fn(&Policy) -> bool,
    context: NodeContext<'_>,
) {
    let mut previewed = policies
        .iter()
        .filter(|policy| policy.mode == PolicyMode::Preview && is_wanted(policy))
        .peekable();
    if previewed.peek().is_none() || matches!(plan.hold, Some(NodeHold::Ignored)) {
        return;
    }
    // Both plans are simulated: a taint that ends by itself is no effect of the policy.
    let (_, without) = plan_enforced(policies, None, RolloutPermit::Simulated, context);
    for policy in previewed {
        let (with, changed) = plan_enforced(policies, Some(policy), RolloutPermit::Simulated, context);
        if !with.matched.contains(&policy.name) {
            continue;
        }
        let (outcome, preview) = preview_of(policy, &without, &with, &changed, context.gpu_node);
        plan.outcomes.insert(policy.name.clone(), outcome);
        plan.previews
            .extend(preview.map(|preview| (policy.name.clone(), preview)));
    }
}

/// Plans with the enforced policies and one more. Returns the plan, and the node once the plan is carried out.
fn plan_enforced(
    policies: &PolicySet,
    more: Option<&Policy>,
    permit: RolloutPermit,
    context: NodeContext<'_>,
) -> (NodePlan, NodeFacts) {
    let NodeContext {
        node, gpu_node, now, ..
    } = context;
    let takes_part =
        |policy: &&Policy| policy.mode == PolicyMode::Enforce || more.is_some_and(|more| more.name == policy.name);
    let matching = |record: &NodeRecord| -> Vec<&Policy> {
        policies
            .iter()
            .filter(takes_part)
            .filter(|policy| matches(policy, node, record, gpu_node))
            .collect()
    };
    let mut record = match NodeRecord::read(node.owned.as_deref()) {
        Ok(record) => record,
        Err(error) => {
            let plan = held_by_record(&error, &matching(&NodeRecord::default()), context);
            return (plan, node.clone());
        }
    };
    // A paused policy that owns keys here holds the whole node.
    let is_paused = |policy: &&Policy| policy.mode == PolicyMode::Paused && record.policies.contains(&policy.name);
    let paused: Vec<&Policy> = policies.iter().filter(is_paused).collect();
    if let Some(first) = paused.first() {
        let plan = held_by_pause(first, &paused, &matching(&record), policies, &record, context);
        return (plan, node.clone());
    }
    let facts_end = context.facts_end();
    let current = node.labels.to_map();
    let leaving: Vec<Policy> = policies
        .iter()
        .filter(|policy| policy.mode == PolicyMode::Enforce)
        .filter_map(|policy| Some(policy.leaving_at(leaves_at(policy, &record, context)?)))
        .collect();
    // A key that gpunode owned and somebody changed becomes visible to selectors, so that other policies may match. Each
    // round, a key or a policy leaves the record, or the value from before becomes the current one; so this ends.
    let desired = loop {
        let mut matched: Vec<&Policy> = matching(&record);
        // Covers only what no other policy wants.
        let others: Vec<&Policy> = leaving
            .iter()
            .filter(|policy| !matched.iter().any(|other| other.name == policy.name))
            .collect();
        matched.extend(others);
        let mut desired = DesiredNode::new(matched, policies, permit, &record, context);
        if policies.gpu_labels() && facts_end.is_none_or(|end| now < end) {
            desired = desired.with_fact_labels(gpu_labels(gpu_node, &record.labels.owned));
        }
        desired = desired.with_kept_keys(policies, &record, context);
        let before = record.clone();
        let held = record.labels.split_off(&desired.held_labels);
        for key in released(&current, &record.labels, &desired.labels) {
            record.labels.release(&key);
        }
        for (key, actual) in retaken(&current, &record.labels, &desired.labels, now) {
            record.labels.set_before(&key, actual);
        }
        record.labels.put_back(held);
        if !context.has_report() {
            // A policy stays matched without a report only while it owns something here.
            let owners = desired.owners(&record, context);
            record.policies.retain(|policy| owners.contains(policy));
        }
        if record == before {
            break desired;
        }
    };
    let (mut plan, after) = desired.plan(&record, context);
    plan.recheck = earliest([plan.recheck, facts_end.filter(|end| now < *end), context.grace_ends()]);
    (plan, after)
}
