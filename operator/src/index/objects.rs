//! The objects of the cluster, as the watches and the operator's own writes last told, and plans made from them.

use crate::index::{
    cache::{ObjectCache, ObjectDelta, Versioned, WatchUpdate},
    dra_nodes::DraNodes,
    watched_policy::{UnreadablePolicy, WatchedPolicy},
};
use gpunode_config::CompanionRootList;
use gpunode_crds::{ConditionType, GpuNodePolicy, GpuNodePolicyStatus, PolicyMode};
use gpunode_plan::{
    AgentImages, Deselections, GpuNodeChange, GpuNodeFacts, NodeContext, NodeDrain, NodeFacts, NodeHold, NodePlan,
    PodEviction, PodName, Policy, PolicyNodeStatus, PolicyRemovals, PolicySet, RejectedPod, ReviewedPods,
    RolloutPermit, evictions, find_deselections, gpu_mismatch, may_match, missing_owner, plan_writes, preview_node,
};
use jiff::Timestamp;
use kube::ResourceExt;
#[cfg(test)]
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

/// Changes that an update of policies makes.
pub struct PolicyChanges {
    /// Policies that can be read.
    pub deltas: Vec<ObjectDelta<GpuNodePolicy>>,
    /// Names of policies of which it changed whether, or why, they cannot be read.
    pub unreadable: Vec<String>,
    /// Policies that cannot be read any more, or for another reason.
    pub newly_unreadable: Vec<UnreadablePolicy>,
    /// True if other policies than before cannot be read.
    pub changes_set: bool,
}

/// Policies, nodes and `GpuNode` objects.
#[derive(Debug)]
pub struct Objects {
    pub policies: ObjectCache<GpuNodePolicy>,
    pub nodes: ObjectCache<NodeFacts>,
    pub gpu_nodes: ObjectCache<GpuNodeFacts>,
    /// Nodes whose GPUs NVIDIA's DRA driver serves.
    pub dra_nodes: DraNodes,
    /// Policies that cannot be read, by name.
    unreadable: BTreeMap<String, UnreadablePolicy>,
    /// Policies that cannot be read and that the list that is coming in has not named yet.
    unlisted: BTreeSet<String>,
    /// The policies, ready for planning.
    set: PolicySet,
    /// Policies that no longer select a node by its labels, by node. Few nodes have any.
    deselections: HashMap<String, Deselections>,
    /// Moment since which a node with fact labels has no `GpuNode`, by node. Few nodes have one.
    absences: HashMap<String, Timestamp>,
    /// Taints for which no pod has to go any more, by node. Few nodes have any.
    drained: HashMap<String, NodeDrain>,
    /// Pods of nodes as they were read for their drains.
    reviewed: HashMap<String, ReviewedPods>,
    /// Removals of what policies wrote that are gone.
    pub removals: PolicyRemovals,
    /// Number of plans of nodes.
    #[cfg(test)]
    pub plans: AtomicUsize,
    /// Number of records that were read for policies that are gone.
    #[cfg(test)]
    pub records: AtomicUsize,
}

impl Objects {
    /// Empty caches. Nodes get fact labels about their GPUs if `gpu_labels` says so; policies may use these images of the agent, and
    /// hand out files of these folders.
    pub fn new(gpu_labels: bool, agent_images: AgentImages, companion_roots: CompanionRootList) -> Self {
        Self {
            policies: ObjectCache::default(),
            nodes: ObjectCache::default(),
            gpu_nodes: ObjectCache::default(),
            dra_nodes: DraNodes::default(),
            unreadable: BTreeMap::new(),
            unlisted: BTreeSet::new(),
            set: PolicySet::default()
                .with_gpu_labels(gpu_labels)
                .with_agent_images(Some(agent_images))
                .with_companion_roots(Some(companion_roots)),
            deselections: HashMap::new(),
            absences: HashMap::new(),
            drained: HashMap::new(),
            reviewed: HashMap::new(),
            removals: PolicyRemovals::default(),
            #[cfg(test)]
            plans: AtomicUsize::new(0),
            #[cfg(test)]
            records: AtomicUsize::new(0),
        }
    }

    /// True once each cache has its first list.
    pub fn has_synced(&self) -> bool {
        self.policies.has_synced() && self.nodes.has_synced() && self.gpu_nodes.has_synced()
    }

    /// Policies as the planner reads them.
    pub fn set(&self) -> &PolicySet {
        &self.set
    }

    /// A policy as the planner reads it.
    pub fn policy(&self, name: &str) -> Option<&Policy> {
        self.set.get(name)
    }

    /// Returns the policies in mode Preview.
    pub fn previewed(&self) -> impl Iterator<Item = &Policy> {
        self.set.iter().filter(|policy| policy.mode == PolicyMode::Preview)
    }

    /// Makes the set of policies again after one changed.
    pub fn rebuild_set(&mut self) {
        self.set = PolicySet::new(self.policies.iter().map(Arc::as_ref))
            .with_unreadable(self.unreadable.keys().cloned())
            .with_gpu_labels(self.set.gpu_labels())
            .with_agent_images(self.set.agent_images().cloned())
            .with_companion_roots(self.set.companion_roots().cloned());
    }

    /// Applies news of policies from the watch.
    pub fn apply_policies(&mut self, update: WatchUpdate<WatchedPolicy>) -> PolicyChanges {
        let before = self.unreadable.clone();
        let deltas = match update {
            WatchUpdate::ListStarted => {
                self.unlisted = self.unreadable.keys().cloned().collect();
                self.policies.apply_watch(WatchUpdate::ListStarted)
            }
            WatchUpdate::ListPage(policies) => {
                let (mut readable, mut deltas) = (Vec::new(), Vec::new());
                for policy in policies {
                    match policy {
                        WatchedPolicy::Readable(policy) => {
                            self.unreadable.remove(policy.name());
                            readable.push(*policy);
                        }
                        WatchedPolicy::Unreadable(policy) => {
                            self.unlisted.remove(policy.name());
                            deltas.extend(self.set_unreadable(*policy));
                        }
                    }
                }
                deltas.extend(self.policies.apply_watch(WatchUpdate::ListPage(readable)));
                deltas
            }
            WatchUpdate::ListKept(name) => {
                self.unlisted.remove(&name);
                self.policies.apply_watch(WatchUpdate::ListKept(name))
            }
            WatchUpdate::ListCompleted(version) => {
                for name in std::mem::take(&mut self.unlisted) {
                    self.unreadable.remove(&name);
                }
                self.policies.apply_watch(WatchUpdate::ListCompleted(version))
            }
            WatchUpdate::Applied(policy) => match *policy {
                WatchedPolicy::Readable(policy) => {
                    self.unreadable.remove(policy.name());
                    self.policies.apply_watch(WatchUpdate::Applied(policy))
                }
                WatchedPolicy::Unreadable(policy) => self.set_unreadable(*policy).into_iter().collect(),
            },
            WatchUpdate::Deleted(deleted) => {
                self.unreadable.remove(&deleted.name);
                self.policies.apply_watch(WatchUpdate::Deleted(deleted))
            }
        };
        let names: BTreeSet<_> = before.keys().chain(self.unreadable.keys()).cloned().collect();
        let is_changed = |name: &String| before.get(name) != self.unreadable.get(name);
        let fault = |policy: &UnreadablePolicy| (policy.metadata.uid.clone(), policy.error.clone());
        let is_new = |policy: &&UnreadablePolicy| before.get(policy.name()).map(fault) != Some(fault(policy));
        PolicyChanges {
            changes_set: !before.keys().eq(self.unreadable.keys()),
            newly_unreadable: self.unreadable.values().filter(is_new).cloned().collect(),
            unreadable: names.into_iter().filter(is_changed).collect(),
            deltas,
        }
    }

    /// Adds an unreadable policy, unless it is being deleted, in place of its readable version. Returns the change of
    /// that.
    fn set_unreadable(&mut self, policy: UnreadablePolicy) -> Option<ObjectDelta<GpuNodePolicy>> {
        let name = policy.name().to_owned();
        if policy.metadata.deletion_timestamp.is_none() {
            self.unreadable.insert(name.clone(), policy);
        } else {
            self.unreadable.remove(&name);
        }
        self.policies.remove(&name)
    }

    /// A policy that cannot be read.
    pub fn unreadable_policy(&self, name: &str) -> Option<&UnreadablePolicy> {
        self.unreadable.get(name)
    }

    /// Returns the names of the policies that cannot be read.
    pub fn unreadable_policies(&self) -> impl ExactSizeIterator<Item = &String> {
        self.unreadable.keys()
    }

    /// Observes which policies no longer select a node by its labels. `may_begin` is asked about each policy that did not
    /// before, and told whether the operator saw its present spec earlier.
    pub fn observe_selection(&mut self, node: &str, now: Timestamp, may_begin: impl Fn(&Policy, bool) -> bool) {
        let after = self.nodes.get(node).map_or_else(Deselections::new, |facts| {
            let context = NodeContext::new(facts, self.gpu_node(node), now);
            find_deselections(&self.set, context, self.deselections.get(node), |policy| {
                may_begin(policy, self.is_observed(policy))
            })
        });
        if after.is_empty() {
            self.deselections.remove(node);
        } else {
            self.deselections.insert(node.to_owned(), after);
        }
    }

    /// Observes whether the `GpuNode` of a node with fact labels is there.
    pub fn observe_absence(&mut self, node: &str, now: Timestamp) {
        let owned = self.nodes.get(node).and_then(|facts| facts.owned.as_deref());
        // The domain of the fact labels: nodes without GPUs need no entry.
        let has_facts = owned.is_some_and(|record| record.contains("nvidia.com/"));
        if has_facts && self.gpu_node(node).is_none() {
            self.absences.entry(node.to_owned()).or_insert(now);
        } else {
            self.absences.remove(node);
        }
    }

    /// Returns true if the operator saw the present spec of a policy before.
    fn is_observed(&self, policy: &Policy) -> bool {
        let object = self.policies.get(&policy.name);
        let status = object.and_then(|object| object.status.as_ref());
        status.is_some_and(|status| status.observed_generation == policy.generation)
    }

    /// Forgets what was observed of a node that is gone.
    pub fn forget_node(&mut self, node: &str) {
        self.deselections.remove(node);
        self.absences.remove(node);
        self.drained.remove(node);
        self.reviewed.remove(node);
    }

    /// Records the pods of a node as they were read for its drain. Forgets those of nodes that are no longer drained.
    pub fn set_reviewed(&mut self, node: &str, reviewed: ReviewedPods) {
        self.reviewed.insert(node.to_owned(), reviewed);
        let gpu_nodes = &self.gpu_nodes;
        let is_drained = |node: &String| gpu_nodes.get(node).is_some_and(|it| it.preparation().is_some());
        self.reviewed.retain(|node, _| is_drained(node));
    }

    /// Records for which taints no pod has to go any more.
    pub fn set_drained(&mut self, node: &str, drain: NodeDrain) {
        let Some(facts) = self.nodes.get(node) else {
            self.drained.remove(node);
            return;
        };
        let known = self.drained.entry(node.to_owned()).or_default();
        known.extend(drain, &facts.taints);
    }

    /// True if there is no policy of this name.
    pub fn is_gone(&self, policy: &str) -> bool {
        self.set.get(policy).is_none() && !self.unreadable.contains_key(policy)
    }

    /// Finds policies that are gone and have something on nodes, or are among the policies `with_daemonset`; `deleted` are those
    /// whose deletion was seen. Returns the names of those that are not known yet.
    pub fn find_removals<'a>(
        &mut self,
        deleted: &BTreeSet<String>,
        with_daemonset: impl Iterator<Item = &'a str>,
        now: Timestamp,
    ) -> Vec<String> {
        let gone = self.gone_policies(with_daemonset, self.nodes.iter().map(Arc::as_ref));
        self.removals.update(gone, deleted, now)
    }

    /// Finds policies that are gone and have something on one of these `nodes`, whose deletion nobody saw. Looks at no other node,
    /// and ends no removal. Returns the names of those that are not known yet.
    pub fn find_removals_on<'a>(&mut self, nodes: impl Iterator<Item = &'a NodeFacts>, now: Timestamp) -> Vec<String> {
        let known = self.removals.policies();
        let gone = self.gone_policies(known.iter().map(String::as_str), nodes);
        self.removals.update(gone, &BTreeSet::new(), now)
    }

    /// Returns those of these policies that are gone, and others that are gone and have something on `nodes`, with these nodes.
    fn gone_policies<'a, 'b>(
        &self,
        policies: impl Iterator<Item = &'a str>,
        nodes: impl Iterator<Item = &'b NodeFacts>,
    ) -> BTreeMap<String, BTreeSet<String>> {
        let policies = policies.filter(|policy| self.is_gone(policy));
        let mut gone: BTreeMap<String, BTreeSet<String>> =
            policies.map(|policy| (policy.to_owned(), BTreeSet::new())).collect();
        for node in nodes {
            #[cfg(test)]
            self.records.fetch_add(1, Ordering::Relaxed);
            for policy in node.recorded_policies() {
                if self.is_gone(&policy) {
                    gone.entry(policy).or_default().insert(node.name.clone());
                }
            }
        }
        gone
    }

    /// Drops nodes from a removal that have nothing of the policy any more.
    pub fn retain_removal(&mut self, policy: &str) {
        let nodes = &self.nodes;
        let has_something = |node: &str| {
            nodes
                .get(node)
                .is_some_and(|node| node.recorded_policies().contains(policy))
        };
        self.removals.retain(policy, has_something);
    }

    /// Returns the plan for one node; `None` for a node that does not exist. Taints of the policies in `taint_permits` may evict
    /// pods. Previews are left out.
    pub fn plan(
        &self,
        permit: RolloutPermit,
        taint_permits: &BTreeSet<String>,
        node: &str,
        now: Timestamp,
    ) -> Option<NodePlan> {
        #[cfg(test)]
        self.plans.fetch_add(1, Ordering::Relaxed);
        self.in_context(taint_permits, node, now, |context, gpu_node| {
            let mut plan = plan_writes(permit, &self.set, context);
            let dra_ends = self.dra_nodes.grace_end(context.node, gpu_node, now);
            plan.recheck = [plan.recheck, dra_ends].into_iter().flatten().min();
            if plan.gpu_node == GpuNodeChange::None && !matches!(plan.hold, Some(NodeHold::Ignored)) {
                // The next plan brings the conditions.
                if let Some(change) = missing_owner(context) {
                    plan.gpu_node = change;
                    plan.conditions = None;
                }
            }
            plan
        })
    }

    /// Returns the status on one node of those of the policies `names` in mode Preview that match it.
    pub fn previews(&self, names: &BTreeSet<String>, node: &str, now: Timestamp) -> BTreeMap<String, PolicyNodeStatus> {
        let statuses = self.in_context(&BTreeSet::new(), node, now, |context, _| {
            preview_node(&self.set, names, context)
        });
        statuses.unwrap_or_default()
    }

    /// Calls `plan` with everything that is known of a node, and with the `GpuNode` of its name. Returns `None` for a
    /// node that does not exist.
    fn in_context<R>(
        &self,
        taint_permits: &BTreeSet<String>,
        node: &str,
        now: Timestamp,
        plan: impl FnOnce(NodeContext<'_>, Option<&GpuNodeFacts>) -> R,
    ) -> Option<R> {
        let facts = self.nodes.get(node)?;
        let (departing, missing) = (self.removals.departing(node), self.removals.missing(node, now));
        let gpu_node = self.gpu_nodes.get(node).map(Arc::as_ref);
        let context = NodeContext::new(facts, gpu_node, now)
            .remembering(self.deselections.get(node))
            .absent_since(self.absences.get(node).copied())
            .drained(self.drained.get(node))
            .reviewed(self.reviewed.get(node))
            .served_by_dra(self.dra_nodes.is_served(facts, gpu_node, now))
            .with_taint_permits(taint_permits)
            .departing(&departing)
            .missing(&missing);
        Some(plan(context, gpu_node))
    }

    /// Returns false if a policy has nothing to do with a node: its spec, which is none for a policy that is gone, does
    /// not match, and nothing of it is there. Cheap, and may return true for more nodes.
    pub fn may_concern(&self, name: &str, spec: Option<&Policy>, node: &str) -> bool {
        let Some(facts) = self.nodes.get(node) else {
            return true;
        };
        let gpu_node = self.gpu_nodes.get(node);
        let configured = gpu_node.and_then(|gpu_node| gpu_node.spec.config.as_ref());
        let agent = gpu_node.and_then(|gpu_node| gpu_node.status.as_deref()?.agent.as_ref());
        let quoted = format!("\"{name}\"");
        let has_record = facts.owned.as_deref().is_some_and(|record| record.contains(&quoted));
        has_record
            || configured.is_some_and(|config| config.policy == name)
            || agent.is_some_and(|agent| agent.policy.as_deref() == Some(name))
            || spec.is_some_and(|policy| may_match(policy, facts))
    }

    /// Returns the pods that `plan` evicts from a node.
    pub fn evictions(&self, node: &str, plan: &NodePlan) -> BTreeMap<PodName, PodEviction> {
        let facts = self.nodes.get(node);
        facts.map_or_else(BTreeMap::new, |facts| {
            evictions(&self.set, plan, facts, self.gpu_node(node))
        })
    }

    /// Says which GPUs a node lacks for a policy that no longer selects it.
    pub fn gpu_mismatch(&self, policy: &str, node: &str) -> Option<String> {
        gpu_mismatch(&self.set, policy, self.nodes.get(node)?, self.gpu_node(node))
    }

    /// Returns the policy that deletes this rejected pod.
    pub fn deleting_policy(&self, pod: &RejectedPod, now: Timestamp) -> Option<&str> {
        let facts = self.nodes.get(&pod.node)?;
        let plan = self.plan(RolloutPermit::Withheld, &BTreeSet::new(), &pod.node, now)?;
        pod.deleting_policy(&self.set, &plan, facts, self.gpu_node(&pod.node))
    }

    /// A policy that people hear about. A policy in mode Preview writes nothing but its status.
    pub fn announced_policy(&self, name: &str) -> Option<&Arc<GpuNodePolicy>> {
        self.policies
            .get(name)
            .filter(|policy| policy.spec.mode() != PolicyMode::Preview)
    }

    /// Returns the conditions of the first `limit` policies as they were last written, and whether each is True.
    pub fn conditions(&self, limit: usize) -> Vec<(String, ConditionType, bool)> {
        let objects = self.set.iter().take(limit);
        let objects = objects.filter_map(|policy| self.policies.get(&policy.name));
        let statuses = objects.filter_map(|policy| Some((policy.name_any(), policy.status.as_ref()?)));
        let of_policy = |(name, status): (String, &GpuNodePolicyStatus)| {
            let holds = |type_: ConditionType| Some((type_, type_.find(&status.conditions)?.status == "True"));
            let conditions = ConditionType::OF_POLICY.into_iter().filter_map(holds);
            conditions
                .map(|(type_, is_true)| (name.clone(), type_, is_true))
                .collect::<Vec<_>>()
        };
        statuses.flat_map(of_policy).collect()
    }

    /// Returns the `GpuNode` that belongs to a node.
    fn gpu_node(&self, node: &str) -> Option<&GpuNodeFacts> {
        let facts = self.nodes.get(node)?;
        self.gpu_nodes
            .get(node)
            .map(Arc::as_ref)
            .filter(|gpu_node| facts.owns(&gpu_node.owners))
    }
}
