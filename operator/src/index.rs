//! Index of the cluster: what exists, what is planned for each node, and the sums by policy. No IO.
//!
//! Everything enters by [`ClusterIndex::apply`]: updates from watches and results of the operator's own writes. A change plans
//! the touched nodes again and leaves its consequences in [`Effects`]; [`ClusterIndex::planned_write`] computes the write of
//! one key of the work queue.
//!
//! | module | what it does |
//! |---|---|
//! | `message` | what the index learns: updates from watches, results of writes |
//! | `cache` | objects of one kind, by name and version |
//! | `watched_policy` | policies as the watch brings them, also those that cannot be read |
//! | `objects` | policies, nodes and `GpuNode` objects, and plans made from them |
//! | `daemonsets` | live and desired DaemonSets |
//! | `dra_nodes` | nodes whose GPUs NVIDIA's DRA driver serves |
//! | `outcomes` | outcome of each policy on each node, and sums by policy |
//! | `evictions` | pods to evict, by node |
//! | `drains` | nodes from which taints evict pods |
//! | `effects` | consequences of a change: keys to queue, events to send, pods to evict |
//! | `summary` | numbers for probes, metrics and the election |
//! | `work` | keys of the work queue, and the write that each needs |

pub mod cache;
mod daemonsets;
pub mod dra_nodes;
mod drains;
pub mod effects;
pub mod evictions;
pub mod message;
mod objects;
mod outcomes;
pub mod summary;
pub mod watched_policy;
pub mod work;

use crate::{
    events::OperatorEvent,
    index::{
        cache::{ObjectDelta, Versioned, WatchUpdate, WriteKind},
        daemonsets::{ALWAYS, DaemonSets},
        dra_nodes::SliceOwner,
        drains::PendingDrains,
        effects::{Effects, QueuedKey},
        evictions::{EvictionKey, PendingEvictions},
        message::{FinishedWrite, IndexMessage, WriteResult, WrittenObject},
        objects::{Objects, PolicyChanges},
        outcomes::{OutcomeChange, OutcomeIndex, PolicyNodeStatuses},
        summary::ClusterSummary,
        watched_policy::{UnreadablePolicy, deletions},
        work::{DaemonSetWrite, NodeWrite, PlannedWrite, PolicyStatusWrite, UnreadableStatusWrite, WorkKey},
    },
    metrics::MAX_POLICIES,
};
use gpunode_crds::{ConditionType, GpuNodePolicy, NodeCounts, Reason};
use gpunode_plan::{
    AgentPodSettings, DISCOVERY_NAME, GpuNodeFacts, NodeDrain, NodeFacts, NodePlan, PodEviction, PolicyTally,
    RejectedPod, RolloutPermit, policies_delete_rejected_pods, policy_daemonset_name, policy_missing, policy_status,
    removal_paced, runs_discovery,
};
use jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The caches and everything that is derived from them.
#[derive(Debug)]
pub struct ClusterIndex {
    objects: Objects,
    daemonsets: DaemonSets,
    outcomes: OutcomeIndex,
    /// Reason for which the API server refused the last write, by node.
    refusals: HashMap<String, String>,
    /// Policies whose rollouts may grant more turns.
    rollouts_to_advance: BTreeSet<String>,
    evictions: PendingEvictions,
    drains: PendingDrains,
    /// Policies whose edit is being applied: nodes that no longer match lose them at once.
    edited: BTreeSet<String>,
    /// True once every node was planned.
    has_planned: bool,
}

impl ClusterIndex {
    /// An empty index. `pods` says how agents run; nodes get fact labels about their GPUs if `gpu_labels` says so.
    pub fn new(pods: AgentPodSettings, gpu_labels: bool) -> Self {
        Self {
            objects: Objects::new(gpu_labels, pods.allowed.clone()),
            daemonsets: DaemonSets::new(pods),
            outcomes: OutcomeIndex::default(),
            refusals: HashMap::new(),
            rollouts_to_advance: BTreeSet::new(),
            evictions: PendingEvictions::default(),
            drains: PendingDrains::default(),
            edited: BTreeSet::new(),
            has_planned: false,
        }
    }

    /// True once each cache has its first list. Nothing is planned before: without the policies, every node would seem to
    /// need cleaning.
    pub fn has_synced(&self) -> bool {
        self.objects.has_synced() && self.daemonsets.has_synced()
    }

    /// True if nothing of gpunode exists: no node has a record, and there is no `GpuNode`.
    pub fn is_first_install(&self) -> bool {
        self.objects.nodes.iter().all(|node| node.owned.is_none()) && self.objects.gpu_nodes.iter().next().is_none()
    }

    /// Applies a message and adds its consequences to `effects`.
    pub fn apply(&mut self, message: IndexMessage, now: Timestamp, effects: &mut Effects) {
        let had_synced = self.has_synced();
        let begins_list = matches!(
            message,
            IndexMessage::Nodes(WatchUpdate::ListStarted) | IndexMessage::DaemonSets(WatchUpdate::ListStarted)
        );
        if had_synced && begins_list {
            // Forgets policies of which nothing was left: after a restore of etcd the list may bring back what they wrote.
            self.find_removals(&BTreeSet::new(), now, effects);
        }
        match message {
            IndexMessage::Policies(update) => {
                let deleted = deletions(&update);
                let PolicyChanges {
                    deltas,
                    unreadable,
                    newly_unreadable,
                    changes_set,
                } = self.objects.apply_policies(update);
                effects
                    .events
                    .extend(newly_unreadable.iter().map(UnreadablePolicy::event));
                for name in unreadable {
                    effects.queue(WorkKey::DaemonSet(policy_daemonset_name(&name)));
                    effects.queue(WorkKey::PolicyStatus(name));
                }
                self.policies_changed(&deltas, &deleted, had_synced && !changes_set, now, effects);
            }
            IndexMessage::Nodes(update) => {
                let is_page = matches!(update, WatchUpdate::ListPage(_));
                let deltas = self.objects.nodes.apply_watch(update);
                if had_synced && is_page && !deltas.iter().all(same_node) {
                    // The policies themselves may come later.
                    self.find_removals(&BTreeSet::new(), now, effects);
                }
                self.nodes_changed(&deltas, had_synced, NodeFacts::is_same_but_version, now, effects);
            }
            IndexMessage::GpuNodes(update) => {
                let deltas = self.objects.gpu_nodes.apply_watch(update);
                self.nodes_changed(&deltas, had_synced, GpuNodeFacts::is_same_but_version, now, effects);
            }
            IndexMessage::DaemonSets(update) => {
                for name in self.daemonsets.apply_watch(update, now) {
                    self.observe_agents(&name, now, effects);
                    effects.queue(WorkKey::DaemonSet(name));
                }
                let is_new = |policy: &str| self.objects.is_gone(policy) && !self.objects.removals.contains(policy);
                if !had_synced {
                    self.plan_all(now, effects);
                } else if self.daemonsets.policies().any(is_new) {
                    self.find_removals(&BTreeSet::new(), now, effects);
                }
            }
            IndexMessage::ResourceSlices(update) => self.slices_changed(update, now, effects),
            IndexMessage::Written(object) => self.apply_written(object, now, effects),
            IndexMessage::Finished(write) => self.apply_finished(write, now, effects),
            IndexMessage::Drained { node, drain } => {
                self.objects.set_drained(&node, drain);
                // If a taint still evicts pods, somebody has to look again.
                self.drains.put(&node, NodeDrain::default());
                self.plan(&node, now, effects);
                self.advance_rollouts(effects);
            }
        }
    }

    fn apply_written(&mut self, object: WrittenObject, now: Timestamp, effects: &mut Effects) {
        match object {
            WrittenObject::Node(node) => {
                let delta = self.objects.nodes.apply_write(*node, WriteKind::Update);
                self.nodes_changed(delta.as_slice(), true, NodeFacts::is_same_but_version, now, effects);
            }
            WrittenObject::GpuNode(gpu_node, kind) => {
                let delta = self.objects.gpu_nodes.apply_write(*gpu_node, kind);
                self.nodes_changed(delta.as_slice(), true, GpuNodeFacts::is_same_but_version, now, effects);
            }
            WrittenObject::DeletedGpuNode { name, version } => {
                let delta = self.objects.gpu_nodes.apply_delete(&name, &version);
                self.nodes_changed(delta.as_slice(), true, GpuNodeFacts::is_same_but_version, now, effects);
            }
            WrittenObject::DaemonSet { returned, kind, sent } => {
                let name = returned.name().to_owned();
                self.daemonsets.apply_write(*returned, kind, &sent);
                self.observe_agents(&name, now, effects);
            }
            WrittenObject::PolicyStatus { returned, sent } => {
                let delta = self.objects.policies.apply_write(*returned, WriteKind::Update);
                self.policies_changed(delta.as_slice(), &BTreeSet::new(), true, now, effects);
                effects
                    .events
                    .extend(OperatorEvent::of_status(&sent.policy, &sent.status));
            }
        }
    }

    /// Records whether the API server refused a write. What it said before still holds where it could not be asked, and
    /// where the object changed meanwhile.
    fn apply_finished(&mut self, FinishedWrite { key, result }: FinishedWrite, now: Timestamp, effects: &mut Effects) {
        let refusal = match result {
            WriteResult::Accepted => None,
            WriteResult::Refused(refusal) => Some(refusal),
            WriteResult::Conflict | WriteResult::Failed => return,
        };
        match key {
            WorkKey::Node(name) => self.set_node_refusal(name, refusal, now, effects),
            WorkKey::DaemonSet(name) => self.set_daemonset_refusal(&name, refusal.as_deref(), effects),
            WorkKey::PolicyStatus(_) | WorkKey::Removal(_) => {}
        }
    }

    /// A node that cannot be written gives its permits to others, so that no rollout waits for it.
    fn set_node_refusal(&mut self, name: String, refusal: Option<String>, now: Timestamp, effects: &mut Effects) {
        if refusal.is_some()
            && let Some((policy, rollout)) = self.outcomes.rollout_of(&name)
        {
            rollout.return_permit(&name);
            self.rollouts_to_advance.insert(policy.to_owned());
        }
        if refusal.is_some() {
            let policies = self.outcomes.return_taint_permits(&name);
            self.rollouts_to_advance.extend(policies);
        }
        if self.refusals.get(&name) != refusal.as_ref() {
            match refusal {
                Some(refusal) => drop(self.refusals.insert(name.clone(), refusal)),
                None => drop(self.refusals.remove(&name)),
            }
            self.plan(&name, now, effects);
        }
        self.advance_rollouts(effects);
        // The queue retries by itself.
        effects.drop_now(&WorkKey::Node(name));
    }

    fn set_daemonset_refusal(&mut self, name: &str, refusal: Option<&str>, effects: &mut Effects) {
        if self.daemonsets.set_refusal(name, refusal)
            && let Some(policy) = self.objects.set().of_daemonset(name)
        {
            effects.queue(WorkKey::PolicyStatus(policy.name.clone()));
        }
    }

    fn policies_changed(
        &mut self,
        deltas: &[ObjectDelta<GpuNodePolicy>],
        deleted: &BTreeSet<String>,
        knew_set: bool,
        now: Timestamp,
        effects: &mut Effects,
    ) {
        for policy in deltas {
            effects.queue(WorkKey::PolicyStatus(policy.name.clone()));
            effects.queue(WorkKey::DaemonSet(policy_daemonset_name(&policy.name)));
        }
        if deltas.iter().any(|policy| !same_policy(policy)) || !knew_set {
            self.objects.rebuild_set();
            if self.has_planned {
                // The first list is no edit.
                let edited = deltas.iter().filter(|policy| !same_policy(policy));
                self.edited = edited.map(|policy| policy.name.clone()).collect();
                self.find_removals(deleted, now, effects);
            }
            self.plan_all(now, effects);
            self.edited.clear();
            let objects = &self.objects;
            self.outcomes.retain(|name| objects.policy(name).is_some());
        }
    }

    fn nodes_changed<T>(
        &mut self,
        deltas: &[ObjectDelta<T>],
        had_synced: bool,
        is_same: impl Fn(&T, &T) -> bool,
        now: Timestamp,
        effects: &mut Effects,
    ) {
        if !had_synced {
            return self.plan_all(now, effects);
        }
        for delta in deltas {
            let unchanged =
                matches!((&delta.before, &delta.after), (Some(before), Some(after)) if is_same(before, after));
            if !unchanged {
                self.plan(&delta.name, now, effects);
            }
        }
        self.advance_rollouts(effects);
    }

    /// Plans the nodes again that NVIDIA's DRA driver begins or ceases to serve. Nothing waits for the first list: what each
    /// `GpuNode` says counts until then.
    fn slices_changed(&mut self, update: WatchUpdate<SliceOwner>, now: Timestamp, effects: &mut Effects) {
        let was_known = self.objects.dra_nodes.is_known();
        let mut nodes = self.objects.dra_nodes.apply(update, now);
        if !self.has_synced() {
            return;
        }
        if !was_known {
            let told = self.objects.gpu_nodes.iter().filter(|told| told.spec.served_by_dra);
            nodes.extend(told.map(|told| told.name().to_owned()));
        }
        for node in nodes {
            self.plan(&node, now, effects);
        }
        self.advance_rollouts(effects);
    }

    /// Observes how far the agents of a policy are replaced; its status says so.
    fn observe_agents(&mut self, daemonset: &str, now: Timestamp, effects: &mut Effects) {
        let policy = self.objects.set().of_daemonset(daemonset);
        let outside = policy.map_or(0, |policy| self.outcomes.outside(&policy.name));
        self.daemonsets.observe_replacement(daemonset, outside, now);
        if let Some(policy) = policy {
            effects.queue(WorkKey::PolicyStatus(policy.name.clone()));
        }
    }

    /// Nodes whose discovery pod is of an earlier template.
    pub fn outdated_discovery(&self) -> i32 {
        self.daemonsets.outdated_discovery()
    }

    fn plan_all(&mut self, now: Timestamp, effects: &mut Effects) {
        if self.has_synced() {
            if !self.has_planned {
                // Nobody saw what was deleted before.
                self.find_removals(&BTreeSet::new(), now, effects);
            }
            for name in self.objects.nodes.names() {
                self.plan(&name, now, effects);
            }
            self.has_planned = true;
            let policies = self.objects.set().iter().map(|policy| policy.name.clone());
            self.rollouts_to_advance.extend(policies);
            self.advance_rollouts(effects);
        }
    }

    /// Grants turns in the rollouts that may go on. Comes after all consequences of a change are counted, so that the order
    /// in which nodes were planned does not matter.
    fn advance_rollouts(&mut self, effects: &mut Effects) {
        for name in std::mem::take(&mut self.rollouts_to_advance) {
            let (Some(policy), Some(rollouts)) = (self.objects.policy(&name), self.outcomes.rollouts(&name)) else {
                continue;
            };
            for node in rollouts.into_iter().flat_map(|rollout| rollout.advance(&policy.pace)) {
                effects.queue(WorkKey::Node(node));
            }
        }
    }

    /// Finds policies that are gone, and queues the removals of what they wrote.
    fn find_removals(&mut self, deleted: &BTreeSet<String>, now: Timestamp, effects: &mut Effects) {
        for policy in self.objects.find_removals(deleted, self.daemonsets.policies(), now) {
            // A removal from few nodes is done.
            let Some(next) = self.objects.removals.next(&policy) else {
                continue;
            };
            effects.queue_at(WorkKey::Removal(policy.clone()), next);
            self.tell_missing(&policy, now, effects);
        }
    }

    /// Tells that a policy is missing although nobody saw its deletion.
    fn tell_missing(&self, policy: &str, now: Timestamp, effects: &mut Effects) {
        let removals = &self.objects.removals;
        if removals.is_in_grace(policy, now) {
            let message = policy_missing(policy, removals.waiting_of(policy));
            let event = OperatorEvent::of_gone_policy(policy, Reason::PolicyMissing, message);
            effects.events.push(event);
        }
    }

    /// Lets the removal of a policy reach the nodes that are due, and queues it for the next ones.
    fn advance_removal(&mut self, policy: &str, now: Timestamp, effects: &mut Effects) {
        let batch = self.objects.removals.advance(policy, now);
        match self.objects.removals.next(policy) {
            Some(next) => effects.queue_at(WorkKey::Removal(policy.to_owned()), next),
            None => effects.queue(WorkKey::DaemonSet(policy_daemonset_name(policy))),
        }
        if let Some(total) = batch.begins {
            let event = OperatorEvent::of_gone_policy(policy, Reason::RemovalPaced, removal_paced(policy, total));
            effects.events.push(event);
        }
        for node in batch.nodes {
            self.plan(&node, now, effects);
        }
        self.advance_rollouts(effects);
    }

    /// Plans one node, as before its permit in a rollout, and counts the result.
    fn plan(&mut self, name: &str, now: Timestamp, effects: &mut Effects) -> Option<NodePlan> {
        let facts = self.objects.nodes.get(name);
        let is_down = facts.is_some_and(|facts| !facts.ready && runs_discovery(facts));
        if self.daemonsets.set_discovery_down(name, is_down) {
            effects.queue(WorkKey::DaemonSet(DISCOVERY_NAME.to_owned()));
        }
        self.observe_selection(name, now);
        self.objects.observe_absence(name, now);
        let plan = self.objects.plan(RolloutPermit::Withheld, &BTreeSet::new(), name, now);
        let Some(plan) = plan else {
            self.refusals.remove(name);
            self.objects.set_drained(name, NodeDrain::default());
            self.drains.put(name, NodeDrain::default());
            self.evictions.put(name, BTreeMap::new());
            self.count(name, PolicyNodeStatuses::new(), now, effects);
            return None;
        };
        let evictions = self.objects.evictions(name, &plan);
        effects.evictions.extend(self.evictions.put(name, evictions));
        if self.drains.put(name, plan.drain.clone()) {
            effects.drains.push(name.to_owned());
        }
        if plan.is_settled() {
            self.refusals.remove(name);
        }
        let statuses = plan.policy_statuses_after(self.refusals.get(name).map(String::as_str));
        self.count(name, statuses, now, effects);
        let is_permitted = self
            .outcomes
            .rollout_of(name)
            .is_some_and(|(_, rollout)| rollout.is_granted(name));
        let is_permitted = is_permitted || !self.outcomes.taint_permits(name).is_empty();
        if plan.has_work() || is_permitted {
            effects.queue(WorkKey::Node(name.to_owned()));
        }
        if let Some(at) = plan.recheck {
            effects.queue_at(WorkKey::Node(name.to_owned()), at);
        }
        Some(plan)
    }

    /// Observes which policies no longer select a node by its labels. A grace begins where the node changed: the policy counted
    /// it before. After a start of the operator, the status of the policy tells whether its spec is the one that matched.
    fn observe_selection(&mut self, name: &str, now: Timestamp) {
        let Self {
            objects,
            outcomes,
            edited,
            has_planned,
            ..
        } = self;
        let has_planned = *has_planned;
        objects.observe_selection(name, now, |policy, is_observed| {
            let matched = if has_planned {
                outcomes.counts(name, &policy.name)
            } else {
                is_observed
            };
            matched && !edited.contains(&policy.name)
        });
    }

    fn count(&mut self, node: &str, statuses: PolicyNodeStatuses, now: Timestamp, effects: &mut Effects) {
        for OutcomeChange { policy, event, left } in self.outcomes.put(node, statuses) {
            if let Some(object) = self.objects.announced_policy(&policy) {
                let missing = left.then(|| self.objects.gpu_mismatch(&policy, node)).flatten();
                let missing = missing.map(|message| (Reason::GpusMissing, message));
                let events = event.into_iter().chain(missing);
                let events = events.map(|(reason, message)| OperatorEvent::of_node(object, node, reason, &message));
                effects.events.extend(events);
            }
            self.rollouts_to_advance.insert(policy.clone());
            let daemonset = policy_daemonset_name(&policy);
            self.daemonsets
                .observe_replacement(&daemonset, self.outcomes.outside(&policy), now);
            // The surge of a DaemonSet depends on the nodes that are down.
            if self.daemonsets.is_behind(&daemonset) {
                effects.queue(WorkKey::DaemonSet(daemonset));
            }
            effects.queue(WorkKey::PolicyStatus(policy));
        }
    }

    /// Computes the write that a key needs now; `None` if nothing is left to write.
    pub fn planned_write(&mut self, key: &WorkKey, now: Timestamp, effects: &mut Effects) -> Option<PlannedWrite> {
        match key {
            WorkKey::Node(name) => {
                let write = self.node_write(name, now, effects)?;
                Some(PlannedWrite::Node(Box::new(write)))
            }
            WorkKey::DaemonSet(name) => {
                let write = self.daemonset_write(name);
                if matches!(write, Some(DaemonSetWrite::Create(_)))
                    && let Some(at) = self.daemonsets.waits_until(name, now)
                {
                    effects.queue_at(key.clone(), at);
                    return None;
                }
                if write.is_none() {
                    self.set_daemonset_refusal(name, None, effects);
                }
                write.map(PlannedWrite::DaemonSet)
            }
            WorkKey::Removal(policy) => {
                self.advance_removal(policy, now, effects);
                None
            }
            WorkKey::PolicyStatus(name) if self.objects.unreadable_policy(name).is_some() => {
                let policy = self.objects.unreadable_policy(name)?;
                let write = UnreadableStatusWrite {
                    version: policy.version().to_owned(),
                    status: policy.desired_status(now)?,
                };
                Some(PlannedWrite::UnreadableStatus(Box::new(write)))
            }
            WorkKey::PolicyStatus(name) => {
                self.queue_at_deadline(name, now, effects);
                let write = self.policy_status_write(name, now)?;
                Some(PlannedWrite::PolicyStatus(Box::new(write)))
            }
        }
    }

    /// A node with a permit counts as changing from here on.
    fn node_write(&mut self, name: &str, now: Timestamp, effects: &mut Effects) -> Option<NodeWrite> {
        let mut plan = self.plan(name, now, effects)?;
        self.advance_rollouts(effects);
        let is_permitted = plan.waits
            && self
                .outcomes
                .rollout_of(name)
                .is_some_and(|(_, rollout)| rollout.use_permit(name));
        let taint_permits = if plan.awaits_taints() {
            self.outcomes.taint_permits(name)
        } else {
            BTreeSet::new()
        };
        self.outcomes.use_taint_permits(name, &taint_permits);
        if is_permitted || !taint_permits.is_empty() {
            let permit = if is_permitted {
                RolloutPermit::Granted
            } else {
                RolloutPermit::Withheld
            };
            plan = self.objects.plan(permit, &taint_permits, name, now)?;
        }
        // Its key is being worked on already.
        effects.drop_now(&WorkKey::Node(name.to_owned()));
        let live = self
            .objects
            .gpu_nodes
            .get(name)
            .map_or(&[][..], |gpu_node| &gpu_node.conditions);
        effects
            .events
            .extend(OperatorEvent::of_annotation(name, live, plan.conditions.as_ref()));
        plan.has_work().then_some(NodeWrite {
            patch: plan.patch,
            status_patch: plan.status_patch,
            gpu_node: plan.gpu_node,
            conditions: plan.conditions,
        })
    }

    fn daemonset_write(&self, name: &str) -> Option<DaemonSetWrite> {
        if self.objects.removals.keep_daemonset(name) {
            return None;
        }
        self.daemonsets.planned_write(name, self.objects.set(), &self.outcomes)
    }

    fn policy_status_write(&self, name: &str, now: Timestamp) -> Option<PolicyStatusWrite> {
        let (object, policy) = (self.objects.policies.get(name)?, self.objects.policy(name)?);
        let no_nodes = PolicyTally::default();
        let next = self.daemonset_write(&policy_daemonset_name(name));
        let agents = self
            .daemonsets
            .agents(policy, next.as_ref(), self.outcomes.outside(name), now);
        let tally = self.outcomes.tally(name).unwrap_or(&no_nodes);
        let status = policy_status(policy, tally, &agents, object.status.as_ref(), now);
        (object.status.as_ref() != Some(&status)).then(|| PolicyStatusWrite {
            policy: object.clone(),
            status,
        })
    }

    /// Queues the status of a policy for the deadline of its agents, whose end the status tells. Repeated with each look at
    /// the status, since the queue keeps the earlier of two times.
    fn queue_at_deadline(&self, name: &str, now: Timestamp, effects: &mut Effects) {
        let policy = self.objects.policy(name);
        let deadline = policy.and_then(|policy| self.daemonsets.deadline(policy));
        if let Some(at) = deadline.filter(|at| *at > now) {
            effects.queue_at(WorkKey::PolicyStatus(name.to_owned()), at);
        }
    }

    /// Queues everything that could need a write, for a process that begins to lead. No event repeats what the leader before
    /// has told.
    pub fn queue_everything(&mut self, now: Timestamp, effects: &mut Effects) {
        self.evictions.clear();
        self.drains.clear();
        for policy in self.objects.removals.policies() {
            // The leader before has reached some of the nodes.
            self.objects.retain_removal(&policy);
            effects.queue(WorkKey::Removal(policy));
        }
        self.plan_all(now, effects);
        for name in self.daemonsets.names().into_iter().chain(ALWAYS.map(str::to_owned)) {
            effects.queue(WorkKey::DaemonSet(name));
        }
        for name in self.objects.policies.names() {
            effects.queue(WorkKey::DaemonSet(policy_daemonset_name(&name)));
            effects.queue(WorkKey::PolicyStatus(name));
        }
        let unreadable = self.objects.unreadable_policies().cloned();
        effects.queued.extend(unreadable.map(|name| QueuedKey {
            key: WorkKey::PolicyStatus(name),
            at: None,
        }));
        effects.events.clear();
        // A process that has just started could not tell before.
        for policy in self.objects.removals.policies() {
            self.tell_missing(&policy, now, effects);
        }
    }

    /// Returns the index in numbers, for those who must not wait for it.
    pub fn summary(&self) -> ClusterSummary {
        let mut node_counts = self.node_counts();
        node_counts.truncate(MAX_POLICIES);
        ClusterSummary {
            has_synced: self.has_synced(),
            is_first_install: self.is_first_install(),
            node_counts,
            conditions: self.conditions(MAX_POLICIES),
            unreadable_policies: self.unreadable_policies(),
            removal_nodes: self.removal_nodes(),
            outdated_discovery: self.outdated_discovery(),
        }
    }

    /// Returns the counts of nodes of each policy, by name.
    pub fn node_counts(&self) -> Vec<(String, NodeCounts)> {
        let counts = |policy: &str| self.outcomes.tally(policy).map(PolicyTally::counts).unwrap_or_default();
        let policies = self.objects.set().iter();
        policies
            .map(|policy| (policy.name.clone(), counts(&policy.name)))
            .collect()
    }

    /// Returns how many policies cannot be read.
    pub fn unreadable_policies(&self) -> usize {
        self.objects.unreadable_policies().len()
    }

    /// Returns the conditions of the first `limit` policies as they were last written, and whether each is True.
    pub fn conditions(&self, limit: usize) -> Vec<(String, ConditionType, bool)> {
        self.objects.conditions(limit)
    }

    /// Returns the reason to evict a pod; `None` if there is none any more.
    pub fn eviction(&self, key: &EvictionKey) -> Option<&PodEviction> {
        self.evictions.get(key)
    }

    /// Returns the taints that evict pods from a node; `None` if nobody has to look at its pods.
    pub fn drain(&self, node: &str) -> Option<&NodeDrain> {
        self.drains.get(node)
    }

    /// Counts the nodes that keep what a policy wrote that is gone, once for each policy.
    pub fn removal_nodes(&self) -> usize {
        self.objects.removals.waiting()
    }

    /// True if a policy in force wants rejected pods to be deleted.
    pub fn deletes_rejected_pods(&self) -> bool {
        policies_delete_rejected_pods(self.objects.set())
    }

    /// True if a policy wants this rejected pod to be deleted.
    pub fn deletes(&self, pod: &RejectedPod, now: Timestamp) -> bool {
        self.objects.deletes(pod, now)
    }
}

/// True if nothing but the status of a policy changed.
fn same_policy(delta: &ObjectDelta<GpuNodePolicy>) -> bool {
    let (Some(before), Some(after)) = (&delta.before, &delta.after) else {
        return false;
    };
    let (old, new) = (&before.metadata, &after.metadata);
    before.spec == after.spec
        && old.uid == new.uid
        && old.generation == new.generation
        && old.deletion_timestamp.is_some() == new.deletion_timestamp.is_some()
}

/// True if nothing that the planner reads changed.
fn same_node(delta: &ObjectDelta<NodeFacts>) -> bool {
    matches!((&delta.before, &delta.after), (Some(before), Some(after)) if before.is_same_but_version(after))
}

#[cfg(test)]
mod tests;
