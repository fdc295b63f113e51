//! What the objects of a cluster say about its GPU nodes and policies. Pure.

use crate::cluster::{Listed, Unreadable};
use gpunode_crds::{ConditionType, GpuNode, GpuNodePolicy, NodeFailure, Reason, ResourceStatus};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use serde::Serialize;
use std::collections::BTreeMap;

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
    pub resources: Vec<ResourceStatus>,
    pub configuration: Configuration,
    /// `True`, `False` or `Unknown`.
    pub ready: String,
    pub reason: Option<String>,
    /// What the reason means here; only where the node is not ready.
    pub message: Option<String>,
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
        let state = |gpu_node: &GpuNode| {
            let name = gpu_node.name_any();
            let mut state = node_state(gpu_node, by_name.get(&name).copied());
            if gpu_nodes.unreadable.iter().any(|object| object.name == name) {
                // What is known is that nothing is; the list of what is unreadable says why.
                (state.ready, state.reason) = ("Unknown".to_owned(), Some("StatusUnreadable".to_owned()));
                state.message = None;
            }
            state
        };
        let mut states: Vec<_> = gpu_nodes.objects.iter().map(state).collect();
        states.sort_by(|a, b| a.name.cmp(&b.name));
        let mut policies: Vec<_> = policies.objects.iter().map(policy_state).collect();
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
                ..state(gpu_node, configuration)
            };
        }
    };
    NodeState {
        ready,
        reason: reason.map(|reason| reason.as_str().to_owned()),
        message,
        ..state(gpu_node, configuration)
    }
}

fn state(gpu_node: &GpuNode, configuration: Configuration) -> NodeState {
    let status = gpu_node.status.clone().unwrap_or_default();
    NodeState {
        name: gpu_node.name_any(),
        hardware: status.hardware,
        policy: gpu_node.spec.config.as_ref().map(|config| config.policy.clone()),
        resources: status.resources,
        configuration,
        ready: String::new(),
        reason: None,
        message: None,
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

    /// Nodes `a` (as it should be), `b` (rejected its configuration), `c` (kubelet down), `d` (unreadable) and `f` (hardware
    /// only), with one policy in force and one in conflict.
    pub fn sample() -> Fleet {
        let time = "2026-01-02T03:04:05Z";
        let condition = |kind: &str, status: &str, reason: &str, message: &str| json!({"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": time});
        let gpu_node = |name: &str, hash: Option<&str>, status: serde_json::Value| {
            let config = hash.map(|hash| json!({"policy": "v100", "version": 1, "hash": hash, "document": "{}"}));
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
            gpu_node("c", Some("h2"), in_force),
            gpu_node("d", None, json!(null)),
            gpu_node("f", None, hardware),
        ];
        let node = |name: &str, ready: &str| {
            from::<Node>(json!({
                "apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
                "status": {"conditions": [{"type": "Ready", "status": ready}]},
            }))
        };
        let nodes = [node("a", "True"), node("b", "True"), node("c", "Unknown"), node("d", "True"), node("f", "True")];
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
                ("d", Configuration::None, "Unknown"),
                ("f", Configuration::None, "Unknown"),
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
}
