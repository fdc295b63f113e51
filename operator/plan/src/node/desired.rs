//! Everything that the matching policies want of a node together, and the plan that follows.

use crate::{
    fact_labels::{NodeFactLabels, is_fact_label},
    gpu_node::{
        change::GpuNodeChange,
        conditions::conditions_change,
        configuration::{configuration_change, ended_drain, is_mig_managed, is_writable, needs_mps, waiting_devices},
        drain::{drain_work, reconfiguring_taint, wants_taint},
        gpu_refusal::gpu_refusal,
        mig_progress::awaits_approval,
        progress::{agent_outcome, rollout_stage},
        progress_messages::NODE_NOT_READY,
        requests::unreadable_annotation,
    },
    input::{
        context::NodeContext,
        facts::NodeFacts,
        gpu_node_facts::GpuNodeFacts,
        policies::{Policy, PolicySet, configured_resources},
        selection_grace::recorded_deselections,
        visible_labels::is_own_label,
    },
    node::{
        claim::claim,
        compose::{
            ComposedKeys, DesiredValue, Disagreement, OverriddenKey, governing, overridden_plugins, sum_of_overridden,
        },
        labels::{desired_labels, label_conflicts},
        owner_conditions::{conflict_condition, fact_labels_condition},
        paced_taints::PacedTaints,
        patches::NodeClaims,
        permit::RolloutPermit,
        plan::NodePlan,
        settled::SettledNode,
        stale_resources::{StaleResources, find_stale_resources},
        startup_taint::{DevicePromise, StartupTaints},
        taints::{current_taints, desired_taints, taint_conflicts},
        unhealthy_taint::{has_rule, unhealthy_taints},
    },
    outcome::PolicyOutcome,
    record::{node_record::NodeRecord, resource_use::ResourceUse},
    rollout_stage::RolloutStage,
    taint::TaintKey,
    time::earliest,
};
use gpunode_crds::{POLICY_LABEL_PREFIX, PolicyMode, RECONFIGURING_TAINT, Reason, UNHEALTHY_TAINT, policy_label};
use jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet};

/// Everything that the matching policies want of a node.
pub struct DesiredNode<'a> {
    matched: Vec<&'a Policy>,
    governing: Option<&'a Policy>,
    stage: Option<RolloutStage>,
    /// Moment at which `stage` ends by itself.
    stage_ends: Option<Timestamp>,
    /// True if the node keeps its present configuration, or MIG layout, for lack of a permit.
    waits: bool,
    /// True if the node has a permit to change.
    is_permitted: bool,
    /// Labels by key.
    pub labels: BTreeMap<String, DesiredValue>,
    /// Labels that stay as they are.
    pub held_labels: BTreeSet<String>,
    /// Facts that do not fit into labels, in words.
    unfit_facts: Vec<String>,
    taints: BTreeMap<TaintKey, DesiredValue>,
    /// Taints that stay as they are.
    held_taints: BTreeSet<TaintKey>,
    /// Reasons for it, and for a configuration that stays.
    disagreements: Vec<Disagreement>,
    /// Keys that policies of higher priority decide.
    overridden: Vec<OverriddenKey>,
    startup: StartupTaints,
    /// Moment from which the health of the GPUs calls for another taint.
    unhealthy_from: Option<Timestamp>,
    /// Policy that cannot be read, or is departing, and whose configuration the node keeps.
    kept_policy: Option<&'a str>,
    /// True if a policy that cannot be read, or is departing, wrote something on the node.
    keeps_resources: bool,
    /// Taints that evict pods.
    paced: PacedTaints,
    /// Policies whose values wait because a missing policy may come back.
    held_back: BTreeSet<String>,
}

impl<'a> DesiredNode<'a> {
    /// Puts together what the matching policies want, as far as the permit goes. Where they disagree, a key or the configuration
    /// stays as it is.
    pub fn new(
        matched: Vec<&'a Policy>,
        policies: &'a PolicySet,
        permit: RolloutPermit,
        record: &NodeRecord,
        context: NodeContext<'a>,
    ) -> Self {
        let configured = configured_policy(policies, context);
        let (governing, dispute) = match governing(&matched) {
            Ok(governing) => (governing, None),
            Err(dispute) => (None, Some(dispute)),
        };
        let kept = policies
            .unreadable_policy_of(context.configuration())
            .or_else(|| departing_policy(context).filter(|policy| context.is_missing(policy)));
        let governing = governing.filter(|_| kept.is_none());
        // A policy that is gone for good holds up no other.
        let departing = departing_policy(context).filter(|_| governing.is_none() && dispute.is_none());
        let kept_policy = kept.or(departing);
        let stage = governing.and_then(|policy| rollout_stage(policy, context));
        // Nodes that are down get a configuration once they are back: many that vanish for a moment must not change together.
        let is_down = context.is_down() && context.configuration().is_some();
        let waits = permit == RolloutPermit::Withheld && (is_down || matches!(stage, Some((RolloutStage::Pending, _))));
        // Another policy replaces the agent, so the new agent comes with the configuration.
        let keeps_agent = waits || governing.is_some_and(|policy| !is_writable(policy, context));
        let placed = if keeps_agent {
            // The agent of a policy whose image is refused goes to no further node: its DaemonSet keeps the image that it has.
            // Beside mig-manager nothing is served.
            configured.or(governing.filter(|policy| !is_image_refused(policy) && !is_mig_managed(policy, context.node)))
        } else {
            governing
        };
        let serving = serving_policy(policies, context.gpu_node).filter(|_| permit != RolloutPermit::Simulated);
        // An agent that is there already stays until the turn of the node brings its configuration.
        let is_there = |policy: &&Policy| context.node.labels.contains_key(&policy_label(&policy.name));
        let coming = governing.filter(|policy| keeps_agent && permit != RolloutPermit::Simulated && is_there(policy));
        let promise = match (governing, configured) {
            (Some(policy), _) => DevicePromise::Of(policy),
            (None, Some(policy)) if dispute.is_some() => DevicePromise::Of(policy),
            (None, None) if dispute.is_some() || kept_policy.is_some() => DevicePromise::Unknown,
            (None, _) => DevicePromise::None,
        };
        let startup = StartupTaints::new(policies, &matched, promise, permit, record, context);
        let (unhealthy, unhealthy_from) = unhealthy_taints(&matched, permit, context);
        let begins_drain = permit == RolloutPermit::Granted
            && matches!(stage, Some((RolloutStage::Pending, _)))
            && !awaits_approval(context);
        let reconfiguring = governing.filter(|policy| {
            let has_taint = record.taints.owned.contains_key(&reconfiguring_taint());
            permit != RolloutPermit::Simulated && wants_taint(policy, has_taint, begins_drain, context)
        });
        // Taints in a policy's spec win over those that come and go.
        let ComposedKeys {
            desired,
            disputed,
            overridden,
        } = desired_taints(&matched);
        let mut held_taints: BTreeSet<TaintKey> = disputed.keys().cloned().collect();
        let mut taints = startup.desired.clone();
        taints.extend(unhealthy);
        taints.extend(reconfiguring.map(|policy| {
            let value = DesiredValue::by_gpunode("", Some(policy));
            (reconfiguring_taint(), value)
        }));
        taints.retain(|id, _| !disputed.contains_key(id));
        taints.extend(desired);
        let may_come_back = record.policies.iter().any(|policy| context.is_missing(policy));
        let mut held_back = BTreeSet::new();
        if may_come_back {
            held_back.extend(keep_recorded(&mut taints, &record.taints.owned));
        }
        let without_pace = || {
            let is_ours = |id: &TaintKey| is_temporary(id, &startup);
            let current = current_taints(context.node);
            claim(&current, &record.taints, &taints, &held_taints, is_ours, context.now)
        };
        let paced_taints = PacedTaints::new(&matched, &taints, without_pace, permit, record, context);
        taints.retain(|id, _| !paced_taints.held.contains(id));
        held_taints.extend(paced_taints.held.iter().cloned());
        let mut labels = desired_labels(&matched, placed, [serving, coming], needs_mps(placed, context));
        if may_come_back {
            held_back.extend(keep_recorded(&mut labels.desired, &record.labels.owned));
        }
        let mut held_labels = labels.held();
        if dispute.is_some() {
            // The agent stays with its configuration.
            let own = context.node.labels.iter().map(|(key, _)| key.to_owned());
            held_labels.extend(own.filter(|key| is_agent_label(key)));
            labels.desired.retain(|key, _| !is_agent_label(key));
        }
        let overridden = labels.overridden.into_iter().chain(overridden);
        let overridden = overridden.chain(overridden_plugins(&matched)).collect();
        let disagreements = dispute.into_iter().chain(labels.disputed.into_values());
        let (stage, stage_ends) = stage.unzip();
        Self {
            governing,
            stage,
            stage_ends: stage_ends.flatten(),
            waits,
            is_permitted: permit == RolloutPermit::Granted,
            labels: labels.desired,
            held_labels,
            unfit_facts: Vec::new(),
            taints,
            held_taints,
            disagreements: disagreements.chain(disputed.into_values()).collect(),
            overridden,
            startup,
            unhealthy_from,
            kept_policy,
            keeps_resources: false,
            paced: paced_taints,
            held_back,
            matched,
        }
    }

    /// Adds GPU fact labels; a policy's value wins.
    pub fn with_fact_labels(mut self, facts: NodeFactLabels) -> Self {
        self.unfit_facts = facts.unfit;
        let fitting = facts.labels.into_iter();
        for (key, value) in fitting.filter(|(key, _)| !self.held_labels.contains(key)) {
            self.labels
                .entry(key)
                .or_insert_with(|| DesiredValue::by_gpunode(&value, None));
        }
        self
    }

    /// Keeps the keys in the record that a policy that cannot be read, or is departing, may want: those that no other policy wants.
    pub fn with_kept_keys(mut self, policies: &PolicySet, record: &NodeRecord, context: NodeContext<'_>) -> Self {
        let is_kept = |name: &&String| policies.is_unreadable(name) || context.is_departing(name);
        let owners = record.policies.iter().filter(is_kept);
        let owners: Vec<String> = owners.cloned().collect();
        self.keeps_resources = !owners.is_empty();
        if owners.is_empty() {
            return self;
        }
        // Nobody knows whether the policy has a startup taint.
        self.startup.started = self.startup.started.or_else(|| record.started.clone());
        // Labels of agents stay with a configuration that stays; otherwise only those of the agents of these policies.
        let is_owner = |policy: &str| owners.iter().any(|owner| owner == policy);
        let agents = record.labels.owned.keys();
        let mut agents = agents.filter_map(|key| key.strip_prefix(POLICY_LABEL_PREFIX));
        let keeps_agent = self.kept_policy.is_some() || agents.any(is_owner);
        for (key, value) in record
            .labels
            .owned
            .iter()
            .filter(|(key, _)| !self.held_labels.contains(*key))
        {
            let of_policy = key
                .strip_prefix(POLICY_LABEL_PREFIX)
                .filter(|_| self.kept_policy.is_none());
            if is_agent_label(key) && !of_policy.map_or(keeps_agent, is_owner) {
                continue;
            }
            let was_taken_over = record.labels.before.contains_key(key);
            let kept = || DesiredValue::kept(value, &owners, was_taken_over);
            self.labels.entry(key.clone()).or_insert_with(kept);
        }
        for (key, value) in record
            .taints
            .owned
            .iter()
            .filter(|(id, _)| !self.held_taints.contains(*id))
        {
            // What comes and goes ends as the policies that can be read decide.
            if self.startup.has_ended(key) || has_rule(&self.matched, key) || *key == reconfiguring_taint() {
                continue;
            }
            let was_taken_over = record.taints.before.contains_key(key);
            let kept = || DesiredValue::kept(value, &owners, was_taken_over);
            self.taints.entry(key.clone()).or_insert_with(kept);
        }
        self
    }

    /// Returns the policies that own something on the node once the plan is carried out.
    pub fn owners(&self, record: &NodeRecord, context: NodeContext<'_>) -> BTreeSet<String> {
        let claims = self.claims(record, context);
        claims.labels.owners.into_iter().chain(claims.taints.owners).collect()
    }

    /// Returns the policies that leave the node, with their generations and the moments.
    fn leaving(&self) -> BTreeMap<String, (Option<i64>, Timestamp)> {
        let leaving = self
            .matched
            .iter()
            .filter_map(|policy| Some((policy, policy.leaves_at?)));
        leaving
            .map(|(policy, end)| (policy.name.clone(), (policy.generation, end)))
            .collect()
    }

    /// Returns true if policies disagree about the configuration.
    fn is_disputed(&self) -> bool {
        self.disagreements.iter().any(Disagreement::is_about_configuration)
    }

    fn claims<'b>(&'b self, record: &'b NodeRecord, context: NodeContext<'_>) -> NodeClaims<'b> {
        let NodeContext { node, now, .. } = context;
        let context_policy = context.configuration().map(|config| &config.policy);
        let mut labels = claim(
            &node.labels.to_map(),
            &record.labels,
            &self.labels,
            &self.held_labels,
            |key| is_own_label(key),
            now,
        );
        let is_ours = |id: &TaintKey| is_temporary(id, &self.startup);
        let taints = claim(
            &current_taints(node),
            &record.taints,
            &self.taints,
            &self.held_taints,
            is_ours,
            now,
        );
        // Policies that disagree, or wait, keep what they have.
        let is_held = |policy: &&String| {
            let takes_part = self.disagreements.iter().any(|it| it.values.contains_key(*policy));
            let waits = self.paced.waiting.contains(*policy) || self.held_back.contains(*policy);
            takes_part || waits || (self.is_disputed() && context_policy == Some(*policy))
        };
        labels.owners.extend(record.policies.iter().filter(is_held).cloned());
        let evicting = self.paced.recorded(record, &taints.entries.owned, now);
        NodeClaims {
            labels,
            taints,
            evicting,
            started: self.startup.started.as_ref(),
            unknown: &record.unknown,
            deselected: recorded_deselections(&self.leaving(), now).0,
        }
    }

    /// Returns the plan, and the node once the plan is carried out.
    pub fn plan(self, record: &NodeRecord, context: NodeContext<'_>) -> (NodePlan, NodeFacts) {
        let NodeContext {
            node, gpu_node, now, ..
        } = context;
        let claims = self.claims(record, context);
        let stale = find_stale_resources(
            &record.resources,
            &self.resources(record, context),
            &node.recorded_resources,
            now,
        );
        // Fact labels, which no policy wants, conflict with nobody.
        let conflicts = label_conflicts(node, &claims.labels).filter(|conflict| !conflict.policies.is_empty());
        let is_fact = |key: &String| {
            self.labels
                .get(key)
                .map_or_else(|| is_fact_label(key), |value| value.policies.is_empty())
        };
        // Policies are updating where keys other than fact labels change.
        let changes_keys = !claims.labels.changes(&record.labels).all(is_fact)
            || claims.taints.changes(&record.taints).next().is_some();
        let new_record = claims.record_after(stale.record.clone());
        let patch = claims.node_patch(node, new_record.as_deref());
        let change = if self.is_disputed() || self.kept_policy.is_some() {
            ended_drain(context)
        } else {
            configuration_change(self.governing, context, self.stage.as_ref(), self.is_permitted)
        };
        let urgent_recheck = earliest([self.startup.recheck, self.unhealthy_from]);
        let rechecks = [
            urgent_recheck,
            self.stage_ends,
            self.paced.recheck,
            claims.labels.recheck,
            claims.taints.recheck,
            stale.recheck,
            recorded_deselections(&self.leaving(), now).1,
        ];
        // Policies that leave disagree about nothing that somebody has to settle.
        let leaving = self.leaving();
        let is_leaving = |it: &&Disagreement| it.values.keys().all(|name| leaving.contains_key(name));
        let disagreements = self.disagreements.iter().filter(|it| !is_leaving(it));
        let mut plan = NodePlan {
            matched: self.matched.iter().map(|policy| policy.name.clone()).collect(),
            governing: self.governing.map(|policy| policy.name.clone()),
            conflicts: conflicts.chain(taint_conflicts(node, &claims.taints)).collect(),
            disagreements: disagreements.cloned().collect(),
            leaving: leaving.into_iter().map(|(name, (_, end))| (name, end)).collect(),
            // One patch at a time: each changes the version that guards the other.
            status_patch: claims.status_patch(&stale, context).filter(|_| patch.is_none()),
            interventions: claims.interventions(&self.labels, &self.taints),
            patch,
            gpu_node: if self.waits && change.gives_configuration() {
                ended_drain(context)
            } else {
                change
            },
            stage: self.stage.clone(),
            waits: self.stage == Some(RolloutStage::Pending) && self.waits,
            taint_stages: self.paced.stages.clone(),
            drain: self.paced.drain.clone(),
            recheck: earliest(rechecks),
            urgent_recheck,
            waiting: self.governing.map(|_| waiting_devices(context)).unwrap_or_default(),
            gpu_refusal: self.governing.and_then(|policy| gpu_refusal(policy, context)),
            ..NodePlan::default()
        };
        if plan.gpu_node == GpuNodeChange::None {
            plan.drain_work = self
                .governing
                .map(|policy| drain_work(policy, context))
                .unwrap_or_default();
            let conditions = fact_labels_condition(node, &self.labels, &claims.labels, &self.unfit_facts)
                .into_iter()
                .chain(conflict_condition(&plan.conflicts, &plan.disagreements))
                .chain(unreadable_annotation(node))
                .collect();
            plan.conditions = conditions_change(gpu_node, conditions, &[], now);
        }
        for policy in &self.matched {
            let (outcome, recheck) = self.outcome(policy, &plan, changes_keys, context);
            plan.outcomes.insert(policy.name.clone(), outcome);
            let lost = sum_of_overridden(policy, &self.overridden).filter(|_| policy.leaves_at.is_none());
            plan.overridden.extend(lost.map(|lost| (policy.name.clone(), lost)));
            plan.recheck = earliest([plan.recheck, recheck]);
        }
        let after = claims.facts_after(node, new_record);
        // What the kubelet has of another resource is not known before the node comes back.
        let has_same_resources = stale.record.keys().eq(record.resources.keys());
        if has_same_resources {
            plan.settled = self.settled(&plan, &stale, &after, context);
        }
        (plan, after)
    }

    /// Returns the node `after` its patch, with the outcomes then; none where something may be left to do.
    fn settled(
        &self,
        plan: &NodePlan,
        stale: &StaleResources,
        after: &NodeFacts,
        context: NodeContext<'_>,
    ) -> Option<Box<SettledNode>> {
        let is_last = plan.patch.is_some()
            && plan.recheck.is_none()
            && stale.remove.is_empty()
            && plan.conflicts.is_empty()
            && plan.disagreements.is_empty()
            && plan.leaving.is_empty()
            && plan.taint_stages.is_empty()
            && plan.drain.is_empty()
            && self.held_back.is_empty()
            && self.kept_policy.is_none()
            && !self.keeps_resources;
        if !is_last {
            return None;
        }
        let mut outcomes = BTreeMap::new();
        for policy in &self.matched {
            let (outcome, recheck) = self.outcome(policy, plan, false, context);
            if recheck.is_some() {
                return None;
            }
            outcomes.insert(policy.name.clone(), outcome);
        }
        let facts = after.clone();
        Some(Box::new(SettledNode { facts, outcomes }))
    }

    /// Returns the resources that the governing policy may advertise, and those that the agent still reports. A reported name
    /// counts where the node's configuration yields it or the record has it already: an agent cannot fill the record.
    /// A policy that cannot be read may advertise all that are in the record.
    fn resources(&self, record: &NodeRecord, context: NodeContext<'_>) -> BTreeSet<String> {
        let status = context.status();
        let plugin = self.governing.and_then(|policy| policy.device_plugin.as_ref());
        let mut names = plugin.map(|plugin| plugin.resources(status)).unwrap_or_default();
        let reported = status.into_iter().flat_map(|status| &status.resources);
        let (known, unknown): (BTreeSet<_>, BTreeSet<_>) = reported
            .map(|resource| resource.name.clone())
            .filter(|name| !names.contains(name))
            .partition(|name| record.resources.contains_key(name));
        names.extend(known);
        if self.is_disputed() {
            let in_use = record.resources.iter().filter(|(_, of)| **of == ResourceUse::InUse);
            names.extend(in_use.map(|(name, _)| name.clone()));
        }
        if !unknown.is_empty() {
            let yielded = context
                .configuration()
                .map(|config| configured_resources(config, status));
            names.extend(yielded.unwrap_or_default().intersection(&unknown).cloned());
        }
        if self.keeps_resources {
            names.extend(record.resources.keys().cloned());
        }
        names
    }

    fn outcome(
        &self,
        policy: &Policy,
        plan: &NodePlan,
        changes_keys: bool,
        context: NodeContext<'_>,
    ) -> (PolicyOutcome, Option<Timestamp>) {
        let governs = self.governing.is_some_and(|governing| governing.name == policy.name);
        let disagreements = plan.disagreements_of(&policy.name);
        if !disagreements.is_empty() {
            let outcome = PolicyOutcome::conflicted(Reason::EqualPriority, disagreements.join("; "));
            return (outcome, None);
        }
        let conflicts: Vec<_> = plan
            .conflicts
            .iter()
            .filter(|conflict| conflict.policies.contains(&policy.name))
            .map(ToString::to_string)
            .collect();
        if !conflicts.is_empty() {
            let outcome = PolicyOutcome::conflicted(Reason::KeyOwnedByAnother, conflicts.join("; "));
            return (outcome, None);
        }
        if let Some(refusal) = &policy.refusal {
            return (PolicyOutcome::failed(Reason::InvalidSpec, refusal), None);
        }
        let is_configured = matches!(plan.gpu_node, GpuNodeChange::None | GpuNodeChange::Step { .. });
        let awaits_taint = self.paced.waiting.contains(&policy.name);
        let is_waiting = (awaits_taint && context.node.ready) || (governs && (plan.waits || !is_configured));
        if changes_keys || is_waiting || self.held_back.contains(&policy.name) {
            return (PolicyOutcome::Updating, None);
        }
        if awaits_taint {
            // Nobody waits for a node that is down.
            return (PolicyOutcome::failed(Reason::NodeNotReady, NODE_NOT_READY), None);
        }
        if governs {
            agent_outcome(policy, context)
        } else if let Some(kept_policy) = self.kept_policy.filter(|_| would_govern(policy, &self.matched)) {
            if context.is_missing(kept_policy) {
                return (PolicyOutcome::Updating, None);
            }
            let message = keeps_configuration_of(kept_policy);
            (PolicyOutcome::conflicted(Reason::Unreadable, message), None)
        } else {
            (PolicyOutcome::Ready, None)
        }
    }
}

/// Returns true if the policy wants the configuration that would govern a node that these policies match.
fn would_govern(policy: &Policy, matched: &[&Policy]) -> bool {
    let first = matched.iter().find(|policy| policy.device_plugin.is_some());
    first.is_some_and(|first| first.device_plugin == policy.device_plugin)
}

fn keeps_configuration_of(policy: &str) -> String {
    format!(
        "the node keeps the configuration of policy {policy}, which this operator cannot read; install an operator of its \
         version, or delete the policy"
    )
}

/// Returns true for taints that only gpunode uses.
fn is_temporary(id: &TaintKey, startup: &StartupTaints) -> bool {
    id.key == UNHEALTHY_TAINT || id.key == RECONFIGURING_TAINT || startup.is_ours(id)
}

/// Returns the policy whose configuration the node has, if it is gone and its removal has not reached the node.
fn departing_policy(context: NodeContext<'_>) -> Option<&str> {
    let policy = context.configuration()?.policy.as_str();
    context.is_departing(policy).then_some(policy)
}

fn is_image_refused(policy: &Policy) -> bool {
    let plugin = policy.device_plugin.as_ref();
    plugin.is_some_and(|plugin| plugin.is_image_refused)
}

/// Drops keys that have another value in the record, and returns the policies that want them: what is there wins while a missing
/// policy may come back.
fn keep_recorded<K: Ord>(desired: &mut BTreeMap<K, DesiredValue>, recorded: &BTreeMap<K, String>) -> BTreeSet<String> {
    let mut held_back = BTreeSet::new();
    desired.retain(|key, wanted| {
        let stays = recorded.get(key).is_none_or(|value| *value == wanted.value);
        if !stays {
            held_back.extend(std::mem::take(&mut wanted.policies));
        }
        stays
    });
    held_back
}

/// Returns true for labels that place agents and daemons.
fn is_agent_label(key: &str) -> bool {
    is_own_label(key) && !is_fact_label(key)
}

/// Returns the policy whose configuration the node has, where its DaemonSet is still there.
fn configured_policy<'a>(policies: &'a PolicySet, context: NodeContext<'_>) -> Option<&'a Policy> {
    policies
        .get(&context.configuration()?.policy)
        .filter(|policy| policy.mode == PolicyMode::Enforce && policy.device_plugin.is_some())
}

/// Returns the policy whose agent is registered on the node, where its DaemonSet is still there. That agent leaves once
/// another policy's agent takes over.
fn serving_policy<'a>(policies: &'a PolicySet, gpu_node: Option<&GpuNodeFacts>) -> Option<&'a Policy> {
    let agent = gpu_node?.status()?.agent.as_ref()?;
    let policy = policies.get(agent.policy.as_ref()?)?;
    (policy.mode != PolicyMode::Preview && policy.device_plugin.is_some()).then_some(policy)
}
