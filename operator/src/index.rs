//! Index of the cluster: what exists, what is planned for each node, and the sums by policy. No IO.
//!
//! Everything enters by [`ClusterIndex::apply`]: updates from watches and results of the operator's own writes. On the
//! process that leads, a change queues the touched nodes; [`ClusterIndex::planned_write`] makes the one plan of a node
//! when its key has its turn, counts the result and returns the write. Everything else that follows is left in
//! [`Effects`]. A standby plans nothing.
//!
//! | module | what it does |
//! |---|---|
//! | `message` | what the index learns: updates from watches, results of writes |
//! | `cache` | objects of one kind, by name and version |
//! | `watched_policy` | policies as the watch brings them, also those that cannot be read |
//! | `objects` | policies, nodes and `GpuNode` objects, and plans made from them |
//! | `daemonsets` | live and desired DaemonSets |
//! | `dra_nodes` | nodes whose GPUs NVIDIA's DRA driver serves |
//! | `sweep` | plans of all nodes that are due after an edit, and on a process that begins to lead |
//! | `expected_nodes` | nodes as the writes under way leave them |
//! | `previews` | passes over all nodes for policies in mode Preview |
//! | `outcomes` | outcome of each policy on each node, and sums by policy |
//! | `evictions` | pods to evict, by node |
//! | `drains` | nodes from which taints evict pods |
//! | `effects` | consequences of a change: keys to queue, events to send, pods to evict |
//! | `summary` | numbers for probes, metrics and the election |
//! | `work` | keys of the work queue, and the write that each needs |

pub mod cache;
mod daemonsets;
pub mod dra_nodes;
pub mod drains;
pub mod effects;
pub mod evictions;
mod expected_nodes;
pub mod message;
mod objects;
mod outcomes;
mod previews;
pub mod summary;
mod sweep;
pub mod watched_policy;
pub mod work;

use crate::{
    events::OperatorEvent,
    index::{
        cache::{ObjectDelta, Versioned, WatchUpdate, WriteKind},
        daemonsets::{ALWAYS, DaemonSets},
        dra_nodes::SliceOwner,
        drains::{PendingDrain, PendingDrains},
        effects::Effects,
        evictions::{EvictionKey, PendingEvictions},
        expected_nodes::ExpectedNodes,
        message::{FinishedWrite, IndexMessage, WriteResult, WrittenObject},
        objects::{Objects, PolicyChanges},
        outcomes::{OutcomeChange, OutcomeIndex, PolicyNodeStatuses},
        previews::PreviewPasses,
        summary::ClusterSummary,
        sweep::{NewEdits, StatusHold, Sweep, SweepProgress},
        watched_policy::{UnreadablePolicy, deletions},
        work::{DaemonSetWrite, NodeWrite, PlannedWrite, PolicyStatusWrite, UnreadableStatusWrite, WorkKey},
    },
    metrics::{MAX_POLICIES, WorkClass},
};
use gpunode_crds::{ConditionType, GpuDevice, GpuNodePolicy, GpuNodeStatus, NodeCounts, PolicyMode, Reason};
use gpunode_plan::{
    AgentPodSettings, DISCOVERY_NAME, GpuNodeFacts, NodeFacts, NodePlan, PodEviction, Policy, PolicySet, PolicyTally,
    RejectedPod, RolloutPermit, RolloutStage, has_startup_taint, is_released, policies_delete_rejected_pods,
    policy_daemonset_name, policy_missing, policy_status, removal_paced, runs_discovery,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource as _;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

/// The caches and everything that is derived from them.
#[derive(Debug)]
pub struct ClusterIndex {
    objects: Objects,
    daemonsets: DaemonSets,
    outcomes: OutcomeIndex,
    /// Reason for which the API server refused the last write, by node.
    refusals: HashMap<String, String>,
    /// `metadata.uid` of the node that a write under way was planned for, by name.
    writing: HashMap<String, String>,
    /// Nodes whose last write failed: time has gone by since they were counted.
    failed: HashSet<String>,
    /// Policies whose rollouts may grant more turns.
    rollouts_to_advance: BTreeSet<String>,
    evictions: PendingEvictions,
    drains: PendingDrains,
    /// Nodes that changed since their last plan.
    changed: HashSet<String>,
    sweep: Sweep,
    expected: ExpectedNodes,
    previews: PreviewPasses,
    /// True once all caches were compared with the policies for the first time: changes of policies are edits from then
    /// on.
    has_compared: bool,
    /// True once this process leads. Nothing is planned before.
    is_leading: bool,
}

impl ClusterIndex {
    /// An empty index. `pods` says how agents run; nodes get fact labels about their GPUs if `gpu_labels` says so.
    pub fn new(pods: AgentPodSettings, gpu_labels: bool) -> Self {
        Self {
            objects: Objects::new(gpu_labels, pods.allowed.clone(), pods.paths.companion_roots.clone()),
            daemonsets: DaemonSets::new(pods),
            outcomes: OutcomeIndex::default(),
            refusals: HashMap::new(),
            writing: HashMap::new(),
            failed: HashSet::new(),
            rollouts_to_advance: BTreeSet::new(),
            evictions: PendingEvictions::default(),
            drains: PendingDrains::default(),
            changed: HashSet::new(),
            sweep: Sweep::default(),
            expected: ExpectedNodes::default(),
            previews: PreviewPasses::default(),
            has_compared: false,
            is_leading: false,
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
                if had_synced && is_page {
                    // The policies themselves may come later.
                    let changed = deltas.iter().filter(|delta| !same_node(delta));
                    let nodes = changed.filter_map(|delta| delta.after.as_deref());
                    let found = self.objects.find_removals_on(nodes, now);
                    self.queue_removals(found, now, effects);
                }
                self.nodes_changed(&deltas, node_class, now, effects);
            }
            IndexMessage::GpuNodes(update) => {
                let deltas = self.objects.gpu_nodes.apply_watch(update);
                self.gpu_nodes_changed(&deltas, gpu_node_class, now, effects);
            }
            IndexMessage::DaemonSets(update) => {
                for name in self.daemonsets.apply_watch(update, now) {
                    self.observe_agents(&name, now, effects);
                    effects.queue(WorkKey::DaemonSet(name));
                }
                let is_new = |policy: &str| self.objects.is_gone(policy) && !self.objects.removals.contains(policy);
                if had_synced && self.daemonsets.policies().any(is_new) {
                    self.find_removals(&BTreeSet::new(), now, effects);
                }
            }
            IndexMessage::ResourceSlices(update) => self.slices_changed(update, now, effects),
            IndexMessage::Written(object) => self.apply_written(object, now, effects),
            IndexMessage::Finished(write) => self.apply_finished(write, now, effects),
            IndexMessage::PodsReviewed { node, reviewed } => {
                self.objects.set_reviewed(&node, reviewed);
                self.drains.put(&node, PendingDrain::default());
                self.mark(&node, WorkClass::Urgent, now, effects);
            }
            IndexMessage::Drained { node, drain } => {
                self.objects.set_drained(&node, drain);
                // If a taint still evicts pods, somebody has to look again.
                self.drains.put(&node, PendingDrain::default());
                self.mark(&node, WorkClass::Urgent, now, effects);
            }
        }
        if !had_synced && self.has_synced() {
            // Nobody saw what was deleted before.
            self.find_removals(&BTreeSet::new(), now, effects);
            self.has_compared = true;
        }
    }

    fn apply_written(&mut self, object: WrittenObject, now: Timestamp, effects: &mut Effects) {
        match object {
            WrittenObject::Node(node) => {
                let delta = self.objects.nodes.apply_write(*node, WriteKind::Update);
                self.nodes_changed(delta.as_slice(), |_, _| WorkClass::Ordinary, now, effects);
            }
            WrittenObject::DeletedNode { name, version } => {
                let delta = self.objects.nodes.apply_delete(&name, &version);
                self.nodes_changed(delta.as_slice(), |_, _| WorkClass::Ordinary, now, effects);
            }
            WrittenObject::GpuNode(gpu_node, kind) => {
                let delta = self.objects.gpu_nodes.apply_write(*gpu_node, kind);
                self.gpu_nodes_changed(delta.as_slice(), |_| WorkClass::Ordinary, now, effects);
            }
            WrittenObject::DeletedGpuNode { name, version } => {
                let delta = self.objects.gpu_nodes.apply_delete(&name, &version);
                self.gpu_nodes_changed(delta.as_slice(), |_| WorkClass::Ordinary, now, effects);
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
    /// where the object changed meanwhile. The result of a write for an earlier node says nothing about a later one of
    /// its name.
    fn apply_finished(&mut self, FinishedWrite { key, result }: FinishedWrite, now: Timestamp, effects: &mut Effects) {
        if let WorkKey::Node(name) = &key {
            self.expected.remove(name);
            let uid = self.objects.nodes.get(name).map(|facts| &facts.uid);
            if self.writing.remove(name).is_some_and(|planned| Some(&planned) != uid) {
                return;
            }
        }
        let refusal = match result {
            WriteResult::Accepted => None,
            WriteResult::Refused(refusal) => Some(refusal),
            WriteResult::Conflict | WriteResult::Failed => {
                if let WorkKey::Node(name) = key {
                    self.failed.insert(name);
                }
                return;
            }
        };
        match key {
            WorkKey::Node(name) => self.set_node_refusal(name, refusal, now, effects),
            WorkKey::DaemonSet(name) => self.set_daemonset_refusal(&name, refusal.as_deref(), effects),
            // Sweeps and passes write nothing.
            WorkKey::PolicyStatus(_) | WorkKey::Removal(_) | WorkKey::Sweep | WorkKey::Previews => {}
        }
    }

    /// A node that cannot be written gives its permits to others, so that no rollout waits for it.
    fn set_node_refusal(&mut self, name: String, refusal: Option<String>, now: Timestamp, effects: &mut Effects) {
        let is_refused = refusal.is_some();
        if is_refused && let Some((policy, rollout)) = self.outcomes.rollout_of(&name) {
            rollout.return_permit(&name);
            self.rollouts_to_advance.insert(policy.to_owned());
        }
        if is_refused {
            let policies = self.outcomes.return_taint_permits(&name);
            self.rollouts_to_advance.extend(policies);
        }
        if self.refusals.get(&name) != refusal.as_ref() {
            match refusal {
                Some(refusal) => drop(self.refusals.insert(name.clone(), refusal)),
                None => drop(self.refusals.remove(&name)),
            }
            // Counts at once: after a failure the next try is some time away. A write that it finds is not lost.
            let plan = self.plan(&name, now, effects);
            if plan.is_some_and(|plan| plan.has_work()) {
                effects.queue(WorkKey::Node(name.clone()));
            }
        }
        self.advance_rollouts(effects);
        if is_refused {
            // The queue retries by itself.
            effects.drop_now(&WorkKey::Node(name));
        }
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
        let edited: Vec<_> = deltas.iter().filter(|policy| !same_policy(policy)).collect();
        if edited.is_empty() && knew_set {
            return;
        }
        self.objects.rebuild_set();
        // Nodes keep what these wrote, whatever mode they come back in.
        let departing = self.objects.removals.policies();
        // The first list is no edit.
        if self.has_compared {
            let may_be_gone = !knew_set || !deleted.is_empty() || edited.iter().any(|policy| comes_or_goes(policy));
            if may_be_gone || !departing.is_empty() {
                self.find_removals(deleted, now, effects);
            }
        }
        if self.is_leading {
            self.policies_edited(&edited, &departing, knew_set, now, effects);
        }
    }

    /// Begins a sweep, and a pass for each policy in mode Preview that was edited: it changes no node.
    fn policies_edited(
        &mut self,
        edited: &[&ObjectDelta<GpuNodePolicy>],
        departing: &[String],
        knew_set: bool,
        now: Timestamp,
        effects: &mut Effects,
    ) {
        for policy in edited {
            let uid = |policy: &Option<Arc<GpuNodePolicy>>| policy.as_ref().map(|policy| policy.metadata.uid.clone());
            let previewed = policy.after.as_ref().filter(|after| is_preview(Some(after)));
            if previewed.is_none() || uid(&policy.before) != uid(&policy.after) {
                self.previews.forget(&policy.name);
            }
            if let Some(after) = previewed {
                self.previews.edit(&policy.name, after.metadata.generation);
                effects.queue(WorkKey::Previews);
            }
        }
        let may_write = |policy: &&&ObjectDelta<GpuNodePolicy>| {
            departing.contains(&policy.name)
                || !(is_preview(policy.before.as_ref()) && is_preview(policy.after.as_ref()))
        };
        let names: BTreeSet<String> = edited
            .iter()
            .filter(may_write)
            .map(|policy| policy.name.clone())
            .collect();
        if names.is_empty() && knew_set {
            return;
        }
        let of_rollouts = edited
            .iter()
            .filter(|policy| names.contains(&policy.name) && changes_rollouts(policy));
        let edits = self.sweep.edit(&names, now);
        edits.of_rollouts.extend(of_rollouts.map(|policy| policy.name.clone()));
        edits.may_be_others |= !knew_set;
        effects.queue(WorkKey::Sweep);
    }

    /// Begins one sweep with all edits that came since the last one: each looks at every node.
    fn begin_edits(&mut self, now: Timestamp, effects: &mut Effects) {
        let edits = self.sweep.begin(self.nodes_to_plan());
        for policy in edits.policies.keys() {
            self.outcomes.await_plans(policy);
        }
        self.hold_rollouts(&edits);
        self.begin_sweep(now, effects);
        self.advance_rollouts(effects);
    }

    /// Lets rollouts wait for the plans of those of their nodes whose stages an edit may change; for all of their nodes where
    /// others than the known policies may have changed.
    fn hold_rollouts(&mut self, edits: &NewEdits) {
        let Self {
            objects,
            outcomes,
            sweep,
            ..
        } = self;
        let edited = edits.of_rollouts.iter();
        let edited: Vec<_> = edited.map(|name| (name.as_str(), objects.policy(name))).collect();
        if edited.is_empty() && !edits.may_be_others {
            return;
        }
        for (node, statuses) in outcomes.policies_by_node() {
            // Where it had an outcome, the last plan of the node was made with it.
            let concerns = |(name, spec): &(&str, Option<&Policy>)| {
                statuses.iter().any(|(policy, _)| **policy == **name) || objects.may_concern(name, *spec, node)
            };
            if edits.may_be_others || edited.iter().any(concerns) {
                sweep.hold(node, statuses.iter().map(|(policy, _)| policy));
            }
        }
    }

    /// Returns the nodes that exist, and those that are counted and gone.
    fn nodes_to_plan(&self) -> Vec<String> {
        let nodes = &self.objects.nodes;
        let gone = self.outcomes.nodes().filter(|name| nodes.get(name).is_none());
        nodes.names().into_iter().chain(gone.map(str::to_owned)).collect()
    }

    fn begin_sweep(&mut self, now: Timestamp, effects: &mut Effects) {
        effects.queue(WorkKey::Sweep);
        if let Some(at) = self.previews.change_fleet(now) {
            effects.queue_at(WorkKey::Previews, at);
        }
        // There may be no node.
        if let Some(progress) = self.sweep.progress() {
            self.sweep_advanced(progress, effects);
        }
    }

    /// Goes on with everything that waited for the plans of all nodes.
    fn sweep_advanced(&mut self, progress: SweepProgress, effects: &mut Effects) {
        let mut statuses = progress.policies;
        if progress.is_first_over {
            self.queue_daemonsets(effects);
            statuses = self.objects.policies.names();
        }
        for policy in statuses {
            effects.queue(WorkKey::PolicyStatus(policy.clone()));
            self.rollouts_to_advance.insert(policy);
        }
        if progress.is_over {
            let objects = &self.objects;
            self.outcomes.retain(|name| objects.policy(name).is_some());
            let policies = self.objects.set().iter().map(|policy| policy.name.clone());
            self.rollouts_to_advance.extend(policies);
        }
        self.advance_rollouts(effects);
    }

    /// Queues the nodes that changed, unless they are as their own writes leave them.
    fn nodes_changed(
        &mut self,
        deltas: &[ObjectDelta<NodeFacts>],
        class: impl Fn(&PolicySet, &ObjectDelta<NodeFacts>) -> WorkClass,
        now: Timestamp,
        effects: &mut Effects,
    ) {
        for delta in deltas {
            let ObjectDelta { name, before, after } = delta;
            if matches!((before, after), (Some(before), Some(after)) if before.is_same_but_version(after)) {
                continue;
            }
            let stays = |before: &Arc<NodeFacts>| after.as_ref().is_some_and(|after| after.uid == before.uid);
            if before.as_ref().is_some_and(|before| !stays(before)) {
                self.forget_node(name, now, effects);
            }
            match after.as_ref().and_then(|after| self.expected.take(after)) {
                // The next plan counts, if one is due.
                Some(_) if self.is_plan_due(name) => {}
                Some(statuses) => {
                    self.observe_discovery(name, effects);
                    self.count(name, statuses, now, effects);
                    self.advance_rollouts(effects);
                }
                None => {
                    let class = class(self.objects.set(), delta);
                    self.mark(name, class, now, effects);
                }
            }
        }
    }

    /// Forgets a node that is gone. Another one of its name may be there already and has nothing to do with it.
    fn forget_node(&mut self, name: &str, now: Timestamp, effects: &mut Effects) {
        self.refusals.remove(name);
        self.failed.remove(name);
        self.expected.remove(name);
        self.objects.forget_node(name);
        self.drains.put(name, PendingDrain::default());
        self.evictions.put(name, BTreeMap::new());
        effects.forgotten.push(WorkKey::Node(name.to_owned()));
        self.count(name, PolicyNodeStatuses::new(), now, effects);
    }

    /// Queues the nodes whose `GpuNode` changed. The absence of a `GpuNode` counts from here on.
    fn gpu_nodes_changed(
        &mut self,
        deltas: &[ObjectDelta<GpuNodeFacts>],
        class: impl Fn(&ObjectDelta<GpuNodeFacts>) -> WorkClass,
        now: Timestamp,
        effects: &mut Effects,
    ) {
        for delta in deltas {
            let unchanged = matches!(
                (&delta.before, &delta.after),
                (Some(before), Some(after)) if before.is_same_but_version(after)
            );
            if !unchanged {
                self.objects.observe_absence(&delta.name, now);
                self.mark(&delta.name, class(delta), now, effects);
            }
        }
    }

    /// Queues a node that changed, on the process that leads: its plan is made once, when its key has its turn.
    fn mark(&mut self, name: &str, class: WorkClass, now: Timestamp, effects: &mut Effects) {
        if !self.is_leading {
            return;
        }
        self.changed.insert(name.to_owned());
        effects.queue_as(class, WorkKey::Node(name.to_owned()));
        if let Some(at) = self.previews.change_fleet(now) {
            effects.queue_at(WorkKey::Previews, at);
        }
    }

    /// True if a node, or a policy, changed since the last plan of the node.
    pub fn is_plan_due(&self, name: &str) -> bool {
        self.changed.contains(name) || self.sweep.is_waiting(name)
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
            self.mark(&node, WorkClass::Urgent, now, effects);
        }
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

    /// Grants turns in the rollouts that may go on: not before each node that a policy counts is planned with the
    /// present specs, so that the order of the plans does not matter. Others go on with the plan of the last such node.
    fn advance_rollouts(&mut self, effects: &mut Effects) {
        let rollouts = std::mem::take(&mut self.rollouts_to_advance);
        let (held, ready): (_, BTreeSet<_>) = rollouts
            .into_iter()
            .partition(|policy| self.sweep.holds_rollouts(policy));
        self.rollouts_to_advance = held;
        for name in ready {
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
        let found = self.objects.find_removals(deleted, self.daemonsets.policies(), now);
        self.queue_removals(found, now, effects);
    }

    fn queue_removals(&self, policies: Vec<String>, now: Timestamp, effects: &mut Effects) {
        for policy in policies {
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
            self.mark(&node, WorkClass::Ordinary, now, effects);
        }
    }

    /// Plans one node, as before its permit in a rollout, and counts the result.
    fn plan(&mut self, name: &str, now: Timestamp, effects: &mut Effects) -> Option<NodePlan> {
        self.changed.remove(name);
        self.expected.remove(name);
        self.observe_discovery(name, effects);
        self.observe_selection(name, now);
        self.objects.observe_absence(name, now);
        let plan = self.objects.plan(RolloutPermit::Withheld, &BTreeSet::new(), name, now);
        self.count_plan(name, plan.as_ref(), now, effects);
        if let Some(progress) = self.sweep.planned(name) {
            self.sweep_advanced(progress, effects);
        }
        plan
    }

    /// Observes whether discovery is down on a node; its DaemonSet leaves room for that.
    fn observe_discovery(&mut self, name: &str, effects: &mut Effects) {
        let facts = self.objects.nodes.get(name);
        let is_down = facts.is_some_and(|facts| !facts.ready && runs_discovery(facts));
        if self.daemonsets.set_discovery_down(name, is_down) {
            effects.queue(WorkKey::DaemonSet(DISCOVERY_NAME.to_owned()));
        }
    }

    /// Counts what a plan leads to; `None` for a node that does not exist.
    fn count_plan(&mut self, name: &str, plan: Option<&NodePlan>, now: Timestamp, effects: &mut Effects) {
        let Some(plan) = plan else {
            return self.forget_node(name, now, effects);
        };
        let evictions = self.objects.evictions(name, plan);
        effects.evictions.extend(self.evictions.put(name, evictions));
        let drain = PendingDrain {
            taints: plan.drain.clone(),
            review: plan.drain_work.review.clone(),
        };
        if self.drains.put(name, drain) {
            effects.drains.push(name.to_owned());
        }
        if plan.is_settled() {
            self.refusals.remove(name);
        }
        let statuses = plan.policy_statuses_after(self.refusals.get(name).map(String::as_str));
        self.count(name, statuses, now, effects);
        effects.recheck(name, plan);
    }

    /// Observes which policies no longer select a node by its labels. A grace begins where the node changed: the policy
    /// counted it before. On a process that begins to lead, the status of the policy tells whether its spec is the one
    /// that matched.
    fn observe_selection(&mut self, name: &str, now: Timestamp) {
        let Self {
            objects,
            outcomes,
            sweep,
            ..
        } = self;
        let is_first = sweep.is_first_plan(name);
        objects.observe_selection(name, now, |policy, is_observed| {
            let matched = if is_first {
                is_observed
            } else {
                outcomes.counts(name, &policy.name)
            };
            matched && !sweep.is_edited(&policy.name, name)
        });
    }

    fn count(&mut self, node: &str, statuses: PolicyNodeStatuses, now: Timestamp, effects: &mut Effects) {
        // The leader before has told it.
        let is_told = self.sweep.is_first_plan(node);
        for OutcomeChange { policy, event, left } in self.outcomes.put(node, statuses) {
            if let Some(object) = self.objects.announced_policy(&policy).filter(|_| !is_told) {
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
            // The nodes that are down, or not waited for, are not known. The end of the sweep queues it.
            WorkKey::DaemonSet(name) if self.sweep.is_first() && self.daemonsets.is_behind(name) => None,
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
            WorkKey::Sweep => {
                self.advance_sweep(now, effects);
                None
            }
            WorkKey::Previews => {
                self.advance_previews(now, effects);
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
                if let Some(hold) = self.sweep.status_hold(name, now) {
                    if let StatusHold::Until(at) = hold {
                        effects.queue_at(key.clone(), at);
                    }
                    return None;
                }
                self.queue_at_deadline(name, now, effects);
                let write = self.policy_status_write(name, now)?;
                // Nobody knows if it is Ready before every node is planned. The end of the sweep queues it.
                let ready = ConditionType::Ready.find(&write.status.conditions);
                let is_early = self.sweep.awaits_plans(name) && ready.is_some_and(|ready| ready.status == "True");
                (!is_early).then(|| PlannedWrite::PolicyStatus(Box::new(write)))
            }
        }
    }

    /// Begins the sweep with edits that came since, or queues its next nodes.
    fn advance_sweep(&mut self, now: Timestamp, effects: &mut Effects) {
        if self.sweep.has_new_edits() {
            return self.begin_edits(now, effects);
        }
        let nodes = self.sweep.next_slice();
        if nodes.is_empty() {
            return;
        }
        for node in nodes {
            effects.queue(WorkKey::Node(node));
        }
        effects.queue(WorkKey::Sweep);
    }

    /// Computes the next previews.
    fn advance_previews(&mut self, now: Timestamp, effects: &mut Effects) {
        let objects = &self.objects;
        if let Some(at) = self.previews.begin(|| objects.nodes.names(), now) {
            return effects.queue_at(WorkKey::Previews, at);
        }
        let (policies, nodes) = self.previews.next_slice();
        for node in nodes {
            let statuses = self.objects.previews(&policies, &node, now);
            self.previews.count(&node, statuses);
        }
        let Some(policies) = self.previews.end(now) else {
            if !policies.is_empty() {
                effects.queue(WorkKey::Previews);
            }
            return;
        };
        for policy in policies {
            effects.queue(WorkKey::PolicyStatus(policy));
        }
        if let Some(at) = self.previews.next(now) {
            effects.queue_at(WorkKey::Previews, at);
        }
    }

    /// Plans a node that has a permit of a rollout, if nothing about it changed since its last plan: that one says what
    /// it counts as. The node counts as changing from here on. Returns nothing where it has to be planned without the
    /// permit.
    fn permitted_plan(&mut self, name: &str, now: Timestamp, effects: &mut Effects) -> Option<NodePlan> {
        if self.is_plan_due(name) {
            return None;
        }
        let taint_permits = self.outcomes.taint_permits(name);
        let rollout = self.outcomes.rollout_of(name);
        let granting = rollout.filter(|(_, rollout)| rollout.is_granted(name));
        let granting = granting.map(|(policy, _)| policy.to_owned());
        let permit = match &granting {
            Some(_) => RolloutPermit::Granted,
            None if taint_permits.is_empty() => return None,
            None => RolloutPermit::Withheld,
        };
        let plan = self.objects.plan(permit, &taint_permits, name, now)?;
        // The time that went by may have changed the stages.
        let is_pending =
            granting.is_none() || (plan.stage == Some(RolloutStage::Pending) && plan.governing == granting);
        let is_stepping = |policy: &String| plan.taint_stages.get(policy) == Some(&RolloutStage::Stepping);
        if !is_pending || !taint_permits.iter().all(is_stepping) {
            return None;
        }
        if granting.is_some()
            && let Some((_, rollout)) = self.outcomes.rollout_of(name)
        {
            rollout.use_permit(name);
        }
        self.outcomes.use_taint_permits(name, &taint_permits);
        // The queue has forgotten the moment with this turn of the node.
        effects.recheck(name, &plan);
        Some(plan)
    }

    /// Plans a node, counts it where it changed, and returns its write.
    fn node_write(&mut self, name: &str, now: Timestamp, effects: &mut Effects) -> Option<NodeWrite> {
        let is_retry = self.failed.remove(name);
        let plan = if !is_retry && let Some(plan) = self.permitted_plan(name, now, effects) {
            plan
        } else {
            let plan = self.plan(name, now, effects);
            // Also after a node is gone, whose turn is free.
            self.advance_rollouts(effects);
            let plan = plan?;
            self.permitted_plan(name, now, effects).unwrap_or(plan)
        };
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
        self.expected.put(name, &plan);
        if !plan.has_work() {
            return None;
        }
        let uid = self.objects.nodes.get(name)?.uid.clone();
        self.writing.insert(name.to_owned(), uid);
        Some(NodeWrite {
            patch: plan.patch,
            interventions: plan.interventions,
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
        // A preview has no result before the end of its first pass.
        let tally = match self.tally(policy) {
            None if policy.mode == PolicyMode::Preview => return None,
            tally => tally.unwrap_or(&no_nodes),
        };
        let mut status = policy_status(policy, tally, &agents, object.status.as_ref(), now);
        if policy.mode == PolicyMode::Preview
            && let Some(result) = self.previews.result(name)
        {
            // The spec may have changed since the pass began. Nothing is told twice about an earlier one.
            let is_told = object
                .status
                .as_ref()
                .is_some_and(|status| status.observed_generation == result.generation);
            if result.generation != policy.generation && is_told {
                return None;
            }
            status.set_generation(result.generation);
        }
        (object.status.as_ref() != Some(&status)).then(|| PolicyStatusWrite {
            policy: object.clone(),
            status,
        })
    }

    fn tally(&self, policy: &Policy) -> Option<&PolicyTally> {
        if policy.mode == PolicyMode::Preview {
            self.previews.result(&policy.name).map(|result| &result.tally)
        } else {
            self.outcomes.tally(&policy.name)
        }
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

    /// Begins to lead: plans every node in a sweep, and queues everything that could need a write. The statuses follow
    /// once every node is planned.
    pub fn lead(&mut self, now: Timestamp, effects: &mut Effects) {
        self.is_leading = true;
        self.evictions.clear();
        self.drains.clear();
        for policy in self.objects.removals.policies() {
            // The leader before has reached some of the nodes.
            self.objects.retain_removal(&policy);
            effects.queue(WorkKey::Removal(policy));
        }
        self.queue_daemonsets(effects);
        for name in self.objects.unreadable_policies() {
            effects.queue(WorkKey::PolicyStatus(name.clone()));
        }
        for policy in self.objects.previewed() {
            self.previews.edit(&policy.name, policy.generation);
            effects.queue(WorkKey::Previews);
        }
        self.sweep.begin_first(self.objects.nodes.names());
        self.begin_sweep(now, effects);
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
            cache_sizes: self.cache_sizes(),
            sweep_nodes: self.sweep.waiting(),
        }
    }

    fn queue_daemonsets(&self, effects: &mut Effects) {
        let live_or_always = self.daemonsets.names().into_iter().chain(ALWAYS.map(str::to_owned));
        let policies = self.objects.policies.names().into_iter();
        let of_policies = policies.map(|name| policy_daemonset_name(&name));
        let names: BTreeSet<String> = live_or_always.chain(of_policies).collect();
        for name in names {
            effects.queue(WorkKey::DaemonSet(name));
        }
    }

    /// Returns the counts of nodes of each policy, by name.
    pub fn node_counts(&self) -> Vec<(String, NodeCounts)> {
        let counts = |policy: &Policy| self.tally(policy).map(PolicyTally::counts).unwrap_or_default();
        let policies = self.objects.set().iter();
        policies.map(|policy| (policy.name.clone(), counts(policy))).collect()
    }

    /// Returns the number of objects of each cache, by plural name of the resource.
    fn cache_sizes(&self) -> Vec<(&'static str, usize)> {
        vec![
            ("nodes", self.objects.nodes.size()),
            ("gpunodes", self.objects.gpu_nodes.size()),
            (
                "gpunodepolicies",
                self.objects.policies.size() + self.unreadable_policies(),
            ),
            ("daemonsets", self.daemonsets.size()),
            ("resourceslices", self.objects.dra_nodes.size()),
        ]
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

    /// Returns why somebody has to look at the pods of a node; `None` if nobody has to.
    pub fn drain(&self, node: &str) -> Option<&PendingDrain> {
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

    /// Returns the policy that wants this rejected pod to be deleted.
    pub fn deleting_policy(&self, pod: &RejectedPod, now: Timestamp) -> Option<&str> {
        self.objects.deleting_policy(pod, now)
    }

    /// Returns a reference to a policy, for events.
    pub fn policy_reference(&self, name: &str) -> Option<ObjectReference> {
        Some(self.objects.policies.get(name)?.object_ref(&()))
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

/// True if a policy is new, gone, or on its way to be.
fn comes_or_goes(delta: &ObjectDelta<GpuNodePolicy>) -> bool {
    let (Some(before), Some(after)) = (&delta.before, &delta.after) else {
        return true;
    };
    before.metadata.deletion_timestamp != after.metadata.deletion_timestamp
}

/// True if an edit of a policy may change the stages of nodes in the rollouts of other policies: it has, or had, a
/// device plugin or taints, or holds whole nodes. Labels change no stage; no policy selects by them.
fn changes_rollouts(delta: &ObjectDelta<GpuNodePolicy>) -> bool {
    let mut specs = [&delta.before, &delta.after].into_iter().flatten().map(|it| &it.spec);
    specs.any(|spec| {
        let has_taints = !spec.taints.is_empty() || spec.startup_taint.is_some() || spec.unhealthy_taint.is_some();
        spec.device_plugin.is_some() || has_taints || spec.mode() == PolicyMode::Paused
    })
}

/// True for a policy in mode Preview, and for one that does not exist: neither writes to a node.
fn is_preview(policy: Option<&Arc<GpuNodePolicy>>) -> bool {
    policy.is_none_or(|policy| policy.spec.mode() == PolicyMode::Preview)
}

/// Returns the class of a change of a Node: people wait for a node that joins or comes back, for taints, and for what they ask of
/// its agent. Labels may change on all nodes at once.
fn node_class(policies: &PolicySet, delta: &ObjectDelta<NodeFacts>) -> WorkClass {
    let (Some(before), Some(after)) = (&delta.before, &delta.after) else {
        return WorkClass::Urgent;
    };
    // What the scheduler knows changes with each configuration, and ends a startup taint.
    let may_end_startup = before.allocatable != after.allocatable && has_startup_taint(policies, after);
    let is_same = (&before.uid, &before.taints, before.ready, before.ready_since)
        == (&after.uid, &after.taints, after.ready, after.ready_since)
        && (&before.boot, &before.recovered) == (&after.boot, &after.recovered)
        && is_released(before) == is_released(after);
    if is_same && !may_end_startup {
        WorkClass::Ordinary
    } else {
        WorkClass::Urgent
    }
}

/// Returns the class of a change of a `GpuNode`: people wait for what follows from its GPUs, their health and the first
/// report. An agent's progress with a configuration, or with a MIG layout, is part of a change of the fleet.
fn gpu_node_class(delta: &ObjectDelta<GpuNodeFacts>) -> WorkClass {
    let is_approved = delta
        .before
        .as_ref()
        .is_some_and(|before| before.unfinished_approval().is_some());
    let is_same = match (status_of(delta.before.as_ref()), status_of(delta.after.as_ref())) {
        (Some(before), Some(after)) => {
            same_gpus(&before.gpus, &after.gpus, is_approved) && before.agent.is_some() == after.agent.is_some()
        }
        (before, after) => delta.before.is_some() && delta.after.is_some() && before.is_none() && after.is_none(),
    };
    if is_same {
        WorkClass::Ordinary
    } else {
        WorkClass::Urgent
    }
}

/// True if GPUs differ in their progress towards their MIG layouts alone; during an approved change also in what that changes.
fn same_gpus(before: &[GpuDevice], after: &[GpuDevice], is_approved: bool) -> bool {
    let without_progress = |gpu: &GpuDevice| {
        let mut gpu = gpu.clone();
        gpu.mig = None;
        if is_approved {
            (gpu.mig_mode, gpu.mig_devices) = (None, Vec::new());
            // Facts about a GPU without MIG devices have its place for a name.
            gpu.uuid = String::new();
        }
        gpu
    };
    before == after
        || before
            .iter()
            .map(without_progress)
            .eq(after.iter().map(without_progress))
}

fn status_of(gpu_node: Option<&Arc<GpuNodeFacts>>) -> Option<&GpuNodeStatus> {
    gpu_node?.status.as_deref()
}

/// True if nothing that the planner reads changed.
fn same_node(delta: &ObjectDelta<NodeFacts>) -> bool {
    matches!((&delta.before, &delta.after), (Some(before), Some(after)) if before.is_same_but_version(after))
}

#[cfg(test)]
mod tests;
