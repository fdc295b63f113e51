//! What the objects of one node say about it. Pure.

use super::{devices::DeviceState, resources::Offer, usage::Usage};
use gpunode_crds::{ConditionType, GpuNode, Reason};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use serde::Serialize;

/// The state of one GPU node.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeState {
    pub name: String,
    pub hardware: Option<String>,
    pub policy: Option<String>,
    pub resources: Vec<Offer>,
    /// Its GPUs and MIG devices, with who holds them.
    pub devices: Vec<DeviceState>,
    /// There are more holders than the agent lists.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub holders_truncated: bool,
    /// What containers hold of these devices.
    #[serde(rename = "inUse")]
    pub usage: Usage,
    pub configuration: Configuration,
    /// `True`, `False` or `Unknown`.
    pub ready: String,
    pub reason: Option<String>,
    /// What the reason means here; only where the node is not ready.
    pub message: Option<String>,
    /// Its agents were asked to let go of the GPUs.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub released: bool,
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

/// The state of a node, but for what does not fit together there.
pub fn node_state(gpu_node: &GpuNode, node: Option<&Node>) -> NodeState {
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
    let unreachable = |message: &str| {
        (
            "Unknown".to_owned(),
            Some(Reason::NodeNotReady),
            Some(message.to_owned()),
        )
    };
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

fn state(gpu_node: &GpuNode, node: Option<&Node>, configuration: Configuration) -> NodeState {
    let devices = DeviceState::all(gpu_node);
    let holders_truncated = gpu_node.status.as_ref().is_some_and(|status| status.holders_truncated);
    NodeState {
        name: gpu_node.name_any(),
        hardware: gpu_node.status.as_ref().and_then(|status| status.hardware.clone()),
        policy: gpu_node.spec.config.as_ref().map(|config| config.policy.clone()),
        resources: Offer::all(gpu_node, node),
        usage: Usage::of(&devices, holders_truncated),
        devices,
        holders_truncated,
        configuration,
        released: gpu_node.spec.release,
        ready: String::new(),
        reason: None,
        message: None,
        problems: Vec::new(),
    }
}

fn is_node_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
