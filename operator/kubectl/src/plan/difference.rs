//! The difference that policies make: each node as the cluster's policies leave it, and as it would be with others. Pure.

use super::world::World;
use crate::cluster::Unreadable;
use gpunode_crds::{GpuNode, GpuNodePolicy, Mode};
use gpunode_plan::PolicySet;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// What is read of a cluster.
#[derive(Debug, Default)]
pub struct Cluster {
    pub policies: Vec<GpuNodePolicy>,
    pub gpu_nodes: Vec<GpuNode>,
    pub nodes: Vec<Node>,
    /// What could not be read; objects whose status is unreadable are planned without it.
    pub unreadable: Vec<Unreadable>,
}

/// What applying policies would change.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// The policies of the files, by name.
    pub policies: Vec<PolicyChange>,
    /// Every node that would change, or where something would be in the way; by name.
    pub nodes: Vec<NodeChange>,
    /// Nodes that would stay as they are.
    pub unchanged: usize,
    /// What could not be read and may plan differently.
    pub unreadable: Vec<Unreadable>,
}

/// What becomes of one policy of the files.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyChange {
    pub name: String,
    pub action: Action,
    /// Nodes that it matches.
    pub matched: usize,
    /// It is in mode Preview, and planned as if it were in force.
    pub preview: bool,
}

/// What becomes of one node.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeChange {
    pub name: String,
    pub changes: Vec<Change>,
    /// What would be in the way and is not now.
    pub obstacles: Vec<String>,
}

/// One difference.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Change {
    pub action: Action,
    pub what: What,
    /// Key of the label, key and effect of the taint, or name of the resource or setting.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Action {
    Add,
    Change,
    Remove,
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum What {
    Label,
    Taint,
    /// Name of the policy whose device plugin runs on the node.
    Governing,
    /// What is offered under the name of a resource, in words.
    Resource,
    /// A setting of the agent configuration that is not its default.
    Setting,
    /// Hash of the agent configuration.
    Configuration,
    /// Image of the agent; the value `default` is the one that the operator was installed with.
    Image,
}

impl Plan {
    /// The plan for the policies `wanted`, which take the place of those of the same name. Those in mode Preview are
    /// planned as if they were in force.
    ///
    /// # Errors
    /// When the planner's own patch does not fit its node, which is a fault of this program.
    pub fn of(cluster: &Cluster, wanted: &BTreeMap<String, GpuNodePolicy>, now: Timestamp) -> anyhow::Result<Self> {
        let current = PolicySet::new(&cluster.policies);
        let enforced: Vec<GpuNodePolicy> = wanted.values().cloned().map(enforce).collect();
        let kept = cluster.policies.iter().filter(|policy| !wanted.contains_key(&policy.name_any()));
        let next = PolicySet::new(kept.chain(&enforced));
        let gpu_nodes: BTreeMap<String, &GpuNode> =
            cluster.gpu_nodes.iter().map(|gpu_node| (gpu_node.name_any(), gpu_node)).collect();
        let mut nodes = Vec::new();
        let mut matched = BTreeMap::<String, usize>::new();
        for node in &cluster.nodes {
            let gpu_node = gpu_nodes.get(&node.name_any()).copied().cloned();
            let before = World::of(node.clone(), gpu_node).carried_out(&current, now)?;
            let after = before.carried_out(&next, now)?;
            for name in &after.matched {
                *matched.entry(name.clone()).or_default() += 1;
            }
            nodes.push(NodeChange {
                name: node.name_any(),
                changes: if after.held { Vec::new() } else { changes(&before.entries, &after.entries) },
                obstacles: after.obstacles.difference(&before.obstacles).cloned().collect(),
            });
        }
        let all = nodes.len();
        nodes.retain(|node| !node.changes.is_empty() || !node.obstacles.is_empty());
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        let policies = wanted.values().map(|policy| PolicyChange {
            name: policy.name_any(),
            action: match cluster.policies.iter().find(|old| old.name_any() == policy.name_any()) {
                None => Action::Add,
                Some(old) if old.spec == policy.spec => Action::None,
                Some(_) => Action::Change,
            },
            matched: matched.get(&policy.name_any()).copied().unwrap_or_default(),
            preview: policy.spec.mode() == Mode::Preview,
        });
        Ok(Self {
            policies: policies.collect(),
            unchanged: all - nodes.len(),
            nodes,
            unreadable: cluster.unreadable.clone(),
        })
    }
}

fn enforce(mut policy: GpuNodePolicy) -> GpuNodePolicy {
    policy.spec.mode = Some(Mode::Enforce);
    policy
}

fn changes(before: &BTreeMap<(What, String), String>, after: &BTreeMap<(What, String), String>) -> Vec<Change> {
    let keys: BTreeSet<&(What, String)> = before.keys().chain(after.keys()).collect();
    let change = |entry: &(What, String)| {
        let (from, to) = (before.get(entry), after.get(entry));
        let action = match (from, to) {
            (None, _) => Action::Add,
            (_, None) => Action::Remove,
            (from, to) if from == to => Action::None,
            _ => Action::Change,
        };
        let key = Some(entry.1.clone()).filter(|key| !key.is_empty());
        Change { action, what: entry.0, key, from: from.cloned(), to: to.cloned() }
    };
    keys.into_iter().map(change).filter(|change| change.action != Action::None).collect()
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use serde_json::json;

    fn policy(name: &str, spec: &serde_json::Value) -> GpuNodePolicy {
        let object = json!({
            "apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNodePolicy", "metadata": {"name": name}, "spec": spec,
        });
        serde_json::from_value(object).expect("a policy")
    }

    fn node(name: &str, labels: &serde_json::Value) -> Node {
        let metadata = json!({"name": name, "uid": name, "resourceVersion": "1", "labels": labels});
        serde_json::from_value(json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {}}))
            .expect("a node")
    }

    fn plan(cluster: &Cluster, wanted: &[GpuNodePolicy]) -> Plan {
        let wanted = wanted.iter().map(|policy| (policy.name_any(), policy.clone())).collect();
        Plan::of(cluster, &wanted, Timestamp::UNIX_EPOCH).expect("a plan")
    }

    /// Two nodes of a pool, one of them with a foreign label, and two of others; a policy in force on the pool.
    pub fn sample() -> Plan {
        let cluster = Cluster {
            policies: vec![policy(
                "pool",
                &json!({"nodeSelector": {"matchLabels": {"pool": "a"}}, "labels": {"team": "x", "old": "1"},
                    "taints": [{"key": "dedicated", "effect": "NoSchedule"}], "devicePlugin": {}}),
            )],
            gpu_nodes: Vec::new(),
            nodes: vec![
                node("n2", &json!({"pool": "a", "accelerator": "theirs"})),
                node("n1", &json!({"pool": "a"})),
                node("n3", &json!({"pool": "b"})),
                node("n4", &json!({"pool": "d"})),
            ],
            unreadable: vec![Unreadable {
                kind: "GpuNode".to_owned(),
                name: "n3".to_owned(),
                message: "its status cannot be read: bad time".to_owned(),
            }],
        };
        let wanted = policy(
            "pool",
            &json!({"nodeSelector": {"matchLabels": {"pool": "a"}}, "labels": {"team": "y", "accelerator": "v100"},
                "taints": [{"key": "dedicated", "value": "v100", "effect": "NoExecute"}],
                "devicePlugin": {"passDeviceSpecs": true, "resources": [
                    {"name": "nvidia.com/gpu", "sharing": {"strategy": "TimeSlicing", "replicas": 4}}]},
                "image": "agent:2"}),
        );
        let other = policy(
            "other",
            &json!({"nodeSelector": {"matchLabels": {"pool": "c"}}, "labels": {"a": "b"}, "mode": "Preview"}),
        );
        let more = policy("more", &json!({"nodeSelector": {"matchLabels": {"pool": "d"}}, "devicePlugin": {}}));
        plan(&cluster, &[wanted, other, more])
    }

    #[test]
    fn applying_what_is_there_changes_nothing() {
        let same = policy("same", &json!({"nodeSelector": {}, "labels": {"a": "b"}, "devicePlugin": {}}));
        let cluster =
            Cluster { policies: vec![same.clone()], nodes: vec![node("n", &json!({}))], ..Cluster::default() };
        let plan = plan(&cluster, &[same]);
        assert_eq!((plan.nodes.len(), plan.unchanged), (0, 1));
        assert_eq!(plan.policies[0].action, Action::None);
        assert_eq!(plan.policies[0].matched, 1);
    }

    #[test]
    fn a_new_policy_adds_and_a_foreign_value_stays() {
        let cluster = Cluster { nodes: vec![node("n", &json!({"a": "theirs"}))], ..Cluster::default() };
        let plan = plan(&cluster, &[policy("new", &json!({"nodeSelector": {}, "labels": {"a": "b", "c": "d"}}))]);
        let [node] = plan.nodes.as_slice() else { panic!("{plan:?}") };
        let added =
            Change { action: Action::Add, what: What::Label, key: Some("c".into()), from: None, to: Some("d".into()) };
        assert_eq!(node.changes, [added]);
        assert_eq!(node.obstacles.len(), 1, "{:?}", node.obstacles);
    }

    #[test]
    fn a_policy_in_mode_preview_is_planned_as_if_in_force() {
        let cluster = Cluster { nodes: vec![node("n", &json!({}))], ..Cluster::default() };
        let preview = policy("new", &json!({"nodeSelector": {}, "labels": {"c": "d"}, "mode": "Preview"}));
        let plan = plan(&cluster, &[preview]);
        assert!(plan.policies[0].preview);
        assert_eq!(plan.nodes[0].changes.len(), 1);
    }

    #[test]
    fn the_label_of_the_mps_daemons_comes_with_a_resource_that_needs_them() {
        let mps = json!({"resources": [{"name": "a.b/c", "sharing": {"strategy": "Mps", "replicas": 10}}]});
        let cluster = Cluster { nodes: vec![node("n", &json!({}))], ..Cluster::default() };
        let plan = plan(&cluster, &[policy("new", &json!({"nodeSelector": {}, "devicePlugin": mps}))]);
        let changes = &plan.nodes[0].changes;
        assert!(changes.iter().any(|change| change.key.as_deref() == Some("gpunode.dev/mps")), "{changes:?}");
        let text = anstream::adapter::strip_str(&crate::plan::text::plan(&plan)).to_string();
        assert!(text.contains("+ resource a.b/c: 10 shares per GPU (Mps)"), "{text}");
        assert!(!text.contains("gpunode.dev/mps"), "{text}");
    }

    #[test]
    fn policies_that_would_disagree_are_an_obstacle() {
        let there = policy("one", &json!({"nodeSelector": {}, "labels": {"a": "1"}}));
        let cluster = Cluster { policies: vec![there], nodes: vec![node("n", &json!({}))], ..Cluster::default() };
        let plan = plan(&cluster, &[policy("two", &json!({"nodeSelector": {}, "labels": {"a": "2"}}))]);
        assert!(plan.nodes[0].changes.is_empty());
        assert!(plan.nodes[0].obstacles[0].contains("equal priority"), "{:?}", plan.nodes[0].obstacles);
    }

    #[test]
    fn a_node_that_would_stay_as_it_is_has_no_changes() {
        let config = |replicas: i32| {
            let sharing = json!({"strategy": "TimeSlicing", "replicas": replicas});
            json!({"nodeSelector": {}, "devicePlugin": {"resources": [{"name": "nvidia.com/gpu", "sharing": sharing}]}})
        };
        let cluster = Cluster {
            policies: vec![policy("one", &config(2))],
            nodes: vec![node("n", &json!({}))],
            ..Cluster::default()
        };
        let plan = plan(&cluster, &[policy("two", &config(4))]);
        assert!(plan.nodes[0].changes.is_empty(), "{:?}", plan.nodes[0].changes);
        assert!(plan.nodes[0].obstacles[0].contains("disagree about devicePlugin"), "{:?}", plan.nodes[0].obstacles);
    }
}
