//! The progress of each policy's configuration, and the nearest node of a policy that matches none, computed with the
//! operator's own functions. Pure.

use gpunode_crds::GpuNode;
use gpunode_plan::{
    GpuNodeFacts, NearestNode, NodeContext, NodeFacts, PolicySet, RolloutPermit, RolloutStage, nearest_node,
    plan_node_with_permit,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// The nodes that a policy governs, by the progress of its configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RolloutSummary {
    /// All nodes.
    pub nodes: usize,
    /// Nodes where the newest configuration is in force.
    pub in_force: usize,
    /// Names of the nodes that are changing.
    pub changing: Vec<String>,
    /// Nodes that work with an older configuration until their turn.
    pub pending: usize,
    /// Nodes that the rollout does not wait for: down, failed before, or with their first configuration.
    pub outside: usize,
    /// Names of the nodes that worked before and failed; no other node changes until the spec does.
    pub stopped: Vec<RolloutStop>,
    /// Most nodes that change at the same time.
    pub at_once: usize,
}

/// The node at which a rollout stopped, and the reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RolloutStop {
    pub node: String,
    pub why: String,
}

impl RolloutSummary {
    /// Returns true where every node has the configuration.
    pub fn is_done(&self) -> bool {
        self.in_force == self.nodes
    }

    fn add(&mut self, node: &str, stage: RolloutStage) {
        self.nodes += 1;
        match stage {
            RolloutStage::Done => self.in_force += 1,
            RolloutStage::AwaitsAgent | RolloutStage::Pending => self.pending += 1,
            RolloutStage::Outside | RolloutStage::Held => self.outside += 1,
            RolloutStage::Stepping => self.changing.push(node.to_owned()),
            RolloutStage::Stopped(why) => self.stopped.push(RolloutStop {
                node: node.to_owned(),
                why,
            }),
        }
    }
}

/// The progress and reach of every policy.
#[derive(Debug, Default)]
pub struct PolicyReach {
    /// Progress of each policy that governs nodes.
    pub rollouts: BTreeMap<String, RolloutSummary>,
    /// Nearest node of each policy that matches none.
    pub nearest: BTreeMap<String, NearestNode>,
}

/// Plans every node and collects the progress of each policy.
pub fn planned(set: &PolicySet, nodes: &[Node], gpu_nodes: &[GpuNode], now: Timestamp) -> PolicyReach {
    let gpu_nodes: BTreeMap<String, &GpuNode> = gpu_nodes.iter().map(|it| (it.name_any(), it)).collect();
    let facts = |node: &Node| {
        let facts = NodeFacts::of(node);
        let gpu_node = gpu_nodes.get(&facts.name).copied().cloned();
        (facts, gpu_node.map(GpuNodeFacts::of))
    };
    let mut nodes: Vec<(NodeFacts, Option<GpuNodeFacts>)> = nodes.iter().map(facts).collect();
    nodes.sort_by(|(a, _), (b, _)| a.name.cmp(&b.name));
    let mut rollouts = BTreeMap::<String, RolloutSummary>::new();
    let mut matched = BTreeSet::new();
    for (node, gpu_node) in &nodes {
        let plan = plan_node_with_permit(
            RolloutPermit::Withheld,
            set,
            NodeContext::new(node, gpu_node.as_ref(), now),
        );
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
        let nodes = nodes.iter().map(|(node, gpu_node)| (node, gpu_node.as_ref()));
        Some((policy.name.clone(), nearest_node(set, &policy.name, nodes)?))
    });
    PolicyReach {
        nearest: nearest.collect(),
        rollouts,
    }
}
