//! What the operator knows of the cluster, and what follows from it: every change that a watch tells is taken in here, the
//! nodes that it touches are planned again, and the counts of their policies are kept up to date. No IO.

use crate::controller::{
    cache::{Cache, Cached, Change, Changed},
    work::{DaemonSetWork, Effects, Key, NodeWork, Notice, StatusWork},
};
use gpunode_crds::{GpuNode, GpuNodePolicy, Mode, NodeCounts, NodePreview, Reason};
use gpunode_plan::{
    AgentPods, DISCOVERY_NAME, NodeFacts, NodePlan, Outcome, PolicySet, Tally, daemonset_drifted, desired_discovery,
    desired_for_policy, plan_node, policy_daemonset_name, policy_of_daemonset, policy_status, repaired_daemonset,
};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::DaemonSet;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

/// The caches and everything that is derived from them.
#[derive(Debug)]
pub struct Index {
    pods: AgentPods,
    policies: Cache<GpuNodePolicy>,
    nodes: Cache<NodeFacts>,
    gpu_nodes: Cache<GpuNode>,
    daemonsets: Cache<DaemonSet>,
    /// The policies, ready for planning.
    set: PolicySet,
    /// What became of each node.
    states: HashMap<String, NodeState>,
    /// The same by policy.
    tallies: HashMap<String, Tally>,
    /// Versions of DaemonSets that a repair left as they were: something in the cluster insists.
    futile: HashMap<String, (String, DaemonSet)>,
}

/// By policy.
type Outcomes = BTreeMap<String, (Outcome, Option<NodePreview>)>;

#[derive(Debug, Default)]
struct NodeState {
    outcomes: Outcomes,
    write_error: Option<String>,
}

impl Index {
    /// Nothing known yet.
    pub fn new(pods: AgentPods) -> Self {
        Self {
            pods,
            policies: Cache::default(),
            nodes: Cache::default(),
            gpu_nodes: Cache::default(),
            daemonsets: Cache::default(),
            set: PolicySet::default(),
            states: HashMap::new(),
            tallies: HashMap::new(),
            futile: HashMap::new(),
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
        let changed = self.policies.update(policy);
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
            self.set = PolicySet::new(self.policies.iter().map(Arc::as_ref));
            self.replan_all(now, effects);
            let set = &self.set;
            self.tallies.retain(|name, _| set.get(name).is_some());
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
        let changed = self.nodes.update(node);
        self.touched(changed.as_slice(), true, NodeFacts::same_but_version, now, effects);
    }

    /// Takes in `GpuNode` objects.
    pub fn take_gpu_nodes(&mut self, change: Change<GpuNode>, now: Timestamp, effects: &mut Effects) {
        let was_warm = self.is_warm();
        let changed = self.gpu_nodes.take(change);
        self.touched(&changed, was_warm, same_gpu_node, now, effects);
    }

    /// Takes in a `GpuNode` that a write returned.
    pub fn update_gpu_node(&mut self, gpu_node: GpuNode, now: Timestamp, effects: &mut Effects) {
        let changed = self.gpu_nodes.update(gpu_node);
        self.touched(changed.as_slice(), true, same_gpu_node, now, effects);
    }

    /// Takes in DaemonSets.
    pub fn take_daemonsets(&mut self, change: Change<DaemonSet>, now: Timestamp, effects: &mut Effects) {
        let was_warm = self.is_warm();
        for changed in self.daemonsets.take(change) {
            effects.wake(Key::DaemonSet(changed.name));
        }
        if !was_warm {
            self.replan_all(now, effects);
        }
    }

    /// Takes in a DaemonSet that a write returned.
    pub fn update_daemonset(&mut self, daemonset: DaemonSet) {
        let name = daemonset.name().to_owned();
        if let Some(desired) = self.desired_daemonset(&name)
            && daemonset_drifted(&daemonset, &desired)
        {
            tracing::warn!(name, "a repaired DaemonSet came back changed; something else in the cluster rewrites it");
            self.futile.insert(name, (daemonset.version().to_owned(), desired));
        }
        self.daemonsets.update(daemonset);
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
    }

    fn replan_all(&mut self, now: Timestamp, effects: &mut Effects) {
        if self.is_warm() {
            for name in self.nodes.names() {
                self.plan(&name, now, effects);
            }
        }
    }

    /// Plans one node again and counts the result.
    fn plan(&mut self, name: &str, now: Timestamp, effects: &mut Effects) -> Option<NodePlan> {
        let Some(facts) = self.nodes.get(name) else {
            let state = self.states.remove(name).unwrap_or_default();
            self.count(name, &state.outcomes, &BTreeMap::new(), effects);
            return None;
        };
        let gpu_node = self.gpu_nodes.get(name).map(Arc::as_ref);
        let mut plan = plan_node(&self.set, facts, gpu_node, now);
        let state = self.states.entry(name.to_owned()).or_default();
        if plan.is_settled() {
            state.write_error = None;
        } else {
            effects.wake(Key::Node(name.to_owned()));
        }
        if let Some(at) = plan.recheck {
            effects.wake_at(Key::Node(name.to_owned()), at);
        }
        let mut previews = std::mem::take(&mut plan.previews);
        let outcomes: Outcomes = plan
            .outcomes_after(state.write_error.as_deref())
            .into_iter()
            .map(|(policy, outcome)| {
                let preview = previews.remove(&policy);
                (policy, (outcome, preview))
            })
            .collect();
        let before = std::mem::replace(&mut state.outcomes, outcomes.clone());
        self.count(name, &before, &outcomes, effects);
        Some(plan)
    }

    fn count(&mut self, node: &str, before: &Outcomes, after: &Outcomes, effects: &mut Effects) {
        let policies: BTreeSet<_> = before.keys().chain(after.keys()).cloned().collect();
        for policy in policies {
            let (old, new) = (before.get(&policy), after.get(&policy));
            if old == new {
                continue;
            }
            let tally = self.tallies.entry(policy.clone()).or_default();
            if let Some((outcome, _)) = old {
                tally.remove(node, outcome);
            }
            if let Some((outcome, preview)) = new {
                tally.add(node, outcome, preview.as_ref());
            }
            effects.wake(Key::Status(policy.clone()));
            // A policy in mode Preview writes nothing but its status.
            if let Some(object) = self.policies.get(&policy).filter(|policy| policy.spec.mode() == Mode::Enforce) {
                effects.notices.extend(
                    transition(old.map(|it| &it.0), new.map(|it| &it.0))
                        .map(|(reason, message)| Notice::of_node(object, node, reason, &message)),
                );
            }
        }
    }

    /// What is to be written for one node.
    pub fn node_work(&mut self, name: &str, now: Timestamp, effects: &mut Effects) -> Option<NodeWork> {
        let plan = self.plan(name, now, effects)?;
        // It is being worked on; a wake for right now would only come back.
        effects.wakes.retain(|wake| wake.at.is_some() || wake.key != Key::Node(name.to_owned()));
        (!plan.is_settled()).then_some(NodeWork { patch: plan.patch, gpu_node: plan.gpu_node })
    }

    /// Remembers how writing for a node ended, so that nobody waits for a node that cannot be written.
    pub fn node_written(&mut self, name: &str, error: Option<String>, now: Timestamp, effects: &mut Effects) {
        if let Some(state) = self.states.get_mut(name)
            && state.write_error != error
        {
            state.write_error = error;
            // The queue sees to the next try.
            self.node_work(name, now, effects);
        }
    }

    /// The status of one policy, where it differs from what it is to be.
    pub fn status_work(&self, name: &str, now: Timestamp) -> Option<StatusWork> {
        let (object, policy) = (self.policies.get(name)?, self.set.get(name)?);
        let none = Tally::default();
        let status = policy_status(policy, self.tallies.get(name).unwrap_or(&none), object.status.as_ref(), now);
        (object.status.as_ref() != Some(&status)).then(|| StatusWork { policy: object.clone(), status })
    }

    /// What is to be written for the DaemonSet of a name.
    pub fn daemonset_work(&self, name: &str) -> Option<DaemonSetWork> {
        let live = self.daemonsets.get(name);
        if live.is_some_and(|live| live.metadata.deletion_timestamp.is_some()) {
            return None;
        }
        match (live, self.desired_daemonset(name)) {
            (None, desired) => desired.map(|desired| DaemonSetWork::Create(Box::new(desired))),
            (Some(live), Some(desired)) => {
                let is_futile = self
                    .futile
                    .get(name)
                    .is_some_and(|(version, tried)| version == live.version() && *tried == desired);
                (!is_futile && daemonset_drifted(live, &desired))
                    .then(|| DaemonSetWork::Replace(Box::new(repaired_daemonset(live, &desired))))
            }
            (Some(live), None) => policy_of_daemonset(live).map(|_| DaemonSetWork::Delete {
                uid: live.metadata.uid.clone().unwrap_or_default(),
                version: live.version().to_owned(),
            }),
        }
    }

    fn desired_daemonset(&self, name: &str) -> Option<DaemonSet> {
        if name == DISCOVERY_NAME {
            return Some(desired_discovery(&self.pods));
        }
        let mut enforced = self.set.iter().filter(|policy| policy.mode == Mode::Enforce);
        let policy = enforced.find(|policy| policy_daemonset_name(&policy.name) == name)?;
        desired_for_policy(&self.pods, policy, self.policies.get(&policy.name)?)
    }

    /// Everything that could need a write, for one who begins to lead.
    pub fn wake_everything(&mut self, now: Timestamp, effects: &mut Effects) {
        self.replan_all(now, effects);
        effects.wake(Key::DaemonSet(DISCOVERY_NAME.to_owned()));
        for name in self.daemonsets.names() {
            effects.wake(Key::DaemonSet(name));
        }
        for name in self.policies.names() {
            effects.wake(Key::DaemonSet(policy_daemonset_name(&name)));
            effects.wake(Key::Status(name));
        }
        effects.notices.clear();
    }

    /// The numbers of nodes of each policy, by name.
    pub fn counts(&self) -> Vec<(String, NodeCounts)> {
        self.set
            .iter()
            .map(|policy| (policy.name.clone(), self.tallies.get(&policy.name).map(Tally::counts).unwrap_or_default()))
            .collect()
    }
}

/// A change of the outcome that people want to hear of.
fn transition(old: Option<&Outcome>, new: Option<&Outcome>) -> Option<(Reason, String)> {
    let rejected = |outcome: &Outcome| matches!(outcome, Outcome::Failed { reason: Reason::ConfigurationRejected, .. });
    let conflicted = |outcome: &Outcome| matches!(outcome, Outcome::Conflicted { .. });
    match new {
        Some(Outcome::Conflicted { reason, message }) if !old.is_some_and(conflicted) => {
            Some((*reason, message.clone()))
        }
        Some(Outcome::Failed { reason, message }) if new.is_some_and(rejected) && !old.is_some_and(rejected) => {
            Some((*reason, message.clone()))
        }
        _ if old.is_some_and(conflicted) && !new.is_some_and(conflicted) => {
            Some((Reason::NoConflict, "no other owner is in the way any more".to_owned()))
        }
        _ => None,
    }
}

/// Whether nothing but the status of a policy changed.
fn same_policy(changed: &Changed<GpuNodePolicy>) -> bool {
    let (Some(before), Some(after)) = (&changed.before, &changed.after) else { return false };
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

impl Cached for NodeFacts {
    fn name(&self) -> &str {
        &self.name
    }
    fn version(&self) -> &str {
        &self.resource_version
    }
}

macro_rules! cached_by_metadata {
    ($($kind:ty),*) => {$(
        impl Cached for $kind {
            fn name(&self) -> &str {
                self.metadata.name.as_deref().unwrap_or_default()
            }
            fn version(&self) -> &str {
                self.metadata.resource_version.as_deref().unwrap_or_default()
            }
        }
    )*};
}
cached_by_metadata!(GpuNode, GpuNodePolicy, DaemonSet);
