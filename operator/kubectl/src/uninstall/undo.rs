//! The patch that restores one node: the operator's own plan for a cluster without policies. Pure.

use crate::plan::patched;
use gpunode_crds::OWNED_ANNOTATION;
use gpunode_plan::{NodeContext, NodeFacts, NodeHold, PatchBuilder, PolicySet, RolloutPermit, plan_node_with_permit};
use jiff::Timestamp;
use json_patch::Patch;
use k8s_openapi::api::core::v1::Node;
use std::collections::BTreeMap;

/// The steps that restore one node.
#[derive(Clone, Debug, PartialEq)]
pub enum NodeUndo {
    /// The node has nothing of gpunode.
    Nothing,
    /// This patch restores the node.
    Patch {
        /// Begins with a test on resourceVersion.
        patch: Patch,
        /// The changes, for people.
        words: Vec<String>,
    },
    /// The node must stay unchanged.
    Held(NodeHold),
}

/// Computes how to restore a node. Its `GpuNode` does not matter, because it is deleted too.
///
/// # Errors
/// When the planner's own patch does not fit the node, which is a fault of this program.
pub fn undo(node: &Node, now: Timestamp) -> anyhow::Result<NodeUndo> {
    let facts = NodeFacts::of(node);
    let plan = plan_node_with_permit(
        RolloutPermit::Simulated,
        &PolicySet::default().with_gpu_labels(false),
        NodeContext::new(&facts, None, now),
    );
    if let Some(hold) = plan.hold {
        let is_clean = facts.owned.is_none();
        return Ok(if is_clean {
            NodeUndo::Nothing
        } else {
            NodeUndo::Held(hold)
        });
    }
    let after = NodeFacts::of(&patched(node, &plan)?);
    let guarded = || PatchBuilder::guarded_by(&facts.resource_version);
    let mut patch = plan.patch.map_or_else(guarded, PatchBuilder::from);
    // The record goes too: no operator is left to read it.
    if after.owned.is_some() {
        patch.remove(&["metadata", "annotations", OWNED_ANNOTATION]);
    }
    let Some(patch) = patch.build() else {
        return Ok(NodeUndo::Nothing);
    };
    let mut words = difference("label", &facts.labels.to_map(), &after.labels.to_map());
    words.extend(difference("taint", &taints(&facts), &taints(&after)));
    if words.is_empty() {
        words.push(format!("annotation {OWNED_ANNOTATION}"));
    }
    Ok(NodeUndo::Patch { patch, words })
}

fn taints(facts: &NodeFacts) -> BTreeMap<String, String> {
    facts
        .taints
        .iter()
        .map(|taint| (format!("{}:{}", taint.id.key, taint.id.effect), taint.value.clone()))
        .collect()
}

fn difference(what: &str, before: &BTreeMap<String, String>, after: &BTreeMap<String, String>) -> Vec<String> {
    let changed = before.iter().filter(|(key, value)| after.get(*key) != Some(value));
    let word = |(key, _): (&String, &String)| match after.get(key) {
        None => format!("{what} {key}"),
        Some(old) => format!("{what} {key} restored to \"{old}\""),
    };
    changed.map(word).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn node(annotations: &Value, labels: &Value, taints: &Value) -> Node {
        let metadata = json!({"name": "n", "resourceVersion": "7", "annotations": annotations, "labels": labels});
        serde_json::from_value(json!({"metadata": metadata, "spec": {"taints": taints}})).expect("a node")
    }

    #[test]
    fn exactly_what_the_record_names_goes() {
        let record = r#"{"version":1,"labels":{"a":"1","changed":"1","gpunode.dev/governed":"true"},"taints":[{"key":"t","effect":"NoSchedule","value":"v"}],"later":1}"#;
        let node = node(
            &json!({"gpunode.dev/owned": record, "x": "y"}),
            &json!({"a": "1", "changed": "2", "theirs": "3", "gpunode.dev/governed": "true", "gpunode.dev/mps": "true"}),
            &json!([{"key": "theirs", "effect": "NoSchedule"}, {"key": "t", "effect": "NoSchedule", "value": "v"}]),
        );
        let NodeUndo::Patch { patch, words } = undo(&node, Timestamp::UNIX_EPOCH).expect("a plan") else {
            panic!()
        };
        assert_eq!(
            words,
            [
                "label a",
                "label gpunode.dev/governed",
                "label gpunode.dev/mps",
                "taint t:NoSchedule"
            ]
        );
        let mut value = serde_json::to_value(&node).expect("JSON");
        json_patch::patch(&mut value, &patch).expect("a patch that fits");
        assert_eq!(value["metadata"]["annotations"], json!({"x": "y"}));
        assert_eq!(value["metadata"]["labels"], json!({"changed": "2", "theirs": "3"}));
        assert_eq!(
            value["spec"]["taints"],
            json!([{"key": "theirs", "effect": "NoSchedule"}])
        );
        let again = serde_json::from_value(value).expect("a node");
        assert_eq!(undo(&again, Timestamp::UNIX_EPOCH).expect("a plan"), NodeUndo::Nothing);
    }

    #[test]
    fn what_policies_wrote_that_are_gone_goes_at_once() {
        let record = r#"{"version":1,"labels":{"a":"1"},"taints":[{"key":"t","effect":"NoExecute"}],"policies":["p"],"evicting":{"t:NoExecute":1}}"#;
        let node = node(
            &json!({"gpunode.dev/owned": record, "x": "y"}),
            &json!({"a": "1"}),
            &json!([{"key": "t", "effect": "NoExecute"}]),
        );
        let NodeUndo::Patch { words, .. } = undo(&node, Timestamp::UNIX_EPOCH).expect("a plan") else {
            panic!()
        };
        assert_eq!(words, ["label a", "taint t:NoExecute"]);
    }

    #[test]
    fn a_record_of_nothing_or_of_dead_resources_goes_at_once() {
        for record in [
            r#"{"version":1}"#,
            r#"{"version":1,"resources":{"nvidia.com/gpu":null}}"#,
            r#"{"version":1,"resources":{"nvidia.com/gpu":1700000000,"nvidia.com/gpu.shared":[1700000000]}}"#,
        ] {
            let mut node = node(&json!({"gpunode.dev/owned": record, "x": "y"}), &json!({}), &json!([]));
            let zero = json!({"nvidia.com/gpu": "0", "nvidia.com/gpu.shared": "0"});
            let status = json!({"capacity": zero, "allocatable": zero});
            node.status = Some(serde_json::from_value(status).expect("a status"));
            let NodeUndo::Patch { patch, words } = undo(&node, Timestamp::UNIX_EPOCH).expect("a plan") else {
                panic!()
            };
            assert_eq!(words, ["annotation gpunode.dev/owned"]);
            let mut value = serde_json::to_value(&node).expect("JSON");
            json_patch::patch(&mut value, &patch).expect("a patch that fits");
            assert_eq!(value["metadata"]["annotations"], json!({"x": "y"}), "{record}");
            let again = serde_json::from_value(value).expect("a node");
            assert_eq!(undo(&again, Timestamp::UNIX_EPOCH).expect("a plan"), NodeUndo::Nothing);
        }
    }

    #[test]
    fn a_node_that_a_person_keeps_or_whose_record_is_broken_stays() {
        let record = json!({"gpunode.dev/owned": r#"{"version":1,"labels":{"a":"1"}}"#});
        for (annotations, labels, expected) in [
            (
                &record,
                json!({"a": "1", "gpunode.dev/ignore": ""}),
                Some("has the label gpunode.dev/ignore"),
            ),
            (
                &json!({"gpunode.dev/owned": "broken"}),
                json!({"a": "1"}),
                Some("read annotation gpunode.dev/owned"),
            ),
            (&json!({}), json!({"gpunode.dev/ignore": ""}), None),
            (&json!({}), json!({"gpunode.dev/joined": "true"}), None),
        ] {
            let undone = undo(&node(annotations, &labels, &json!([])), Timestamp::UNIX_EPOCH).expect("a plan");
            match (undone, expected) {
                (NodeUndo::Held(hold), Some(expected)) => assert!(hold.to_string().contains(expected), "{hold}"),
                (undone, expected) => assert_eq!((undone, expected), (NodeUndo::Nothing, None)),
            }
        }
    }
}
