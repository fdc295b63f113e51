//! What the objects of a cluster say about its GPU nodes and policies. Pure.

use super::offered::Offer;
use crate::cluster::{Listed, Unreadable};
use gpunode_crds::{ConditionType, GpuNode, GpuNodePolicy, NodeFailure, Reason};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// The reason beside an object whose status cannot be read; no API object has it.
const UNREADABLE: &str = "StatusUnreadable";

/// The GPU nodes and the policies, each by name.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Fleet {
    /// One per GpuNode.
    pub nodes: Vec<NodeState>,
    /// One per policy.
    pub policies: Vec<PolicyState>,
    /// What could not be read, of any kind.
    pub unreadable: Vec<Unreadable>,
}

/// The state of one GPU node.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeState {
    pub name: String,
    pub hardware: Option<String>,
    pub policy: Option<String>,
    pub resources: Vec<Offer>,
    pub configuration: Configuration,
    /// `True`, `False` or `Unknown`.
    pub ready: String,
    pub reason: Option<String>,
    /// What the reason means here; only where the node is not ready.
    pub message: Option<String>,
    /// What does not fit together, and what to do about it.
    pub problems: Vec<String>,
}

/// What became of the configuration that the operator wrote for a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Configuration {
    /// No policy with a `devicePlugin` governs the node.
    None,
    InForce,
    Pending,
    Rejected,
    /// The agent's word on it cannot be read.
    Unknown,
}

/// The state of one policy.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyState {
    pub name: String,
    pub mode: String,
    pub priority: i32,
    pub matched: i32,
    pub ready_nodes: i32,
    pub updating: i32,
    pub failed: i32,
    pub conflicted: i32,
    /// `True`, `False` or `Unknown`.
    pub ready: String,
    pub reason: Option<String>,
    /// What stands in the way of the whole policy.
    pub messages: Vec<String>,
    /// What stands in its way on single nodes.
    pub failures: Vec<NodeFailure>,
}

impl Fleet {
    /// The state of the cluster that holds these objects.
    pub fn new(gpu_nodes: &Listed<GpuNode>, nodes: &Listed<Node>, policies: &Listed<GpuNodePolicy>) -> Self {
        let unreadable = [&gpu_nodes.unreadable, &nodes.unreadable, &policies.unreadable];
        let by_name: BTreeMap<String, &Node> = nodes.objects.iter().map(|node| (node.name_any(), node)).collect();
        let unreadable_policies = policies.unreadable.iter().map(|object| object.name.clone());
        let known: BTreeSet<String> =
            policies.objects.iter().map(ResourceExt::name_any).chain(unreadable_policies).collect();
        let state = |gpu_node: &GpuNode| {
            let name = gpu_node.name_any();
            let node = by_name.get(&name).copied();
            let mut state = node_state(gpu_node, node);
            state.problems = problems(&state, node, &known);
            if gpu_nodes.unreadable.iter().any(|object| object.name == name) {
                // What is known is that nothing is; the list of what is unreadable says why.
                (state.ready, state.reason) = ("Unknown".to_owned(), Some(UNREADABLE.to_owned()));
                (state.configuration, state.message) = (Configuration::Unknown, None);
            }
            state
        };
        let mut states: Vec<_> = gpu_nodes.objects.iter().map(state).collect();
        states.sort_by(|a, b| a.name.cmp(&b.name));
        let is_unreadable = |name: &str| policies.unreadable.iter().any(|object| object.name == name);
        let policy = |policy: &GpuNodePolicy| {
            let mut state = policy_state(policy);
            if is_unreadable(&state.name) {
                (state.reason, state.messages) = (Some(UNREADABLE.to_owned()), Vec::new());
            }
            state
        };
        let mut policies: Vec<_> = policies.objects.iter().map(policy).collect();
        policies.sort_by(|a, b| a.name.cmp(&b.name));
        Self { nodes: states, policies, unreadable: unreadable.into_iter().flatten().cloned().collect() }
    }
}

fn node_state(gpu_node: &GpuNode, node: Option<&Node>) -> NodeState {
    let status = gpu_node.status.as_ref();
    let config = gpu_node.spec.config.as_ref();
    let rejected = status.and_then(|status| status.rejected_config.as_ref());
    let configuration = match config {
        None => Configuration::None,
        Some(config) if rejected.is_some_and(|rejected| rejected.hash == config.hash) => Configuration::Rejected,
        Some(config) if status.and_then(|status| status.config_hash.as_ref()) == Some(&config.hash) => {
            Configuration::InForce
        }
        Some(_) => Configuration::Pending,
    };
    let own = status.and_then(|status| ConditionType::Ready.find(&status.conditions));
    let unreachable = |message: &str| ("Unknown".to_owned(), Some(Reason::NodeNotReady), Some(message.to_owned()));
    let (ready, reason, message) = match (node.map(is_node_ready), own) {
        // What an agent last said of a node that has gone or is out of reach says nothing about now.
        (None, _) => unreachable("the Node object is gone"),
        (Some(false), _) => unreachable("the node's kubelet is not ready"),
        (Some(true), None) => ("Unknown".to_owned(), Some(Reason::AgentNotReporting), None),
        (Some(true), Some(own)) => {
            let message = Some(own.message.clone()).filter(|_| own.status != "True");
            return NodeState {
                reason: Some(own.reason.clone()),
                ready: own.status.clone(),
                message,
                ..state(gpu_node, node, configuration)
            };
        }
    };
    NodeState {
        ready,
        reason: reason.map(|reason| reason.as_str().to_owned()),
        message,
        ..state(gpu_node, node, configuration)
    }
}

/// What does not fit together on a node: its agent and the Node, its configuration and the policies `known`.
fn problems(state: &NodeState, node: Option<&Node>, known: &BTreeSet<String>) -> Vec<String> {
    // Where the Node is gone, that is what to say.
    let offers = state.resources.iter().filter(|_| node.is_some());
    let orphaned = state.policy.as_ref().filter(|policy| !known.contains(*policy)).map(|policy| {
        format!(
            "its configuration comes from policy {policy}, which does not exist; the operator takes it away, so \
             see whether it runs: `kubectl -n gpunode-system get pods`"
        )
    });
    offers.filter_map(|offer| offer.difference(&state.name)).chain(orphaned).collect()
}

fn state(gpu_node: &GpuNode, node: Option<&Node>, configuration: Configuration) -> NodeState {
    NodeState {
        name: gpu_node.name_any(),
        hardware: gpu_node.status.as_ref().and_then(|status| status.hardware.clone()),
        policy: gpu_node.spec.config.as_ref().map(|config| config.policy.clone()),
        resources: Offer::all(gpu_node, node),
        configuration,
        ready: String::new(),
        reason: None,
        message: None,
        problems: Vec::new(),
    }
}

fn policy_state(policy: &GpuNodePolicy) -> PolicyState {
    let status = policy.status.clone().unwrap_or_default();
    let nodes = status.nodes.unwrap_or_default();
    let ready = ConditionType::Ready.find(&status.conditions);
    let stands_in_the_way = [ConditionType::Stalled, ConditionType::Conflict, ConditionType::Degraded];
    let unseen = status.observed_generation.is_none_or(|seen| policy.metadata.generation.is_some_and(|now| seen < now));
    let unseen = unseen.then(|| "the operator has not seen the present spec; is it running?".to_owned());
    let messages = stands_in_the_way
        .into_iter()
        .filter_map(|kind| kind.find(&status.conditions))
        .filter(|condition| condition.status == "True")
        .map(|condition| format!("{} ({}): {}", condition.type_, condition.reason, condition.message))
        .chain(unseen)
        .collect();
    PolicyState {
        name: policy.name_any(),
        mode: format!("{:?}", policy.spec.mode()),
        priority: policy.spec.priority(),
        matched: nodes.matched,
        ready_nodes: nodes.ready,
        updating: nodes.updating,
        failed: nodes.failed,
        conflicted: nodes.conflicted,
        ready: ready.map_or_else(|| "Unknown".to_owned(), |ready| ready.status.clone()),
        reason: ready.map(|ready| ready.reason.clone()),
        messages,
        failures: status.failures,
    }
}

fn is_node_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use serde_json::json;

    fn from<T: serde::de::DeserializeOwned>(value: serde_json::Value) -> T {
        serde_json::from_value(value).expect("a test object")
    }

    /// Nodes `a` (as it should be), `b` (rejected its configuration), `c` (kubelet down), `d` (unreadable), `f` (hardware
    /// only) and `g` (agent and policy gone), with one policy in force and one in conflict.
    pub fn sample() -> Fleet {
        let time = "2026-01-02T03:04:05Z";
        let condition = |kind: &str, status: &str, reason: &str, message: &str| json!({"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": time});
        let gpu_node = |name: &str, hash: Option<&str>, status: serde_json::Value| {
            let policy = if name == "g" { "gone" } else { "v100" };
            let config = hash.map(|hash| json!({"policy": policy, "version": 1, "hash": hash, "document": "{}"}));
            from::<GpuNode>(json!({
                "apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": name},
                "spec": {"config": config}, "status": status,
            }))
        };
        let in_force = json!({
            "hardware": "8 x Tesla-V100-SXM2-32GB", "configHash": "h1",
            "resources": [{"name": "nvidia.com/gpu", "capacity": 8, "allocatable": 7, "registered": true}],
            "conditions": [condition("Ready", "True", "ConfigurationInForce", "")],
        });
        let rejected = json!({
            "hardware": "8 x Tesla-V100-SXM2-32GB", "configHash": "h0",
            "rejectedConfig": {"hash": "h1", "message": "resources[0].name: bad"},
            "conditions": [condition("Ready", "False", "ConfigurationRejected", "resources[0].name: bad")],
        });
        let hardware = json!({"hardware": "4 x Tesla-T4"});
        let gpu_nodes = [
            gpu_node("b", Some("h1"), rejected),
            gpu_node("a", Some("h1"), in_force.clone()),
            gpu_node("c", Some("h2"), in_force.clone()),
            gpu_node("d", None, json!(null)),
            gpu_node("f", None, hardware),
            gpu_node("g", Some("h1"), in_force),
        ];
        let node = |name: &str, ready: &str| {
            let offered = if name == "a" { "7" } else { "0" };
            from::<Node>(json!({
                "apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
                "status": {
                    "conditions": [{"type": "Ready", "status": ready}],
                    "allocatable": {"nvidia.com/gpu": offered, "cpu": "7910m"},
                },
            }))
        };
        let nodes = [("a", "True"), ("b", "True"), ("c", "Unknown"), ("d", "True"), ("f", "True"), ("g", "True")]
            .map(|(name, ready)| node(name, ready));
        let policies = [
            from::<GpuNodePolicy>(json!({
                "apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNodePolicy", "metadata": {"name": "v100"},
                "spec": {"nodeSelector": {}, "priority": 100},
                "status": {
                    "observedGeneration": 1,
                    "nodes": {"matched": 3, "ready": 1, "updating": 1, "failed": 1, "conflicted": 0},
                    "conditions": [
                        condition("Ready", "False", "NodesUpdating", "1 of 3"),
                        condition("Degraded", "True", "NodesFailed", "1 node failed"),
                    ],
                    "failures": [{"node": "b", "reason": "ConfigurationRejected", "message": "resources[0].name: bad"}],
                },
            })),
            from::<GpuNodePolicy>(json!({
                "apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNodePolicy", "metadata": {"name": "new"},
                "spec": {"nodeSelector": {}, "mode": "Preview"},
            })),
        ];
        let bad = Unreadable {
            kind: "GpuNode".to_owned(),
            name: "d".to_owned(),
            message: "its status cannot be read: bad time".to_owned(),
        };
        Fleet::new(
            &Listed { objects: gpu_nodes.into(), unreadable: vec![bad] },
            &Listed { objects: nodes.into(), unreadable: Vec::new() },
            &Listed { objects: policies.into(), unreadable: Vec::new() },
        )
    }

    #[test]
    fn each_node_says_what_became_of_its_configuration() {
        let fleet = sample();
        let states: Vec<_> =
            fleet.nodes.iter().map(|node| (node.name.as_str(), node.configuration, node.ready.as_str())).collect();
        assert_eq!(
            states,
            [
                ("a", Configuration::InForce, "True"),
                ("b", Configuration::Rejected, "False"),
                ("c", Configuration::Pending, "Unknown"),
                ("d", Configuration::Unknown, "Unknown"),
                ("f", Configuration::None, "Unknown"),
                ("g", Configuration::InForce, "True"),
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
        let offers = |node: &NodeState| node.resources.iter().map(|offer| offer.allocatable).collect::<Vec<_>>();
        assert_eq!((offers(&fleet.nodes[0]), offers(&fleet.nodes[5])), (vec![7], vec![0]));
        assert!(fleet.nodes[0].problems.is_empty(), "{:?}", fleet.nodes[0].problems);
        let [difference, orphaned] = fleet.nodes[5].problems.as_slice() else { panic!("{:?}", fleet.nodes[5]) };
        assert!(difference.contains("the agent says 7, the Node offers 0"), "{difference}");
        assert!(orphaned.contains("policy gone, which does not exist"), "{orphaned}");
    }
}
