//! The summary of a cluster's GPU nodes and policies. Pure.

use super::{
    discovery::DiscoveryProgress,
    node::{ConfigurationProgress, NodeSummary, summarise_node},
    policy::{PolicySummary, summarise_policy},
    problems::problems,
    rollout::planned,
    usage::DeviceUsage,
};
use crate::cluster::{ListedObjects, UnreadableObject};
use gpunode_crds::{GpuNode, GpuNodePolicy};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Reason shown for an object whose status cannot be read; no API object has it.
const UNREADABLE: &str = "StatusUnreadable";

/// The GPU nodes and policies, sorted by name.
#[derive(Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FleetSummary {
    /// One per GpuNode.
    pub nodes: Vec<NodeSummary>,
    /// One per policy.
    pub policies: Vec<PolicySummary>,
    /// Memory, cores and shares that containers hold on these nodes.
    #[serde(rename = "inUse")]
    pub usage: DeviceUsage,
    /// Upgrade of discovery; absent where it is complete or cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub discovery: Option<DiscoveryProgress>,
    /// Unreadable objects of any kind.
    pub unreadable: Vec<UnreadableObject>,
}

impl FleetSummary {
    /// Summarises the objects of a cluster.
    pub fn new(
        gpu_nodes: &ListedObjects<GpuNode>,
        nodes: &ListedObjects<Node>,
        policies: &ListedObjects<GpuNodePolicy>,
        now: Timestamp,
    ) -> Self {
        let unreadable = [&gpu_nodes.unreadable, &nodes.unreadable, &policies.unreadable];
        let by_name: BTreeMap<String, &Node> = nodes.objects.iter().map(|node| (node.name_any(), node)).collect();
        let unreadable_policies = policies.unreadable.iter().map(|object| object.name.clone());
        let known: BTreeSet<String> = policies
            .objects
            .iter()
            .map(ResourceExt::name_any)
            .chain(unreadable_policies)
            .collect();
        let state = |gpu_node: &GpuNode| {
            let name = gpu_node.name_any();
            let node = by_name.get(&name).copied();
            let mut state = summarise_node(gpu_node, node);
            state.problems = problems(&state, node, &known);
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
        let mut planned = planned(&policies.objects, &nodes.objects, &gpu_nodes.objects, now);
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
            usage: total(&states),
            nodes: states,
            policies,
            discovery: None,
            unreadable: unreadable.into_iter().flatten().cloned().collect(),
        }
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
        self.usage = total(&self.nodes);
        self.unreadable
            .retain(|object| object.kind != "GpuNodePolicy" && names.contains(&object.name));
        self.policies.clear();
        Ok(self)
    }
}

fn total(nodes: &[NodeSummary]) -> DeviceUsage {
    let mut total = DeviceUsage::default();
    for node in nodes {
        total.add(&node.usage);
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::sample::sample;

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
