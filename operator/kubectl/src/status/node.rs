//! The summary of one node. Pure.

use super::{
    devices::DeviceSummary, in_use::AmountsInUse, mig::LayoutStatus, node_usage::NodeUsage, resources::ResourceSummary,
};
use gpunode_crds::{ConditionType, GpuNode, Reason};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use serde::Serialize;

/// One GPU node.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeSummary {
    pub name: String,
    pub hardware: Option<String>,
    pub policy: Option<String>,
    pub resources: Vec<ResourceSummary>,
    /// Its GPUs and MIG devices, with their holders.
    pub devices: Vec<DeviceSummary>,
    /// Its GPUs for which the configuration has a MIG layout.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mig: Vec<LayoutStatus>,
    /// True where the agent lists only some of the holders.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub holders_truncated: bool,
    /// Memory, cores and shares that containers hold.
    pub in_use: AmountsInUse,
    /// Use of devices by the containers that hold them; only where it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<NodeUsage>,
    pub configuration: ConfigurationProgress,
    /// `True`, `False` or `Unknown`.
    pub ready: String,
    pub reason: Option<String>,
    /// Message of the reason; only where the node is not ready.
    pub message: Option<String>,
    /// True where its agents are asked to release the GPUs.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub released: bool,
    /// Reason why gpunode cannot read the annotation with which a person confirms a repair.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unreadable_annotation: Option<String>,
    /// Files of companions that are missing or refused, where the node is ready all the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub companion_files: Option<String>,
    /// Problems, each with the next step.
    pub problems: Vec<String>,
}

/// Progress of the configuration that the operator wrote for a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ConfigurationProgress {
    /// No policy with a `devicePlugin` governs the node.
    None,
    InForce,
    Pending,
    Rejected,
    /// The agent's status cannot be read.
    Unknown,
}

/// Summarises a node, without its problems.
pub fn summarise_node(gpu_node: &GpuNode, node: Option<&Node>) -> NodeSummary {
    let status = gpu_node.status.as_ref();
    let config = gpu_node.spec.config.as_ref();
    let rejected = status.and_then(|status| status.rejected_config.as_ref());
    let configuration = match config {
        None => ConfigurationProgress::None,
        Some(config) if rejected.is_some_and(|rejected| rejected.hash == config.hash) => {
            ConfigurationProgress::Rejected
        }
        Some(config) if status.and_then(|status| status.config_hash.as_ref()) == Some(&config.hash) => {
            ConfigurationProgress::InForce
        }
        Some(_) => ConfigurationProgress::Pending,
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
        // The agent's last status means nothing when the node is gone or unreachable.
        (None, _) => unreachable("the Node object does not exist"),
        (Some(false), _) => unreachable("the node's kubelet is not ready"),
        (Some(true), None) => ("Unknown".to_owned(), Some(Reason::AgentNotReporting), None),
        (Some(true), Some(own)) => {
            let message = Some(own.message.clone()).filter(|_| own.status != "True");
            return NodeSummary {
                reason: Some(own.reason.clone()),
                ready: own.status.clone(),
                message,
                ..state(gpu_node, node, configuration)
            };
        }
    };
    NodeSummary {
        ready,
        reason: reason.map(|reason| reason.as_str().to_owned()),
        message,
        ..state(gpu_node, node, configuration)
    }
}

fn state(gpu_node: &GpuNode, node: Option<&Node>, configuration: ConfigurationProgress) -> NodeSummary {
    let devices = DeviceSummary::all(gpu_node);
    let holders_truncated = gpu_node.status.as_ref().is_some_and(|status| status.holders_truncated);
    let conditions = gpu_node.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let annotation = ConditionType::RecoveredAnnotation.find(conditions);
    let offered = ConditionType::DevicesOffered.find(conditions);
    let remark =
        offered.filter(|offered| offered.status == "True" && offered.reason != Reason::DevicesOffered.as_str());
    NodeSummary {
        name: gpu_node.name_any(),
        hardware: gpu_node.status.as_ref().and_then(|status| status.hardware.clone()),
        policy: gpu_node.spec.config.as_ref().map(|config| config.policy.clone()),
        resources: ResourceSummary::all(gpu_node, node),
        in_use: AmountsInUse::of(&devices, holders_truncated),
        devices,
        usage: None,
        mig: gpu_node.status.as_ref().map(LayoutStatus::all).unwrap_or_default(),
        holders_truncated,
        configuration,
        released: gpu_node.spec.release,
        unreadable_annotation: annotation.map(|condition| condition.message.clone()),
        companion_files: remark.map(|condition| condition.message.clone()),
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
