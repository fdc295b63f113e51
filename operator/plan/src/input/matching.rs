//! Matches policies with nodes.

use crate::{
    input::{
        context::{has_report, reported_gpus},
        facts::NodeFacts,
        gpu_node_facts::GpuNodeFacts,
        policies::Policy,
        visible_labels::VisibleLabels,
    },
    record::node_record::NodeRecord,
};

/// Returns true if a policy matches a node.
///
/// For a moment after a `GpuNode` is deleted, nobody knows the node's GPUs: the node keeps the policies that have something
/// there and whose label selector still matches.
pub fn matches(policy: &Policy, node: &NodeFacts, record: &NodeRecord, gpu_node: Option<&GpuNodeFacts>) -> bool {
    let labels = VisibleLabels::new(&node.labels, &record.labels);
    let is_kept = || record.policies.contains(&policy.name) && policy.selector.matches_labels(labels);
    policy.selector.matches(labels, reported_gpus(gpu_node)) || (!has_report(gpu_node) && is_kept())
}

/// Returns true if a policy does not match a node for its labels alone. GPUs that nobody has reported count as fitting.
pub fn lacks_only_labels(
    policy: &Policy,
    node: &NodeFacts,
    record: &NodeRecord,
    gpu_node: Option<&GpuNodeFacts>,
) -> bool {
    let labels = VisibleLabels::new(&node.labels, &record.labels);
    let fit = policy.selector.count(reported_gpus(gpu_node));
    !policy.selector.matches_labels(labels) && fit.is_none_or(|(wanted, fit)| fit >= wanted || !has_report(gpu_node))
}
