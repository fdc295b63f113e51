//! The grace of a node whose labels no longer match: a label that goes and comes back within it changes nothing.
//!
//! The moment is in the operator's memory, and after some seconds in the node's record too, so that `explain` knows it and a
//! restart of the operator does not begin again. An edit or a deletion of the policy, and GPUs that no longer fit, have no grace.

use crate::{
    input::{
        context::NodeContext,
        deselection::{Deselection, Deselections},
        matching::{lacks_only_labels, matches},
        policies::{Policy, PolicySet},
    },
    record::node_record::NodeRecord,
};
use gpunode_crds::{IGNORE_LABEL, PolicyMode};
use jiff::{SignedDuration, Timestamp};
use std::collections::BTreeMap;

/// Time for which a node keeps what a policy has there, once its labels no longer match.
const SELECTION_GRACE: SignedDuration = SignedDuration::from_secs(30);
/// Time after which the moment goes into the record: a shorter flap writes nothing.
const RECORDED_AFTER: SignedDuration = SignedDuration::from_secs(5);

/// Returns the deselections of a node at a moment. `before` are those of the last plan. `may_begin` says for each policy
/// whether the change came from the node: the policy matched before, with the same spec.
pub fn find_deselections(
    policies: &PolicySet,
    context: NodeContext<'_>,
    before: Option<&Deselections>,
    may_begin: impl Fn(&Policy) -> bool,
) -> Deselections {
    let Ok(record) = NodeRecord::read(context.node.owned.as_deref()) else {
        return Deselections::new();
    };
    if record.policies.is_empty() || context.node.labels.contains_key(IGNORE_LABEL) {
        return Deselections::new();
    }
    let mut found = Deselections::new();
    for policy in policies.iter().filter(|policy| is_deselected(policy, &record, context)) {
        let generation = policy.generation;
        let known = before.and_then(|before| before.get(&policy.name));
        let deselection = match known {
            // A clock that went back makes nothing last longer than from now.
            Some(known) if known.generation == generation => Deselection {
                generation,
                since: known.since.min(context.now),
            },
            None if may_begin(policy) => {
                let since = recorded_since(policy, &record).map_or(context.now, |since| since.min(context.now));
                Deselection { generation, since }
            }
            _ => continue,
        };
        found.insert(policy.name.clone(), deselection);
    }
    found
}

/// Returns the moment at which a policy leaves a node whose labels no longer match; none if it matches, or leaves at once.
pub fn leaves_at(policy: &Policy, record: &NodeRecord, context: NodeContext<'_>) -> Option<Timestamp> {
    let known = context.deselections.and_then(|known| known.get(&policy.name));
    let known = known.filter(|known| known.generation == policy.generation);
    let since = known
        .map(|known| known.since)
        .or_else(|| recorded_since(policy, record))?
        .min(context.now);
    let end = since.checked_add(SELECTION_GRACE).ok()?;
    (context.now < end && is_deselected(policy, record, context)).then_some(end)
}

/// Returns the entries of the record about policies that leave at these moments, and the moment to decide again.
pub fn recorded_deselections(
    leaving: &BTreeMap<String, (Option<i64>, Timestamp)>,
    now: Timestamp,
) -> (BTreeMap<String, i64>, Option<Timestamp>) {
    let (mut recorded, mut recheck) = (BTreeMap::new(), None);
    for (name, (generation, end)) in leaving {
        let since = end.checked_sub(SELECTION_GRACE).unwrap_or(now);
        let due = since.checked_add(RECORDED_AFTER).unwrap_or(now);
        let next = if due <= now {
            recorded.insert(record_key(name, *generation), since.as_second());
            *end
        } else {
            due
        };
        recheck = recheck.map_or(Some(next), |recheck: Timestamp| Some(recheck.min(next)));
    }
    (recorded, recheck)
}

/// Returns true if a policy has something on a node and no longer matches for the labels alone.
fn is_deselected(policy: &Policy, record: &NodeRecord, context: NodeContext<'_>) -> bool {
    let NodeContext { node, gpu_node, .. } = context;
    policy.mode == PolicyMode::Enforce
        && record.policies.contains(&policy.name)
        && !matches(policy, node, record, gpu_node)
        && lacks_only_labels(policy, node, record, gpu_node)
}

fn recorded_since(policy: &Policy, record: &NodeRecord) -> Option<Timestamp> {
    let since = record.deselected.get(&record_key(&policy.name, policy.generation))?;
    Timestamp::from_second(*since).ok()
}

fn record_key(policy: &str, generation: Option<i64>) -> String {
    format!("{policy}@{}", generation.unwrap_or(0))
}
