//! The summary of a cluster's GPU nodes and policies. Pure.

use super::{
    discovery::DiscoveryProgress,
    in_use::AmountsInUse,
    node::{ConfigurationProgress, NodeSummary, summarise_node},
    policy::{PolicySummary, summarise_policy},
    problems::problems,
    rollout::planned,
};
use crate::{
    cluster::{ListedObjects, UnreadableObject, unreadable_names},
    snapshot::operator::OperatorRules,
};
use gpunode_crds::{GpuNode, GpuNodePolicy, GpuNodeSpec};
use gpunode_plan::{NodeFacts, PolicySet};
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Node, NodeCondition, NodeStatus},
    apimachinery::pkg::api::resource::Quantity,
};
use kube::ResourceExt;
use serde::Serialize;
use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

/// Reason shown for an object whose status cannot be read; no API object has it.
const UNREADABLE: &str = "StatusUnreadable";

/// Added to the reason for which no Node is shown.
const WITHOUT_NODES: &str = "; READY and RESOURCES are what the agents reported last, and rollouts are left out";

/// The GPU nodes and policies, sorted by name.
#[derive(Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FleetSummary {
    /// One per GpuNode.
    pub nodes: Vec<NodeSummary>,
    /// One per policy.
    pub policies: Vec<PolicySummary>,
    /// Memory, cores and shares that containers hold on these nodes.
    pub in_use: AmountsInUse,
    /// Upgrade of discovery; absent where it is complete or cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub discovery: Option<DiscoveryProgress>,
    /// Unreadable objects of any kind, and kinds that the caller may not list.
    pub unreadable: Vec<UnreadableObject>,
}

impl FleetSummary {
    /// Summarises the objects of a cluster, whose operator allows these agent images.
    pub fn new(
        gpu_nodes: &ListedObjects<GpuNode>,
        nodes: &ListedObjects<Node>,
        policies: &ListedObjects<GpuNodePolicy>,
        rules: OperatorRules,
        now: Timestamp,
    ) -> Self {
        let lists = [&gpu_nodes.unreadable, &nodes.unreadable, &policies.unreadable];
        let mut unreadable: Vec<_> = lists.into_iter().flatten().cloned().collect();
        if nodes.is_forbidden() {
            let forbidden = unreadable.iter_mut().filter(|it| it.is_every() && it.kind == "Node");
            forbidden.for_each(|it| it.message.push_str(WITHOUT_NODES));
        }
        let by_name: BTreeMap<String, &Node> = nodes.objects.iter().map(|node| (node.name_any(), node)).collect();
        let unreadable_policies = policies.unreadable.iter().map(|object| object.name.clone());
        let governing = gpu_nodes
            .objects
            .iter()
            .filter_map(|it| Some(it.spec.config.as_ref()?.policy.clone()));
        let known: BTreeSet<String> = policies
            .objects
            .iter()
            .map(ResourceExt::name_any)
            .chain(unreadable_policies)
            // Nothing tells that a policy is gone if the caller may not list them.
            .chain(governing.filter(|_| policies.is_forbidden()))
            .collect();
        let state = |gpu_node: &GpuNode| {
            let name = gpu_node.name_any();
            let reported = nodes.is_forbidden().then(|| reported_node(gpu_node));
            let there = by_name.get(&name).copied();
            let node = there.or(reported.as_ref());
            let owners = gpu_node.metadata.owner_references.as_deref().unwrap_or_default();
            let is_outdated = there.is_some_and(|node| !NodeFacts::of(node).owns(owners));
            let gpu_node = if is_outdated {
                Cow::Owned(without_report(gpu_node))
            } else {
                Cow::Borrowed(gpu_node)
            };
            let mut state = summarise_node(&gpu_node, node);
            state.problems = problems(&state, node, &known);
            if is_outdated {
                state.message = Some("its GpuNode is of an earlier node of this name".to_owned());
            }
            if gpu_nodes.unreadable.iter().any(|object| object.name == name) {
                // Nothing is known of this node; the list of unreadable objects says why.
                (state.ready, state.reason) = ("Unknown".to_owned(), Some(UNREADABLE.to_owned()));
                (state.configuration, state.message) = (ConfigurationProgress::Unknown, None);
            }
            state
        };
        let mut states: Vec<_> = gpu_nodes.objects.iter().map(state).collect();
        states.sort_by(|a, b| a.name.cmp(&b.name));
        let is_unreadable = |name: &str| policies.unreadable.iter().any(|object| object.name == name);
        // A rollout without its nodes' GPUs would be another one.
        let planned_nodes: &[Node] = if gpu_nodes.is_forbidden() {
            &[]
        } else {
            nodes.objects.as_slice()
        };
        let set = PolicySet::new(&policies.objects)
            .with_unreadable(unreadable_names(&policies.objects, &policies.unreadable));
        let set = rules.apply(set);
        let mut planned = planned(&set, planned_nodes, &gpu_nodes.objects, now);
        let policy = |policy: &GpuNodePolicy| {
            let mut state = summarise_policy(policy);
            state.rollout = planned.rollouts.remove(&state.name);
            state.nearest = planned.nearest.remove(&state.name);
            if is_unreadable(&state.name) {
                (state.reason, state.messages) = (Some(UNREADABLE.to_owned()), Vec::new());
            }
            state
        };
        let mut policies: Vec<_> = policies.objects.iter().map(policy).collect();
        policies.sort_by(|a, b| a.name.cmp(&b.name));
        Self {
            in_use: total(&states),
            nodes: states,
            policies,
            discovery: None,
            unreadable,
        }
    }

    /// Returns true if the caller may not list this kind.
    pub fn is_forbidden(&self, kind: &str) -> bool {
        self.forbidden(kind).is_some()
    }

    fn forbidden(&self, kind: &str) -> Option<&UnreadableObject> {
        self.unreadable.iter().find(|it| it.is_every() && it.kind == kind)
    }

    /// Keeps the nodes of these names and their unreadable objects. `nodes` are those of the cluster.
    ///
    /// # Errors
    /// When a name is not that of a GPU node.
    pub fn only(mut self, names: &[String], nodes: &ListedObjects<Node>) -> anyhow::Result<Self> {
        if let Some(name) = names
            .iter()
            .find(|name| !self.nodes.iter().any(|node| node.name == **name))
        {
            if let Some(forbidden) = self.forbidden("GpuNode") {
                anyhow::bail!("show node {name}: {forbidden}");
            }
            anyhow::ensure!(
                !nodes.is_forbidden(),
                "show node {name}: it has no GpuNode; list GPU nodes with `kubectl gpunode status`"
            );
            let unreadable = nodes.unreadable.iter().map(|node| node.name.clone());
            let exists = nodes
                .objects
                .iter()
                .map(ResourceExt::name_any)
                .chain(unreadable)
                .any(|node| node == *name);
            anyhow::ensure!(
                exists,
                "show node {name}: the node does not exist; list nodes with `kubectl get nodes`"
            );
            anyhow::bail!(
                "show node {name}: it has no GpuNode, because no GPU was found on it and no policy with a devicePlugin matches \
                 it; list GPU nodes with `kubectl gpunode status`"
            );
        }
        self.nodes.retain(|node| names.contains(&node.name));
        self.in_use = total(&self.nodes);
        self.unreadable.retain(|it| {
            ["GpuNode", "Node"].contains(&it.kind.as_str()) && (it.is_every() || names.contains(&it.name))
        });
        self.policies.clear();
        Ok(self)
    }
}

/// Returns a `GpuNode` without what an earlier node of the same name had.
fn without_report(gpu_node: &GpuNode) -> GpuNode {
    GpuNode {
        metadata: gpu_node.metadata.clone(),
        spec: GpuNodeSpec::default(),
        status: None,
    }
}

/// Returns a Node as the agent on it reports: ready, with what the agent advertises.
fn reported_node(gpu_node: &GpuNode) -> Node {
    let resources = gpu_node.status.iter().flat_map(|status| &status.resources);
    let allocatable = resources.map(|it| (it.name.clone(), Quantity(it.allocatable.to_string())));
    Node {
        status: Some(NodeStatus {
            allocatable: Some(allocatable.collect()),
            conditions: Some(vec![NodeCondition {
                type_: "Ready".to_owned(),
                status: "True".to_owned(),
                ..NodeCondition::default()
            }]),
            ..NodeStatus::default()
        }),
        ..Node::default()
    }
}

fn total(nodes: &[NodeSummary]) -> AmountsInUse {
    let mut total = AmountsInUse::default();
    for node in nodes {
        total.add(&node.in_use);
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::sample::{rolling, sample};
    use serde_json::json;

    /// The caller may not list these kinds.
    fn forbidden<K>(kind: &str) -> ListedObjects<K> {
        ListedObjects {
            objects: Vec::new(),
            unreadable: vec![UnreadableObject {
                kind: kind.to_owned(),
                name: "*".to_owned(),
                message: "forbidden; ask for the ClusterRole gpunode-viewer".to_owned(),
            }],
        }
    }

    fn listed<K>(objects: Vec<K>) -> ListedObjects<K> {
        ListedObjects {
            objects,
            unreadable: Vec::new(),
        }
    }

    /// Node `n` with 7 of 8 GPUs that an agent reports, governed by policy `p`.
    fn gpu_node() -> GpuNode {
        let ready = json!({"type": "Ready", "status": "True", "reason": "ConfigurationInForce", "message": "",
            "lastTransitionTime": "2026-01-02T03:04:05Z"});
        serde_json::from_value(json!({
            "apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": "n"},
            "spec": {"config": {"policy": "p", "version": 1, "hash": "h", "document": "{}"}},
            "status": {
                "configHash": "h", "conditions": [ready],
                "resources": [{"name": "nvidia.com/gpu", "capacity": 8, "allocatable": 7, "registered": true}],
            },
        }))
        .expect("a GpuNode")
    }

    #[test]
    fn without_nodes_the_reports_of_the_agents_are_shown() {
        let fleet = fleet_without_nodes();
        let [node] = fleet.nodes.as_slice() else {
            panic!("{fleet:?}")
        };
        assert_eq!((node.ready.as_str(), node.resources[0].allocatable), ("True", 7));
        assert!(
            node.problems.is_empty(),
            "nobody knows that the policy is gone: {node:?}"
        );
        let hidden: Vec<_> = fleet.unreadable.iter().map(ToString::to_string).collect();
        assert_eq!(
            hidden,
            [
                "you may not list Nodes: forbidden; ask for the ClusterRole gpunode-viewer; READY and RESOURCES are what the agents \
                 reported last, and rollouts are left out",
                "you may not list GpuNodePolicies: forbidden; ask for the ClusterRole gpunode-viewer",
            ]
        );
        let of_node = |name: &str| fleet_without_nodes().only(&[name.to_owned()], &forbidden("Node"));
        assert!(of_node("n").is_ok_and(|fleet| fleet.is_forbidden("Node") && !fleet.is_forbidden("GpuNodePolicy")));
        let error = of_node("m").expect_err("no GpuNode").to_string();
        assert!(error.starts_with("show node m: it has no GpuNode; "), "{error}");
    }

    fn fleet_without_nodes() -> FleetSummary {
        FleetSummary::new(
            &listed(vec![gpu_node()]),
            &forbidden("Node"),
            &forbidden("GpuNodePolicy"),
            OperatorRules::default(),
            Timestamp::UNIX_EPOCH,
        )
    }

    #[test]
    fn without_gpu_nodes_there_is_no_rollout_and_a_node_says_why_it_is_not_shown() {
        let policy = json!({"apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNodePolicy", "metadata": {"name": "p"},
            "spec": {"nodeSelector": {}, "devicePlugin": {}}});
        let node = json!({"metadata": {"name": "n"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        let nodes = listed(vec![serde_json::from_value(node).expect("a Node")]);
        let fleet = FleetSummary::new(
            &forbidden("GpuNode"),
            &nodes,
            &listed(vec![serde_json::from_value(policy).expect("a policy")]),
            OperatorRules::default(),
            Timestamp::UNIX_EPOCH,
        );
        assert_eq!(fleet.policies[0].rollout, None);
        let text = crate::status::text::fleet(&fleet, crate::output::TextWidth::UNLIMITED);
        assert!(!text.contains("no GpuNode exists"), "{text}");
        assert!(text.contains("you may not list GpuNodes: forbidden"), "{text}");
        let error = fleet.only(&["n".to_owned()], &nodes).expect_err("hidden").to_string();
        assert!(
            error.starts_with("show node n: you may not list GpuNodes: forbidden"),
            "{error}"
        );
        assert!(
            rolling().policies[0].rollout.is_some(),
            "there is one where all is known"
        );
    }

    #[test]
    fn report_of_an_earlier_node_of_the_same_name_is_not_shown_for_the_new_one() {
        let mut gpu_node = gpu_node();
        let owner = json!({"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "old"});
        gpu_node.metadata.owner_references = Some(vec![serde_json::from_value(owner).expect("an owner")]);
        let summary = |uid: &str| {
            let node = json!({"metadata": {"name": "n", "uid": uid},
                "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
            let nodes = listed(vec![serde_json::from_value(node).expect("a Node")]);
            let gpu_nodes = listed(vec![gpu_node.clone()]);
            FleetSummary::new(
                &gpu_nodes,
                &nodes,
                &listed(Vec::new()),
                OperatorRules::default(),
                Timestamp::UNIX_EPOCH,
            )
        };
        let [node] = &summary("new").nodes[..] else {
            panic!("one node")
        };
        assert_eq!((node.ready.as_str(), node.policy.as_ref()), ("Unknown", None));
        assert!(node.resources.is_empty() && node.problems.is_empty(), "{node:?}");
        assert_eq!(
            node.message.as_deref(),
            Some("its GpuNode is of an earlier node of this name")
        );
        assert_eq!(summary("old").nodes[0].ready, "True");
    }

    #[test]
    fn policy_with_an_image_that_is_not_allowed_rolls_nothing_out() {
        let policy = json!({"apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNodePolicy", "metadata": {"name": "p"},
            "spec": {"nodeSelector": {}, "devicePlugin": {}, "image": "other.example/agent:1"}});
        let node = json!({"metadata": {"name": "n"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        let summary = |image: &str| {
            let nodes = listed(vec![serde_json::from_value(node.clone()).expect("a Node")]);
            let policies = listed(vec![serde_json::from_value(policy.clone()).expect("a policy")]);
            let rules = OperatorRules::of_image(image);
            FleetSummary::new(
                &listed(vec![gpu_node()]),
                &nodes,
                &policies,
                rules,
                Timestamp::UNIX_EPOCH,
            )
        };
        assert_eq!(summary("example.com/agent:1").policies[0].rollout, None);
        assert!(summary("other.example/agent:2").policies[0].rollout.is_some());
    }

    #[test]
    fn each_node_says_what_became_of_its_configuration() {
        let fleet = sample();
        let states: Vec<_> = fleet
            .nodes
            .iter()
            .map(|node| (node.name.as_str(), node.configuration, node.ready.as_str()))
            .collect();
        assert_eq!(
            states,
            [
                ("a", ConfigurationProgress::InForce, "True"),
                ("b", ConfigurationProgress::Rejected, "False"),
                ("c", ConfigurationProgress::Pending, "Unknown"),
                ("d", ConfigurationProgress::Unknown, "Unknown"),
                ("f", ConfigurationProgress::None, "Unknown"),
                ("g", ConfigurationProgress::InForce, "True"),
            ]
        );
    }

    #[test]
    fn a_node_out_of_reach_does_not_count_as_ready() {
        let fleet = sample();
        assert_eq!(fleet.nodes[2].reason.as_deref(), Some("NodeNotReady"));
        assert_eq!(fleet.nodes[3].reason.as_deref(), Some("StatusUnreadable"));
        assert_eq!(fleet.nodes[4].reason.as_deref(), Some("AgentNotReporting"));
    }

    #[test]
    fn what_a_dead_agent_said_last_is_not_what_the_node_offers() {
        let fleet = sample();
        let offers = |node: &NodeSummary| node.resources.iter().map(|offer| offer.allocatable).collect::<Vec<_>>();
        assert_eq!((offers(&fleet.nodes[0]), offers(&fleet.nodes[5])), (vec![7], vec![0]));
        assert!(fleet.nodes[0].problems.is_empty(), "{:?}", fleet.nodes[0].problems);
        let [difference, orphaned] = fleet.nodes[5].problems.as_slice() else {
            panic!("{:?}", fleet.nodes[5])
        };
        assert!(
            difference.contains("the agent advertises 7, the Node has 0 allocatable"),
            "{difference}"
        );
        assert!(orphaned.contains("policy gone, which no longer exists"), "{orphaned}");
    }
}
