//! Which policies match a node.

use crate::{
    input::facts::NodeFacts,
    input::inventory::is_reported,
    input::policies::{Policy, PolicySet},
    input::selectors::VisibleLabels,
    output::mismatch::mismatch,
    record::Record,
};
use gpunode_crds::{GpuDevice, GpuNode};

/// Whether a policy matches a node.
///
/// Where no agent has told anything about the GPUs, which is so for a moment after a `GpuNode` was deleted, nobody knows that
/// a node matches a policy no more: it keeps those that have something there.
pub fn matches(policy: &Policy, node: &NodeFacts, record: &Record, gpu_node: Option<&GpuNode>) -> bool {
    let labels = VisibleLabels::new(&node.labels, &record.labels);
    let is_kept = || record.policies.contains(&policy.name) && policy.selector.matches_labels(labels);
    policy.selector.matches(labels, gpus(gpu_node)) || (!is_reported(gpu_node) && is_kept())
}

/// The first condition of a policy's selectors that fails; none where it matches.
pub fn first_mismatch(
    policy: &Policy,
    node: &NodeFacts,
    record: &Record,
    gpu_node: Option<&GpuNode>,
) -> Option<String> {
    let labels = VisibleLabels::new(&node.labels, &record.labels);
    mismatch(policy, labels, gpus(gpu_node)).filter(|_| !matches(policy, node, record, gpu_node))
}

/// Why a node matches a policy no more, where that is for want of GPUs.
pub fn gpu_mismatch(
    policies: &PolicySet,
    policy: &str,
    node: &NodeFacts,
    gpu_node: Option<&GpuNode>,
) -> Option<String> {
    let record = Record::read(node.owned.as_deref()).unwrap_or_default();
    policies
        .get(policy)?
        .selector
        .mismatch(VisibleLabels::new(&node.labels, &record.labels), gpus(gpu_node))
}

fn gpus(gpu_node: Option<&GpuNode>) -> &[GpuDevice] {
    gpu_node
        .and_then(|gpu_node| gpu_node.status.as_ref())
        .map_or(&[], |status| &status.gpus)
}
