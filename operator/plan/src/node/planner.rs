//! Everything about one node: what it is to look like, what has to be written, and what became of each policy on it.

use crate::{
    fact_labels::gpu_labels,
    gpu_node::configuration::GpuNodeChange,
    gpu_node::requests::asked,
    input::facts::NodeFacts,
    input::inventory::is_reported,
    input::matching::matches,
    input::policies::{Policy, PolicySet},
    node::claim::{released, retaken},
    node::desired::Wishes,
    node::hold::{NodeHold, held_by_disagreement, held_by_pause, held_by_record, keep_place},
    node::plan::{NodePlan, RolloutPermit},
    node::preview,
    record::Record,
};
use gpunode_crds::{GpuNode, IGNORE_LABEL, PolicyMode};
use jiff::Timestamp;

/// Plans one node as if it were its turn. `gpu_node` is the object of the same name, where it exists.
pub fn plan_node(policies: &PolicySet, node: &NodeFacts, gpu_node: Option<&GpuNode>, now: Timestamp) -> NodePlan {
    plan_node_with_permit(RolloutPermit::Granted, policies, node, gpu_node, now)
}

/// Plans one node.
pub fn plan_node_with_permit(
    turn: RolloutPermit,
    policies: &PolicySet,
    node: &NodeFacts,
    gpu_node: Option<&GpuNode>,
    now: Timestamp,
) -> NodePlan {
    let is_ignored = node.labels.contains_key(IGNORE_LABEL);
    let (mut plan, after) = if is_ignored {
        (
            NodePlan {
                hold: Some(NodeHold::Ignored),
                ..NodePlan::default()
            },
            node.clone(),
        )
    } else {
        plan_with(policies, None, turn, node, gpu_node, now)
    };
    if plan.hold.is_some() {
        keep_place(&mut plan, policies, node, gpu_node, now);
    }
    if is_ignored {
        return plan;
    }
    if turn != RolloutPermit::Simulated
        && !matches!(plan.gpu_node, GpuNodeChange::Create(_) | GpuNodeChange::Delete { .. })
        && let Some(change) = asked(node, gpu_node)
    {
        // A driver is being replaced: that waits for no rollout. What else there is to write comes with the next plan.
        plan.gpu_node = change;
        plan.conditions = None;
    }
    let mut previewed = policies
        .iter()
        .filter(|policy| policy.mode == PolicyMode::Preview)
        .peekable();
    if previewed.peek().is_none() {
        return plan;
    }
    // What ends by itself is nobody's change.
    let (_, without) = plan_with(policies, None, RolloutPermit::Simulated, &after, gpu_node, now);
    for policy in previewed {
        let (with, changed) = plan_with(policies, Some(policy), RolloutPermit::Simulated, &after, gpu_node, now);
        if !with.matched.contains(&policy.name) {
            continue;
        }
        let (outcome, preview) = preview::effect(policy, &without, &with, &changed);
        plan.outcomes.insert(policy.name.clone(), outcome);
        plan.previews
            .extend(preview.map(|preview| (policy.name.clone(), preview)));
    }
    plan
}

/// Plans with the enforced policies and one more, and says what the node looks like once the plan is carried out.
fn plan_with(
    policies: &PolicySet,
    more: Option<&Policy>,
    turn: RolloutPermit,
    node: &NodeFacts,
    gpu_node: Option<&GpuNode>,
    now: Timestamp,
) -> (NodePlan, NodeFacts) {
    let takes_part =
        |policy: &&Policy| policy.mode == PolicyMode::Enforce || more.is_some_and(|more| more.name == policy.name);
    let matching = |record: &Record| -> Vec<&Policy> {
        policies
            .iter()
            .filter(takes_part)
            .filter(|policy| matches(policy, node, record, gpu_node))
            .collect()
    };
    let mut record = match Record::read(node.owned.as_deref()) {
        Ok(record) => record,
        Err(error) => return (held_by_record(&error, &matching(&Record::default())), node.clone()),
    };
    let is_paused = |policy: &&Policy| policy.mode == PolicyMode::Paused && record.policies.contains(&policy.name);
    let paused: Vec<&Policy> = policies.iter().filter(is_paused).collect();
    if let Some(first) = paused.first() {
        let plan = held_by_pause(first, &paused, &matching(&record), node, gpu_node, now);
        return (plan, node.clone());
    }
    let current = node.labels.to_map();
    // A key that was ours and that somebody changed becomes visible to selectors, which may make other policies match. Each
    // round a key or a policy leaves the record, or a key has what is there now as what was there before, so this ends.
    let wishes = loop {
        let matched = matching(&record);
        let wishes = match Wishes::of(matched, policies, turn, node, &record, gpu_node, now) {
            Ok(wishes) if policies.gpu_labels() => wishes.with(gpu_labels(gpu_node, &record.labels.owned)),
            Ok(wishes) => wishes,
            Err((matched, disagreement)) => {
                return (
                    held_by_disagreement(disagreement, &matched, node, gpu_node, now),
                    node.clone(),
                );
            }
        };
        let before = record.clone();
        for key in released(&current, &record.labels, &wishes.labels) {
            record.labels.release(&key);
        }
        for (key, actual) in retaken(&current, &record.labels, &wishes.labels, now) {
            record.labels.was_before(&key, actual);
        }
        if !is_reported(gpu_node) {
            // A policy that has nothing there any more is not kept for it.
            let owners = wishes.owners(node, &record, now);
            record.policies.retain(|policy| owners.contains(policy));
        }
        if record == before {
            break wishes;
        }
    };
    wishes.plan(node, &record, gpu_node, now)
}
