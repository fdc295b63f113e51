//! The difference that policies make: each node with the cluster's policies, and with others. Pure.

use super::{
    change::{ChangeAction, ChangeSubject, PlannedChange},
    disruption::disruptions,
    drain_forecast::{DrainChange, drain_forecast},
    eviction::{EvictedPod, evicted, may_evict},
    forecast::{self, DeviceForecast},
    layout_forecast::LayoutForecast,
    resource_forecast::ResourceForecast,
    simulation::SimulatedNode,
};
use crate::{
    cluster::UnreadableObject,
    snapshot::{ClusterSnapshot, KnownPods},
};
use gpunode_crds::{GpuNode, GpuNodePolicy, PolicyMode};
use gpunode_plan::{GpuNodeFacts, NearestNode, NodeFacts, nearest_node};
use jiff::Timestamp;
use kube::ResourceExt;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// The changes of applying or deleting policies.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterPlan {
    /// The policies of the files, by name, then the deleted ones.
    pub policies: Vec<PlannedPolicy>,
    /// Every node that would change, has an obstacle or whose pods are evicted, by name.
    pub nodes: Vec<PlannedNode>,
    /// Nodes that would stay as they are.
    pub unchanged: usize,
    /// Unreadable objects, which could change the plan.
    pub unreadable: Vec<UnreadableObject>,
}

/// One policy of a plan.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PlannedPolicy {
    pub name: String,
    pub action: ChangeAction,
    /// Nodes that it matches, or matched.
    pub matched: usize,
    /// The node that it comes nearest to matching, where it matches none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nearest: Option<NearestNode>,
    /// True in mode Preview, where the policy is planned as if it were enforced.
    pub preview: bool,
    /// Reason why the operator refuses its device plugin, in the words of the condition `Stalled`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
}

/// One node of a plan.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PlannedNode {
    pub name: String,
    pub changes: Vec<PlannedChange>,
    /// New obstacles.
    pub obstacles: Vec<String>,
    /// Count of each resource, in the order of the policy; only where the configuration changes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub offers: Vec<ResourceForecast>,
    /// Changes of MIG by group of equal GPUs; only where the configuration changes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mig: Vec<LayoutForecast>,
    /// Limits of the plan, and temporary states.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Changes that disrupt running pods.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub disruptions: Vec<String>,
    /// Pods that new taints evict, where the pods of the node are known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub evicted: Vec<EvictedPod>,
    /// Pods that the policy's drain evicts, as `NAMESPACE/NAME`.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub drained: BTreeSet<String>,
}

impl ClusterPlan {
    /// Plans the policies `applied`, which replace those of the same name, and the deletion of `deleted`. Applied policies in
    /// mode Preview are planned as if they were enforced.
    ///
    /// # Errors
    /// When the planner's own patch does not fit its node, which is a fault of this program.
    pub fn of(
        cluster: &ClusterSnapshot,
        applied: &BTreeMap<String, GpuNodePolicy>,
        deleted: &BTreeSet<String>,
        now: Timestamp,
    ) -> anyhow::Result<Self> {
        let current = cluster.policy_set(&cluster.policies);
        let enforced: Vec<GpuNodePolicy> = applied.values().cloned().map(enforce).collect();
        let is_kept = |name: &String| !applied.contains_key(name) && !deleted.contains(name);
        let kept = cluster.policies.iter().filter(|policy| is_kept(&policy.name_any()));
        let next = cluster.policy_set(kept.chain(&enforced));
        let gpu_nodes: BTreeMap<String, &GpuNode> = cluster
            .gpu_nodes
            .iter()
            .map(|gpu_node| (gpu_node.name_any(), gpu_node))
            .collect();
        let mut nodes = Vec::new();
        let mut matched = BTreeMap::<String, usize>::new();
        for node in &cluster.nodes {
            let gpu_node = gpu_nodes.get(&node.name_any()).copied().cloned();
            let live = SimulatedNode::of(node.clone(), gpu_node, &current);
            let before = live.carried_out(&current, now)?;
            let after = before.carried_out(&next, now)?;
            for name in after
                .matched
                .iter()
                .chain(before.matched.iter().filter(|name| deleted.contains(*name)))
            {
                *matched.entry(name.clone()).or_default() += 1;
            }
            nodes.push(change(&live, &before, &after, &cluster.pods));
        }
        let all = nodes.len();
        // Without a change, pods are evicted for one that waits for them already.
        nodes.retain(|node| !node.changes.is_empty() || !node.obstacles.is_empty() || !node.disruptions.is_empty());
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        let facts: Vec<(NodeFacts, Option<GpuNodeFacts>)> = if applied.keys().all(|name| matched.contains_key(name)) {
            Vec::new()
        } else {
            let of = |node| {
                let facts = NodeFacts::of(node);
                let gpu_node = gpu_nodes.get(&facts.name).copied().cloned();
                (facts, gpu_node.map(GpuNodeFacts::of))
            };
            let mut facts: Vec<_> = cluster.nodes.iter().map(of).collect();
            facts.sort_by(|(a, _), (b, _)| a.name.cmp(&b.name));
            facts
        };
        let policies = applied.values().map(|policy| PlannedPolicy {
            name: policy.name_any(),
            action: match cluster.policies.iter().find(|old| old.name_any() == policy.name_any()) {
                None => ChangeAction::Add,
                Some(old) if old.spec == policy.spec => ChangeAction::None,
                Some(_) => ChangeAction::Change,
            },
            matched: matched.get(&policy.name_any()).copied().unwrap_or_default(),
            nearest: nearest_node(
                &next,
                &policy.name_any(),
                facts.iter().map(|(node, gpu_node)| (node, gpu_node.as_ref())),
            ),
            preview: policy.spec.mode() == PolicyMode::Preview,
            refusal: next.get(&policy.name_any()).and_then(|policy| policy.refusal.clone()),
        });
        let gone = deleted.iter().map(|name| PlannedPolicy {
            name: name.clone(),
            action: ChangeAction::Remove,
            matched: matched.get(name).copied().unwrap_or_default(),
            nearest: None,
            preview: false,
            refusal: None,
        });
        Ok(Self {
            policies: policies.chain(gone).collect(),
            unchanged: all - nodes.len(),
            nodes,
            unreadable: cluster.unreadable.clone(),
        })
    }

    /// Returns the nodes that get a taint with the effect NoExecute.
    pub fn nodes_with_evictions(&self) -> Vec<String> {
        let tainted = self.nodes.iter().filter(|node| node.changes.iter().any(may_evict));
        tainted.map(|node| node.name.clone()).collect()
    }

    /// Returns true where running pods would be disrupted, a node has a new obstacle, or the operator refuses a policy.
    pub fn is_disruptive(&self) -> bool {
        let is_refused = self.policies.iter().any(|policy| policy.refusal.is_some());
        is_refused
            || self
                .nodes
                .iter()
                .any(|node| !node.disruptions.is_empty() || !node.obstacles.is_empty())
    }
}

fn enforce(mut policy: GpuNodePolicy) -> GpuNodePolicy {
    if policy.spec.mode() == PolicyMode::Preview {
        policy.spec.mode = Some(PolicyMode::Enforce);
    }
    policy
}

fn change(live: &SimulatedNode, before: &SimulatedNode, after: &SimulatedNode, pods: &KnownPods) -> PlannedNode {
    let changes = if after.held {
        Vec::new()
    } else {
        changes(live, before, after)
    };
    let anew = changes.iter().any(|change| change.what == ChangeSubject::Configuration);
    let effect = if anew {
        forecast::forecast(live.gpu_node(), after.gpu_node())
    } else {
        DeviceForecast::default()
    };
    // One obstacle may keep several configurations from a node in turn.
    let blocked = after
        .blocked
        .as_ref()
        .filter(|blocked| before.blocked.as_ref() != Some(*blocked));
    let name = after.name();
    let rules = DrainChange {
        before: before.drain.as_ref(),
        after: after.drain.as_ref(),
    };
    let status = live.gpu_node().and_then(|gpu_node| gpu_node.status.as_ref());
    let drain = drain_forecast(rules, status, effect.held_by, !effect.layouts.is_empty());
    let evicted = pods.of(&name).map(|pods| evicted(&changes, pods));
    let mut disruptions = disruptions(&changes, effect.waiting, live.gpu_node(), evicted.as_deref());
    disruptions.extend(drain.disruptions);
    PlannedNode {
        name,
        disruptions,
        evicted: evicted.unwrap_or_default(),
        drained: drain.pods,
        changes,
        obstacles: after
            .obstacles
            .difference(&before.obstacles)
            .cloned()
            .chain(blocked.map(|blocked| blocked.obstacle.clone()))
            .chain(effect.obstacles)
            .collect(),
        offers: effect.offers,
        mig: effect.layouts,
        notes: after
            .meanwhile
            .difference(&before.meanwhile)
            .cloned()
            .chain(effect.notes)
            .chain(drain.notes)
            .collect(),
    }
}

/// Returns the changes by subject, resources in the order of the policy and removed ones last. A change that the cluster's
/// own policies are about to make is left out. A configuration that never came into force, such as behind a stopped rollout,
/// does not count as the node's state.
fn changes(live: &SimulatedNode, before: &SimulatedNode, after: &SimulatedNode) -> Vec<PlannedChange> {
    let keys: BTreeSet<_> = [live, before, after]
        .into_iter()
        .flat_map(|node| node.entries.keys())
        .collect();
    let mut keys: Vec<&(ChangeSubject, String)> = keys
        .into_iter()
        .filter(|key| before.entries.get(*key) != after.entries.get(*key))
        .collect();
    let place = |name: &str| {
        let of = |node: &SimulatedNode| node.resources.iter().position(|resource| resource == name);
        of(after).or_else(|| of(live).map(|place| after.resources.len() + place))
    };
    keys.sort_by_key(|(what, name)| (*what, place(name).filter(|_| *what == ChangeSubject::Resource)));
    let change = |entry: &(ChangeSubject, String)| {
        let (from, to) = (live.entries.get(entry), after.entries.get(entry));
        let action = match (from, to) {
            (from, to) if from == to => ChangeAction::None,
            (None, _) => ChangeAction::Add,
            (_, None) => ChangeAction::Remove,
            _ => ChangeAction::Change,
        };
        let key = Some(entry.1.clone()).filter(|key| !key.is_empty());
        PlannedChange {
            action,
            what: entry.0,
            key,
            from: from.cloned(),
            to: to.cloned(),
        }
    };
    keys.into_iter()
        .map(change)
        .filter(|change| change.action != ChangeAction::None)
        .collect()
}

#[cfg(test)]
pub mod tests;
