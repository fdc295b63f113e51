//! What the policies that match a node want of it together, and what follows from that: the plan for the node.

use crate::{
    fact_labels::is_fact,
    fleet::rollout::RolloutStage,
    gpu_node::conditions::{self, foreign_facts, foreign_keys},
    gpu_node::configuration::{self, GpuNodeChange},
    gpu_node::progress::{agent_outcome, stage},
    gpu_node::requests::{is_released, unreadable},
    input::facts::{NodeFacts, TaintKey},
    input::policies::{Policy, PolicySet},
    input::selectors::is_effect,
    node::claim::{Claims, claim},
    node::compose::{Disagreement, Wanted, governing},
    node::labels::{label_conflicts, wanted_labels},
    node::patches::{facts_after, node_patch, record_after, status_patch_of},
    node::plan::{NodePlan, RolloutPermit},
    node::stale_resources::find_stale_resources,
    node::startup_taint::Startup,
    node::taints::{current_taints, taint_conflicts, wanted_taints},
    node::unhealthy_taint::unhealthy_taints,
    outcome::PolicyOutcome,
    record::Record,
};
use gpunode_crds::{GpuNode, PolicyMode, Reason, UNHEALTHY_TAINT};
use jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet};

/// What the matching policies want of a node.
pub struct Wishes<'a> {
    matched: Vec<&'a Policy>,
    governing: Option<&'a Policy>,
    stage: Option<RolloutStage>,
    /// When `stage` ends by itself.
    stage_ends: Option<Timestamp>,
    /// Whether the node keeps the configuration that it has.
    waits: bool,
    /// Labels by key.
    pub labels: BTreeMap<String, Wanted>,
    taints: BTreeMap<TaintKey, Wanted>,
    startup: Startup,
    /// When it follows from the health of the GPUs that a taint is wanted.
    unhealthy_from: Option<Timestamp>,
}

impl<'a> Wishes<'a> {
    /// Puts together what the policies that match want, as far as it is the node's turn; or where they disagree.
    pub fn of(
        matched: Vec<&'a Policy>,
        policies: &'a PolicySet,
        turn: RolloutPermit,
        node: &NodeFacts,
        record: &Record,
        gpu_node: Option<&GpuNode>,
        now: Timestamp,
    ) -> Result<Self, (Vec<&'a Policy>, Disagreement)> {
        let composed = governing(&matched).and_then(|governing| {
            let stage = governing.and_then(|policy| stage(node, policy, gpu_node, now));
            // Nodes that are down or released get a configuration once they are back: many that vanish for a moment must not change
            // together.
            let is_down =
                (!node.ready || is_released(node)) && gpu_node.is_some_and(|gpu_node| gpu_node.spec.config.is_some());
            let waits =
                turn == RolloutPermit::Withheld && (is_down || matches!(stage, Some((RolloutStage::Pending, _))));
            // A change of the policy replaces the agent, so that it comes with the configuration.
            let stays = waits || governing.is_some_and(|policy| !configuration::is_writable(policy, gpu_node));
            let placed = if stays {
                running(policies, gpu_node).or(governing)
            } else {
                governing
            };
            let serving = serving(policies, gpu_node).filter(|_| turn != RolloutPermit::Simulated);
            let needs_mps = configuration::needs_mps(placed, gpu_node);
            let startup = Startup::of(policies, &matched, governing, turn, node, record, gpu_node, now);
            let (unhealthy, unhealthy_from) = unhealthy_taints(&matched, turn, node, gpu_node, now);
            // What a policy wants in any case comes first.
            let mut taints = startup.wanted.clone();
            taints.extend(unhealthy);
            taints.extend(wanted_taints(&matched)?);
            let labels = wanted_labels(&matched, placed, serving, needs_mps)?;
            let (stage, stage_ends) = stage.unzip();
            let (matched, stage_ends) = (Vec::new(), stage_ends.flatten());
            Ok(Self {
                matched,
                governing,
                stage,
                stage_ends,
                waits,
                labels,
                taints,
                startup,
                unhealthy_from,
            })
        });
        match composed {
            Ok(wishes) => Ok(Self { matched, ..wishes }),
            Err(disagreement) => Err((matched, disagreement)),
        }
    }

    /// With facts, which any policy may want otherwise.
    pub fn with(mut self, facts: BTreeMap<String, String>) -> Self {
        for (key, value) in facts {
            self.labels
                .entry(key)
                .or_insert_with(|| Wanted::by_gpunode(&value, None));
        }
        self
    }

    /// The policies that have something on the node once the plan is carried out.
    pub fn owners(&self, node: &NodeFacts, record: &Record, now: Timestamp) -> BTreeSet<String> {
        let (labels, taints) = self.claims(node, record, now);
        labels.owners.into_iter().chain(taints.owners).collect()
    }

    fn claims(&self, node: &NodeFacts, record: &Record, now: Timestamp) -> (Claims<String>, Claims<TaintKey>) {
        let labels = claim(
            &node.labels.to_map(),
            &record.labels,
            &self.labels,
            |key| is_effect(key),
            now,
        );
        let is_ours = |id: &TaintKey| id.key == UNHEALTHY_TAINT || self.startup.is_ours(id);
        let taints = claim(&current_taints(node), &record.taints, &self.taints, is_ours, now);
        (labels, taints)
    }

    /// The plan, and what the node looks like once it is carried out.
    pub fn plan(
        self,
        node: &NodeFacts,
        record: &Record,
        gpu_node: Option<&GpuNode>,
        now: Timestamp,
    ) -> (NodePlan, NodeFacts) {
        let (labels, taints) = self.claims(node, record, now);
        let retirement = find_stale_resources(&record.resources, &self.resources(gpu_node), &node.served, now);
        // What no policy wants is a fact.
        let conflicts = label_conflicts(node, &labels).filter(|conflict| !conflict.policies.is_empty());
        let is_fact = |key: &String| {
            self.labels
                .get(key)
                .map_or_else(|| is_fact(key), |by| by.policies.is_empty())
        };
        let is_written =
            !labels.changes(&record.labels).all(is_fact) || taints.changes(&record.taints).next().is_some();
        let started = self.startup.started.as_ref();
        let record = record_after(&labels, &taints, started, retirement.record.clone());
        let after = facts_after(node, &labels, &taints, record.clone());
        let patch = node_patch(node, &labels, &taints, record.as_deref());
        let change = configuration::change(node, self.governing, gpu_node, self.stage.as_ref(), now);
        let rechecks = [
            self.stage_ends,
            self.startup.recheck,
            self.unhealthy_from,
            labels.recheck,
            taints.recheck,
            retirement.recheck,
        ];
        let mut plan = NodePlan {
            matched: self.matched.iter().map(|policy| policy.name.clone()).collect(),
            governing: self.governing.map(|policy| policy.name.clone()),
            conflicts: conflicts.chain(taint_conflicts(node, &taints)).collect(),
            // One after the other, since each is refused once the other has happened.
            status_patch: status_patch_of(&retirement, &labels, &taints, started, node, now)
                .filter(|_| patch.is_none()),
            patch,
            gpu_node: if self.waits && change.gives_configuration() {
                GpuNodeChange::None
            } else {
                change
            },
            stage: self.stage.clone(),
            waits: self.stage == Some(RolloutStage::Pending) && self.waits,
            recheck: rechecks.into_iter().flatten().min(),
            waiting: self
                .governing
                .map(|_| configuration::waiting(node, gpu_node))
                .unwrap_or_default(),
            ..NodePlan::default()
        };
        if plan.gpu_node == GpuNodeChange::None {
            let facts = foreign_facts(node, &self.labels, &labels);
            let verdicts = facts
                .into_iter()
                .chain(foreign_keys(&plan.conflicts))
                .chain(unreadable(node))
                .collect();
            plan.conditions = conditions::change(gpu_node, verdicts, &[], now);
        }
        for policy in &self.matched {
            let (outcome, recheck) = self.outcome(policy, &plan, is_written, node, gpu_node, now);
            plan.outcomes.insert(policy.name.clone(), outcome);
            plan.recheck = [plan.recheck, recheck].into_iter().flatten().min();
        }
        (plan, after)
    }

    /// The resources that the node is to have, or that its agent still serves.
    fn resources(&self, gpu_node: Option<&GpuNode>) -> BTreeSet<String> {
        let status = gpu_node.and_then(|gpu_node| gpu_node.status.as_ref());
        let reported = status
            .into_iter()
            .flat_map(|status| &status.resources)
            .map(|resource| resource.name.clone());
        let plugin = self.governing.and_then(|policy| policy.device_plugin.as_ref());
        let mut names = plugin.map(|plugin| plugin.resources(status)).unwrap_or_default();
        names.extend(reported);
        names
    }

    fn outcome(
        &self,
        policy: &Policy,
        plan: &NodePlan,
        is_written: bool,
        node: &NodeFacts,
        gpu_node: Option<&GpuNode>,
        now: Timestamp,
    ) -> (PolicyOutcome, Option<Timestamp>) {
        let governs = self.governing.is_some_and(|governing| governing.name == policy.name);
        let conflicts: Vec<_> = plan
            .conflicts
            .iter()
            .filter(|conflict| conflict.policies.contains(&policy.name))
            .map(ToString::to_string)
            .collect();
        if !conflicts.is_empty() {
            return (
                PolicyOutcome::conflicted(Reason::KeyOwnedByAnother, conflicts.join("; ")),
                None,
            );
        }
        if let Some(refusal) = &policy.refusal {
            return (PolicyOutcome::failed(Reason::InvalidSpec, refusal), None);
        }
        let is_configured = matches!(plan.gpu_node, GpuNodeChange::None | GpuNodeChange::Step { .. });
        if is_written || (governs && (plan.waits || !is_configured)) {
            return (PolicyOutcome::Updating, None);
        }
        if governs {
            agent_outcome(node, policy, gpu_node, now)
        } else {
            (PolicyOutcome::Ready, None)
        }
    }
}

/// The policy whose agent has the configuration of the node in force, where its DaemonSet is still there.
fn running<'a>(policies: &'a PolicySet, gpu_node: Option<&GpuNode>) -> Option<&'a Policy> {
    let current = &gpu_node?.spec.config.as_ref()?.policy;
    policies
        .get(current)
        .filter(|policy| policy.mode == PolicyMode::Enforce && policy.device_plugin.is_some())
}

/// The policy whose agent is registered on the node, where its DaemonSet is still there: it goes once another policy's agent has
/// taken over.
fn serving<'a>(policies: &'a PolicySet, gpu_node: Option<&GpuNode>) -> Option<&'a Policy> {
    let agent = gpu_node?.status.as_ref()?.agent.as_ref()?;
    let policy = policies.get(agent.policy.as_ref()?)?;
    (policy.mode != PolicyMode::Preview && policy.device_plugin.is_some()).then_some(policy)
}
