//! Matches policies with nodes.

use crate::{
    input::{
        context::{has_report, reported_gpus},
        facts::NodeFacts,
        gpu_node_facts::GpuNodeFacts,
        policies::Policy,
        visible_labels::VisibleLabels,
    },
    record::{entries::RecordEntries, node_record::NodeRecord},
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

/// Returns false if a policy does not match a node, whatever GPUs that has. Reads no record, for thousands of nodes in
/// a row: returns true where the record has a label that the policy selects by.
pub fn may_match(policy: &Policy, node: &NodeFacts) -> bool {
    let unread = RecordEntries::default();
    let record = node.owned.as_deref().unwrap_or_default();
    policy
        .selector
        .matches_labels(VisibleLabels::new(&node.labels, &unread))
        || policy.selector.label_keys().any(|key| record.contains(key.as_str()))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::policies::PolicySet;
    use gpunode_crds::GpuNodePolicy;
    use serde_json::json;
    use std::{collections::BTreeMap, sync::Arc};

    #[test]
    fn label_in_the_record_may_match_and_another_value_does_not() {
        let spec = json!({"nodeSelector": {"matchLabels": {"pool": "a"}}, "labels": {"x": "y"}});
        let policy = GpuNodePolicy::new("p", serde_json::from_value(spec).unwrap());
        let set = PolicySet::new([&policy]);
        let policy = set.get("p").unwrap();
        for (pool, record, expected) in [
            ("a", None, true),
            ("b", None, false),
            ("b", Some(r#"{"version":1,"labels":{"x":"y"}}"#), false),
            ("b", Some(r#"{"version":1,"labels":{"pool":"b"}}"#), true),
        ] {
            let node = NodeFacts {
                labels: (&BTreeMap::from([("pool", pool)])).into(),
                owned: record.map(Arc::from),
                ..NodeFacts::default()
            };
            assert_eq!(may_match(policy, &node), expected, "{pool} {record:?}");
        }
    }
}
