//! What the operator knows of the cluster, and what follows from it: every change that a watch tells is taken in here, the
//! nodes that it touches are planned again, and the counts of their policies are kept up to date. No IO.

pub mod cache;
pub mod daemonsets;
pub mod evictions;
pub mod outcomes;
mod pods;
pub mod work;
mod writes;

use crate::events::Notice;
use crate::index::{
    cache::{Cache, Change, Changed, Write},
    daemonsets::DaemonSets,
    evictions::Wanted,
    outcomes::{ByPolicy, Outcomes, Transition},
    work::{Effects, Key},
};
use gpunode_crds::{ConditionType, GpuNode, GpuNodePolicy, GpuNodePolicyStatus, Mode, NodeCounts, Reason};
use gpunode_plan::{
    AgentPodSettings, NodeFacts, NodePlan, PolicySet, PolicyTally, RolloutPermit, evictions, gpu_mismatch,
    plan_node_with_permit, policy_daemonset_name,
};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::ResourceExt;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

/// The caches and everything that is derived from them.
#[derive(Debug)]
pub struct Index {
    policies: Cache<GpuNodePolicy>,
    nodes: Cache<NodeFacts>,
    gpu_nodes: Cache<GpuNode>,
    daemonsets: DaemonSets,
    /// The policies, ready for planning.
    set: PolicySet,
    outcomes: Outcomes,
    /// Why the API server did not take the last write for a node.
    refusals: HashMap<String, String>,
    /// Policies whose rollouts may go on.
    moved: BTreeSet<String>,
    /// Pods that are to be evicted.
    evictions: Wanted,
}

impl Index {
    /// Nothing known yet. Nodes get labels with facts about their GPUs if `gpu_labels` says so.
    pub fn new(pods: AgentPodSettings, gpu_labels: bool) -> Self {
        Self {
            policies: Cache::default(),
            nodes: Cache::default(),
            gpu_nodes: Cache::default(),
            daemonsets: DaemonSets::new(pods),
            set: PolicySet::default().with_gpu_labels(gpu_labels),
            outcomes: Outcomes::default(),
            refusals: HashMap::new(),
            moved: BTreeSet::new(),
            evictions: Wanted::default(),
        }
    }

    /// Whether every cache has its first list. Before, nothing is planned: with the policies still missing, every node
    /// would seem to be in need of cleaning.
    pub fn is_warm(&self) -> bool {
        self.policies.is_warm() && self.nodes.is_warm() && self.gpu_nodes.is_warm() && self.daemonsets.is_warm()
    }

    /// Takes in policies.
    pub fn take_policies(&mut self, change: Change<GpuNodePolicy>, now: Timestamp, effects: &mut Effects) {
        let was_warm = self.is_warm();
        let changed = self.policies.take(change);
        self.policies_changed(&changed, was_warm, now, effects);
    }

    /// Takes in a policy that a write returned.
    pub fn update_policy(&mut self, policy: GpuNodePolicy, now: Timestamp, effects: &mut Effects) {
        let changed = self.policies.update(policy, Write::Change);
        self.policies_changed(changed.as_slice(), true, now, effects);
    }

    fn policies_changed(
        &mut self,
        changed: &[Changed<GpuNodePolicy>],
        was_warm: bool,
        now: Timestamp,
        effects: &mut Effects,
    ) {
        for policy in changed {
            effects.wake(Key::Status(policy.name.clone()));
            effects.wake(Key::DaemonSet(policy_daemonset_name(&policy.name)));
        }
        if changed.iter().any(|policy| !same_policy(policy)) || !was_warm {
            self.set = PolicySet::new(self.policies.iter().map(Arc::as_ref)).with_gpu_labels(self.set.gpu_labels());
            self.replan_all(now, effects);
            let set = &self.set;
            self.outcomes.retain(|name| set.get(name).is_some());
        }
    }

    /// Takes in nodes.
    pub fn take_nodes(&mut self, change: Change<NodeFacts>, now: Timestamp, effects: &mut Effects) {
        let was_warm = self.is_warm();
        let changed = self.nodes.take(change);
        self.touched(&changed, was_warm, NodeFacts::same_but_version, now, effects);
    }

    /// Takes in a node that a write returned.
    pub fn update_node(&mut self, node: NodeFacts, now: Timestamp, effects: &mut Effects) {
        let changed = self.nodes.update(node, Write::Change);
        self.touched(changed.as_slice(), true, NodeFacts::same_but_version, now, effects);
    }

    /// Takes in `GpuNode` objects.
    pub fn take_gpu_nodes(&mut self, change: Change<GpuNode>, now: Timestamp, effects: &mut Effects) {
        let was_warm = self.is_warm();
        let changed = self.gpu_nodes.take(change);
        self.touched(&changed, was_warm, same_gpu_node, now, effects);
    }

    /// Takes in a `GpuNode` that a write returned.
    pub fn update_gpu_node(&mut self, gpu_node: GpuNode, write: Write, now: Timestamp, effects: &mut Effects) {
        let changed = self.gpu_nodes.update(gpu_node, write);
        self.touched(changed.as_slice(), true, same_gpu_node, now, effects);
    }

    /// Takes in that a write removed a `GpuNode` of this version.
    pub fn forget_gpu_node(&mut self, name: &str, version: &str, now: Timestamp, effects: &mut Effects) {
        let changed = self.gpu_nodes.forget(name, version);
        self.touched(changed.as_slice(), true, same_gpu_node, now, effects);
    }

    /// Takes in DaemonSets.
    pub fn take_daemonsets(&mut self, change: Change<DaemonSet>, now: Timestamp, effects: &mut Effects) {
        let was_warm = self.is_warm();
        for name in self.daemonsets.take(change) {
            self.look_at_agents(&name, now, effects);
            effects.wake(Key::DaemonSet(name));
        }
        if !was_warm {
            self.replan_all(now, effects);
        }
    }

    /// The status of a policy tells how far its agents are replaced.
    fn look_at_agents(&mut self, name: &str, now: Timestamp, effects: &mut Effects) {
        let policy = self.set.of_daemonset(name);
        let outside = policy.map_or(0, |policy| self.outcomes.outside(&policy.name));
        self.daemonsets.look_at_progress(name, outside, now);
        if let Some(policy) = policy {
            effects.wake(Key::Status(policy.name.clone()));
        }
    }

    /// Once its deadline is over it tells that they come no further. Asked for whenever the status was looked at: of two times
    /// the earlier holds.
    pub fn wake_when_late(&self, name: &str, now: Timestamp, effects: &mut Effects) {
        let late = self.set.get(name).and_then(|policy| self.daemonsets.late_at(policy));
        if let Some(at) = late.filter(|at| *at > now) {
            effects.wake_at(Key::Status(name.to_owned()), at);
        }
    }

    fn touched<T>(
        &mut self,
        changed: &[Changed<T>],
        was_warm: bool,
        same: impl Fn(&T, &T) -> bool,
        now: Timestamp,
        effects: &mut Effects,
    ) {
        if !was_warm {
            return self.replan_all(now, effects);
        }
        for changed in changed {
            let is_same =
                matches!((&changed.before, &changed.after), (Some(before), Some(after)) if same(before, after));
            if !is_same {
                self.plan(&changed.name, now, effects);
            }
        }
        self.advance(effects);
    }

    fn replan_all(&mut self, now: Timestamp, effects: &mut Effects) {
        if self.is_warm() {
            for name in self.nodes.names() {
                self.plan(&name, now, effects);
            }
            self.moved.extend(self.set.iter().map(|policy| policy.name.clone()));
            self.advance(effects);
        }
    }

    /// Grants turns in the rollouts that may go on. Everything that followed from a change is counted by then, so that the
    /// order in which nodes were looked at does not matter.
    fn advance(&mut self, effects: &mut Effects) {
        for name in std::mem::take(&mut self.moved) {
            let (Some(policy), Some(rollout)) = (self.set.get(&name), self.outcomes.rollout(&name)) else {
                continue;
            };
            for node in rollout.advance(&policy.pace) {
                effects.wake(Key::Node(node));
            }
        }
    }

    /// Plans one node again, before its turn in a rollout, and counts the result.
    fn plan(&mut self, name: &str, now: Timestamp, effects: &mut Effects) -> Option<NodePlan> {
        let Some(facts) = self.nodes.get(name) else {
            self.refusals.remove(name);
            self.evictions.put(name, BTreeMap::new());
            self.count(name, ByPolicy::new(), now, effects);
            return None;
        };
        let gpu_node = self.gpu_nodes.get(name).map(Arc::as_ref);
        let plan = plan_node_with_permit(RolloutPermit::Withheld, &self.set, facts, gpu_node, now);
        effects
            .evictions
            .extend(self.evictions.put(name, evictions(&self.set, &plan, facts, gpu_node)));
        if plan.is_settled() {
            self.refusals.remove(name);
        }
        self.count(
            name,
            plan.policy_statuses_after(self.refusals.get(name).map(String::as_str)),
            now,
            effects,
        );
        let is_its_turn = self
            .outcomes
            .rollout_of(name)
            .is_some_and(|(_, rollout)| rollout.is_granted(name));
        if plan.has_work() || is_its_turn {
            effects.wake(Key::Node(name.to_owned()));
        }
        if let Some(at) = plan.recheck {
            effects.wake_at(Key::Node(name.to_owned()), at);
        }
        Some(plan)
    }

    fn count(&mut self, node: &str, standings: ByPolicy, now: Timestamp, effects: &mut Effects) {
        for Transition { policy, news, left } in self.outcomes.put(node, standings) {
            // A policy in mode Preview writes nothing but its status.
            if let Some(object) = self
                .policies
                .get(&policy)
                .filter(|policy| policy.spec.mode() != Mode::Preview)
            {
                let missing = self.nodes.get(node).filter(|_| left).and_then(|facts| {
                    gpu_mismatch(&self.set, &policy, facts, self.gpu_nodes.get(node).map(Arc::as_ref))
                });
                let news = news
                    .into_iter()
                    .chain(missing.map(|message| (Reason::GpusMissing, message)));
                effects
                    .notices
                    .extend(news.map(|(reason, message)| Notice::of_node(object, node, reason, &message)));
            }
            self.moved.insert(policy.clone());
            let daemonset = policy_daemonset_name(&policy);
            self.daemonsets
                .look_at_progress(&daemonset, self.outcomes.outside(&policy), now);
            // How many agents may stand by depends on the nodes that are down.
            if self.daemonsets.is_behind(&daemonset) {
                effects.wake(Key::DaemonSet(daemonset));
            }
            effects.wake(Key::Status(policy));
        }
    }

    /// The numbers of nodes of each policy, by name.
    pub fn counts(&self) -> Vec<(String, NodeCounts)> {
        let counts = |policy: &str| self.outcomes.tally(policy).map(PolicyTally::counts).unwrap_or_default();
        self.set
            .iter()
            .map(|policy| (policy.name.clone(), counts(&policy.name)))
            .collect()
    }

    /// The conditions of the first policies, as they are written, and whether they are True.
    pub fn conditions(&self, policies: usize) -> Vec<(String, ConditionType, bool)> {
        let objects = self
            .set
            .iter()
            .take(policies)
            .filter_map(|policy| self.policies.get(&policy.name));
        let statuses = objects.filter_map(|policy| Some((policy.name_any(), policy.status.as_ref()?)));
        let of_policy = |(name, status): (String, &GpuNodePolicyStatus)| {
            let found = |type_: ConditionType| Some((type_, type_.find(&status.conditions)?.status == "True"));
            let conditions = ConditionType::OF_POLICY.into_iter().filter_map(found);
            conditions
                .map(|(type_, holds)| (name.clone(), type_, holds))
                .collect::<Vec<_>>()
        };
        statuses.flat_map(of_policy).collect()
    }
}

/// Whether nothing but the status of a policy changed.
fn same_policy(changed: &Changed<GpuNodePolicy>) -> bool {
    let (Some(before), Some(after)) = (&changed.before, &changed.after) else {
        return false;
    };
    let (old, new) = (&before.metadata, &after.metadata);
    before.spec == after.spec
        && old.uid == new.uid
        && old.generation == new.generation
        && old.deletion_timestamp.is_some() == new.deletion_timestamp.is_some()
}

/// Whether nothing that matters to the planner changed.
fn same_gpu_node(before: &GpuNode, after: &GpuNode) -> bool {
    before.spec == after.spec && before.status == after.status && before.metadata.uid == after.metadata.uid
}

#[cfg(test)]
mod tests;
