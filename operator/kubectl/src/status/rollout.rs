//! How far the configuration of each policy is, and what keeps one from matching any node, by the functions that the operator
//! uses. Pure.

use gpunode_crds::{GpuNode, GpuNodePolicy};
use gpunode_plan::{
    NearestNode, NodeFacts, PolicySet, RolloutPermit, RolloutStage, nearest_node, plan_node_with_permit,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Where the nodes are that a policy governs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RolloutSummary {
    /// All of them.
    pub nodes: usize,
    /// Nodes that have its configuration in force.
    pub in_force: usize,
    /// Nodes that are being changed, by name.
    pub changing: Vec<String>,
    /// Nodes that work with another configuration until it is their turn.
    pub pending: usize,
    /// Nodes for which nobody waits: down, broken before, or with their first configuration.
    pub outside: usize,
    /// Nodes that worked before and failed, by name; no other changes until the spec does.
    pub stopped: Vec<RolloutStop>,
    /// Most nodes that change at the same time.
    pub at_once: usize,
}

/// Where and why a rollout stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RolloutStop {
    pub node: String,
    pub why: String,
}

impl RolloutSummary {
    /// Whether every node has the configuration.
    pub fn is_done(&self) -> bool {
        self.in_force == self.nodes
    }

    fn add(&mut self, node: &str, stage: RolloutStage) {
        self.nodes += 1;
        match stage {
            RolloutStage::Done => self.in_force += 1,
            RolloutStage::Pending => self.pending += 1,
            RolloutStage::Outside | RolloutStage::Held => self.outside += 1,
            RolloutStage::Stepping => self.changing.push(node.to_owned()),
            RolloutStage::Stopped(why) => self.stopped.push(RolloutStop {
                node: node.to_owned(),
                why,
            }),
        }
    }
}

/// What the planner makes of the nodes now.
#[derive(Debug, Default)]
pub struct PolicyReach {
    /// Of each policy that governs nodes.
    pub rollouts: BTreeMap<String, RolloutSummary>,
    /// Of each policy that matches no node.
    pub nearest: BTreeMap<String, NearestNode>,
}

/// Plans every node.
pub fn planned(policies: &[GpuNodePolicy], nodes: &[Node], gpu_nodes: &[GpuNode], now: Timestamp) -> PolicyReach {
    let set = PolicySet::new(policies);
    let gpu_nodes: BTreeMap<String, &GpuNode> = gpu_nodes.iter().map(|it| (it.name_any(), it)).collect();
    let facts = |node: &Node| (NodeFacts::of(node), gpu_nodes.get(&node.name_any()).copied());
    let mut nodes: Vec<(NodeFacts, Option<&GpuNode>)> = nodes.iter().map(facts).collect();
    nodes.sort_by(|(a, _), (b, _)| a.name.cmp(&b.name));
    let mut rollouts = BTreeMap::<String, RolloutSummary>::new();
    let mut matched = BTreeSet::new();
    for (node, gpu_node) in &nodes {
        let plan = plan_node_with_permit(RolloutPermit::Withheld, &set, node, *gpu_node, now);
        matched.extend(plan.outcomes.into_keys());
        if let Some((policy, stage)) = plan
            .governing
            .zip(plan.stage)
            .filter(|(_, stage)| *stage != RolloutStage::Held)
        {
            rollouts.entry(policy).or_default().add(&node.name, stage);
        }
    }
    for (policy, rollout) in &mut rollouts {
        rollout.at_once = set.get(policy).map_or(0, |policy| policy.pace.budget(rollout.nodes));
    }
    let unmatched = set.iter().filter(|policy| !matched.contains(&policy.name));
    let nearest = unmatched.filter_map(|policy| {
        let nodes = nodes.iter().map(|(node, gpu_node)| (node, *gpu_node));
        Some((policy.name.clone(), nearest_node(&set, &policy.name, nodes)?))
    });
    PolicyReach {
        nearest: nearest.collect(),
        rollouts,
    }
}
