//! Everything about one node: what it is to look like, what has to be written, and what became of each policy on it.

use crate::{
    agent_config::{self, GpuNodeChange},
    claim::{Claims, claim, released, retaken},
    compose::{Disagreement, Wanted, governing},
    conditions::{self, ConditionsChange, Verdict, foreign_facts, foreign_keys},
    conflict::Conflict,
    facts::{NodeFacts, Taint, TaintKey},
    features::{gpu_labels, is_fact},
    labels::{label_conflicts, patch_labels, wanted_labels},
    outcome::{Outcome, Standing},
    owned::Record,
    patch::PatchBuilder,
    policies::{Policy, PolicySet},
    preview,
    progress::{agent_outcome, outcome_in_force, stage},
    retired::{Retirement, Served, retire, status_patch},
    rollout::Stage,
    select::{VisibleLabels, is_effect},
    taints::{current_taints, patch_taints, taint_conflicts, wanted_taints},
};
use gpunode_crds::{
    ConditionType, GpuDevice, GpuNode, IGNORE_LABEL, Mode, NodePreview, NodeWaiting, OWNED_ANNOTATION, Reason,
};
use jiff::Timestamp;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

/// Why a node is left exactly as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hold {
    /// A person labelled it `gpunode.dev/ignore`. Policies do not count it.
    Ignored,
    /// The record of what gpunode wrote cannot be read, for the reason given.
    RecordUnreadable(String),
    /// Policies of equal priority disagree.
    Disagreement(Disagreement),
    /// The policy of this name has something there, and is in mode Paused.
    Paused(String),
}

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ignored => write!(f, "the node is labelled {IGNORE_LABEL} and left as it is"),
            Self::RecordUnreadable(error) => write!(f, "{error}; the node is left as it is until then"),
            Self::Disagreement(Disagreement { about, values }) => {
                let policies: Vec<_> = values.keys().map(String::as_str).collect();
                let wishes: Vec<_> = values.iter().map(|(name, value)| format!("{name} wants \"{value}\"")).collect();
                write!(
                    f,
                    "policies {} have equal priority and disagree about {about}: {}; the node is left as it is until their \
                     priorities differ",
                    policies.join(", "),
                    wishes.join(", ")
                )
            }
            Self::Paused(policy) => {
                write!(
                    f,
                    "policy {policy} is paused and governs the node, which stays as it is until that policy goes on or is deleted"
                )
            }
        }
    }
}

/// Whether a node that works may change to another configuration now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It may.
    Now,
    /// Others come first: it keeps its configuration, and the agent that it has.
    Later,
}

/// The plan for one node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodePlan {
    /// Why nothing is to be written at all, if so.
    pub hold: Option<Hold>,
    /// The enforced policies that match, by falling priority.
    pub matched: Vec<String>,
    /// The policy whose device plugin runs on the node.
    pub governing: Option<String>,
    /// One JSON patch that moves labels, taints and the record together; it begins with a test on resourceVersion. `None`
    /// where the node is as it is to be.
    pub patch: Option<json_patch::Patch>,
    /// One JSON patch of the node's status that removes the keys of resources that nobody serves.
    pub status_patch: Option<json_patch::Patch>,
    /// What is to be written about the `GpuNode`.
    pub gpu_node: GpuNodeChange,
    /// What is to be written in its status, once nothing else is to be written about it.
    pub conditions: Option<ConditionsChange>,
    /// Keys that stay as somebody else wants them.
    pub conflicts: Vec<Conflict>,
    /// What became of each policy that matches, also of those in mode Preview.
    pub outcomes: BTreeMap<String, Outcome>,
    /// What each matching policy in mode Preview would change.
    pub previews: BTreeMap<String, NodePreview>,
    /// Devices whose change to the governing policy's configuration waits for their holders.
    pub waiting: Vec<NodeWaiting>,
    /// Where the node is on its way to the governing policy's configuration.
    pub stage: Option<Stage>,
    /// Whether it keeps another configuration only because it is not its turn.
    pub waits: bool,
    /// When to plan again though nothing changed.
    pub recheck: Option<Timestamp>,
}

impl NodePlan {
    /// Whether there is something to write.
    pub fn has_work(&self) -> bool {
        self.patch.is_some()
            || self.status_patch.is_some()
            || self.gpu_node != GpuNodeChange::None
            || self.conditions.is_some()
    }

    /// Whether the node and its `GpuNode` are as they are to be.
    pub fn is_settled(&self) -> bool {
        !self.has_work() && !self.waits
    }

    /// Where each policy stands if writing failed with `error`, if it did: nobody waits for such a node.
    pub fn standings_after(&self, error: Option<&str>) -> BTreeMap<String, Standing> {
        let error = error.filter(|_| !self.is_settled());
        let standing = |(name, outcome): (&String, &Outcome)| {
            let failed = error.filter(|_| *outcome == Outcome::Updating && self.matched.contains(name));
            let outcome = failed.map_or_else(|| outcome.clone(), |error| Outcome::failed(Reason::WriteFailed, error));
            let governs = self.governing.as_ref() == Some(name);
            let waiting = if governs { self.waiting.clone() } else { Vec::new() };
            let stage = self.stage.clone().filter(|_| governs);
            (name.clone(), Standing { outcome, preview: self.previews.get(name).cloned(), waiting, stage })
        };
        self.outcomes.iter().map(standing).collect()
    }
}

/// Plans one node as if it were its turn. `gpu_node` is the object of the same name, where it exists.
pub fn plan_node(policies: &PolicySet, node: &NodeFacts, gpu_node: Option<&GpuNode>, now: Timestamp) -> NodePlan {
    plan_node_at(Turn::Now, policies, node, gpu_node, now)
}

/// Plans one node.
pub fn plan_node_at(
    turn: Turn,
    policies: &PolicySet,
    node: &NodeFacts,
    gpu_node: Option<&GpuNode>,
    now: Timestamp,
) -> NodePlan {
    if node.labels.contains_key(IGNORE_LABEL) {
        return NodePlan { hold: Some(Hold::Ignored), ..NodePlan::default() };
    }
    let (mut plan, after) = plan_with(policies, None, turn, node, gpu_node, now);
    for policy in policies.iter().filter(|policy| policy.mode == Mode::Preview) {
        let (with, changed) = plan_with(policies, Some(policy), Turn::Now, &after, gpu_node, now);
        if !with.matched.contains(&policy.name) {
            continue;
        }
        let (outcome, preview) = preview::effect(policy, &after, &with, &changed);
        plan.outcomes.insert(policy.name.clone(), outcome);
        plan.previews.extend(preview.map(|preview| (policy.name.clone(), preview)));
    }
    plan
}

/// Why a node matches a policy no more, where that is for want of GPUs.
pub fn gpus_missing(
    policies: &PolicySet,
    policy: &str,
    node: &NodeFacts,
    gpu_node: Option<&GpuNode>,
) -> Option<String> {
    let record = Record::read(node.owned.as_deref()).unwrap_or_default();
    policies.get(policy)?.selector.mismatch(VisibleLabels::new(&node.labels, &record.labels), gpus(gpu_node))
}

fn gpus(gpu_node: Option<&GpuNode>) -> &[GpuDevice] {
    gpu_node.and_then(|gpu_node| gpu_node.status.as_ref()).map_or(&[], |status| &status.gpus)
}

/// Plans with the enforced policies and one more, and says what the node looks like once the plan is carried out.
fn plan_with(
    policies: &PolicySet,
    more: Option<&Policy>,
    turn: Turn,
    node: &NodeFacts,
    gpu_node: Option<&GpuNode>,
    now: Timestamp,
) -> (NodePlan, NodeFacts) {
    let takes_part =
        |policy: &&Policy| policy.mode == Mode::Enforce || more.is_some_and(|more| more.name == policy.name);
    let gpus = gpus(gpu_node);
    let matching = |record: &Record| -> Vec<&Policy> {
        let visible = VisibleLabels::new(&node.labels, &record.labels);
        policies.iter().filter(takes_part).filter(|policy| policy.selector.matches(visible, gpus)).collect()
    };
    let mut record = match Record::read(node.owned.as_deref()) {
        Ok(record) => record,
        Err(error) => {
            let hold = Hold::RecordUnreadable(error.to_string());
            let outcome = |message| Outcome::failed(Reason::RecordUnreadable, message);
            return (held(&matching(&Record::default()), hold, outcome), node.clone());
        }
    };
    let is_paused = |policy: &&Policy| policy.mode == Mode::Paused && record.policies.contains(&policy.name);
    let paused: Vec<&Policy> = policies.iter().filter(is_paused).collect();
    if let Some(first) = paused.first() {
        let plan = held_by_pause(first, &paused, &matching(&record), node, gpu_node, now);
        return (plan, node.clone());
    }
    // A key that was ours and that somebody changed becomes visible to selectors, which may make other policies match. Each
    // round a key leaves the record or has what is there now as what was there before, so this ends.
    let wishes = loop {
        let matched = matching(&record);
        let wishes = match Wishes::of(matched, policies, turn, node, gpu_node, now) {
            Ok(wishes) if policies.gpu_labels() => wishes.with(gpu_labels(gpu_node, &record.labels.owned)),
            Ok(wishes) => wishes,
            Err((matched, disagreement)) => {
                let hold = Hold::Disagreement(disagreement);
                let verdict = Verdict {
                    of: ConditionType::Conflict,
                    holds: true,
                    reason: Reason::EqualPriority,
                    message: hold.to_string(),
                };
                let outcome = |message| Outcome::conflicted(Reason::EqualPriority, message);
                let mut plan = held(&matched, hold, outcome);
                plan.conditions = conditions::change(gpu_node, vec![verdict], Some(ConditionType::FactLabels), now);
                return (plan, node.clone());
            }
        };
        let released = released(&node.labels, &record.labels, &wishes.labels);
        let retaken = retaken(&node.labels, &record.labels, &wishes.labels, now);
        if released.is_empty() && retaken.is_empty() {
            break wishes;
        }
        for key in &released {
            record.labels.release(key);
        }
        for (key, actual) in retaken {
            record.labels.was_before(&key, actual);
        }
    };
    wishes.plan(node, &record, gpu_node, now)
}

/// What the matching policies want of a node.
struct Wishes<'a> {
    matched: Vec<&'a Policy>,
    governing: Option<&'a Policy>,
    stage: Option<Stage>,
    /// When `stage` ends by itself.
    stage_ends: Option<Timestamp>,
    /// Whether the node keeps the configuration that it has.
    waits: bool,
    labels: BTreeMap<String, Wanted>,
    taints: BTreeMap<TaintKey, Wanted>,
}

impl<'a> Wishes<'a> {
    fn of(
        matched: Vec<&'a Policy>,
        policies: &'a PolicySet,
        turn: Turn,
        node: &NodeFacts,
        gpu_node: Option<&GpuNode>,
        now: Timestamp,
    ) -> Result<Self, (Vec<&'a Policy>, Disagreement)> {
        let composed = governing(&matched).and_then(|governing| {
            let stage = governing.and_then(|policy| stage(node, policy, gpu_node, now));
            // Nodes that are down get a configuration once they are back: many that vanish for a moment must not change
            // together.
            let is_down = !node.ready && gpu_node.is_some_and(|gpu_node| gpu_node.spec.config.is_some());
            let waits = turn == Turn::Later && (is_down || matches!(stage, Some((Stage::Pending, _))));
            // A change of the policy replaces the agent, so that it comes with the configuration.
            let placed = if waits { running(policies, gpu_node).or(governing) } else { governing };
            let needs_mps = agent_config::needs_mps(placed, gpu_node);
            Ok((governing, stage, waits, wanted_labels(&matched, placed, needs_mps)?, wanted_taints(&matched)?))
        });
        match composed {
            Ok((governing, stage, waits, labels, taints)) => {
                let (stage, stage_ends) = stage.unzip();
                Ok(Self { matched, governing, stage, stage_ends: stage_ends.flatten(), waits, labels, taints })
            }
            Err(disagreement) => Err((matched, disagreement)),
        }
    }

    /// With facts, which any policy may want otherwise.
    fn with(mut self, facts: BTreeMap<String, String>) -> Self {
        for (key, value) in facts {
            self.labels.entry(key).or_insert_with(|| Wanted::by_gpunode(&value, None));
        }
        self
    }

    fn plan(
        self,
        node: &NodeFacts,
        record: &Record,
        gpu_node: Option<&GpuNode>,
        now: Timestamp,
    ) -> (NodePlan, NodeFacts) {
        let labels = claim(&node.labels, &record.labels, &self.labels, |key| is_effect(key), now);
        let taints = claim(&current_taints(node), &record.taints, &self.taints, |_| false, now);
        let retirement = retire(&record.resources, &self.resources(gpu_node), &node.served, now);
        // What no policy wants is a fact.
        let conflicts = label_conflicts(node, &labels).filter(|conflict| !conflict.policies.is_empty());
        let is_fact = |key: &String| self.labels.get(key).map_or_else(|| is_fact(key), |by| by.policies.is_empty());
        let is_written =
            !labels.changes(&record.labels).all(is_fact) || taints.changes(&record.taints).next().is_some();
        let record = record_after(&labels, &taints, retirement.record.clone());
        let after = facts_after(node, &labels, &taints, record.clone());
        let patch = node_patch(node, &labels, &taints, record.as_deref());
        let mut plan = NodePlan {
            matched: names(&self.matched),
            governing: self.governing.map(|policy| policy.name.clone()),
            conflicts: conflicts.chain(taint_conflicts(node, &taints)).collect(),
            // One after the other, since each is refused once the other has happened.
            status_patch: status_patch_of(&retirement, &labels, &taints, node, now).filter(|_| patch.is_none()),
            patch,
            gpu_node: if self.waits && self.governing.is_some() {
                GpuNodeChange::None
            } else {
                agent_config::change(node, self.governing, gpu_node, self.stage.as_ref(), now)
            },
            stage: self.stage.clone(),
            waits: self.stage == Some(Stage::Pending) && self.waits,
            recheck: [self.stage_ends, labels.recheck, taints.recheck, retirement.recheck].into_iter().flatten().min(),
            waiting: self.governing.map(|_| agent_config::waiting(node, gpu_node)).unwrap_or_default(),
            ..NodePlan::default()
        };
        if plan.gpu_node == GpuNodeChange::None {
            let facts = foreign_facts(node, &self.labels, &labels);
            let verdicts = facts.into_iter().chain(foreign_keys(&plan.conflicts)).collect();
            plan.conditions = conditions::change(gpu_node, verdicts, None, now);
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
        let reported = status.into_iter().flat_map(|status| &status.resources).map(|resource| resource.name.clone());
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
    ) -> (Outcome, Option<Timestamp>) {
        let governs = self.governing.is_some_and(|governing| governing.name == policy.name);
        let conflicts: Vec<_> = plan
            .conflicts
            .iter()
            .filter(|conflict| conflict.policies.contains(&policy.name))
            .map(ToString::to_string)
            .collect();
        if !conflicts.is_empty() {
            return (Outcome::conflicted(Reason::KeyOwnedByAnother, conflicts.join("; ")), None);
        }
        if let Some(refusal) = &policy.refusal {
            return (Outcome::failed(Reason::InvalidSpec, refusal), None);
        }
        let is_configured = matches!(plan.gpu_node, GpuNodeChange::None | GpuNodeChange::EndStep { .. });
        if is_written || (governs && (plan.waits || !is_configured)) {
            return (Outcome::Updating, None);
        }
        if governs { agent_outcome(node, policy, gpu_node, now) } else { (Outcome::Ready, None) }
    }
}

/// The policy whose agent has the configuration of the node in force, where its DaemonSet is still there.
fn running<'a>(policies: &'a PolicySet, gpu_node: Option<&GpuNode>) -> Option<&'a Policy> {
    let current = &gpu_node?.spec.config.as_ref()?.policy;
    policies.get(current).filter(|policy| policy.mode == Mode::Enforce && policy.device_plugin.is_some())
}

/// The order of taints means nothing to the planner, so it is not kept here.
fn facts_after(
    node: &NodeFacts,
    labels: &Claims<String>,
    taints: &Claims<TaintKey>,
    record: Option<String>,
) -> NodeFacts {
    let taints_after = taints.applied_to(&current_taints(node)).into_iter();
    NodeFacts {
        labels: labels.applied_to(&node.labels),
        taints: taints_after.map(|(id, value)| Taint { id, value }).collect(),
        owned: record,
        ..node.clone()
    }
}

fn record_after(labels: &Claims<String>, taints: &Claims<TaintKey>, resources: Served) -> Option<String> {
    let policies = labels.owners.union(&taints.owners).cloned().collect();
    Record { labels: labels.entries.clone(), taints: taints.entries.clone(), policies, resources }.write()
}

fn status_patch_of(
    retirement: &Retirement,
    labels: &Claims<String>,
    taints: &Claims<TaintKey>,
    node: &NodeFacts,
    now: Timestamp,
) -> Option<json_patch::Patch> {
    let record = record_after(labels, taints, retirement.record_after(now));
    status_patch(node, &retirement.remove, record.as_deref())
}

fn node_patch(
    node: &NodeFacts,
    labels: &Claims<String>,
    taints: &Claims<TaintKey>,
    record: Option<&str>,
) -> Option<json_patch::Patch> {
    let mut patch = PatchBuilder::guarded_by(&node.resource_version);
    patch_labels(&mut patch, node, labels);
    patch_taints(&mut patch, node, taints);
    match record {
        _ if record == node.owned.as_deref() => {}
        None => patch.remove(&["metadata", "annotations", OWNED_ANNOTATION]),
        Some(text) => {
            if !node.annotated {
                patch.add(&["metadata", "annotations"], serde_json::Map::new());
            }
            patch.add(&["metadata", "annotations", OWNED_ANNOTATION], text);
        }
    }
    patch.build()
}

fn held(matched: &[&Policy], hold: Hold, outcome: impl Fn(String) -> Outcome) -> NodePlan {
    let outcome = outcome(hold.to_string());
    NodePlan {
        hold: Some(hold),
        matched: names(matched),
        outcomes: matched.iter().map(|policy| (policy.name.clone(), outcome.clone())).collect(),
        ..NodePlan::default()
    }
}

/// The plan for a node on which a paused policy has something. It counts there as what it has there.
fn held_by_pause(
    first: &Policy,
    paused: &[&Policy],
    matched: &[&Policy],
    node: &NodeFacts,
    gpu_node: Option<&GpuNode>,
    now: Timestamp,
) -> NodePlan {
    let outcome = |message| Outcome::conflicted(Reason::Paused, message);
    let mut plan = held(matched, Hold::Paused(first.name.clone()), outcome);
    let in_force = gpu_node.and_then(|gpu_node| gpu_node.spec.config.as_ref());
    for policy in paused {
        let governs = in_force.filter(|config| config.policy == policy.name);
        let (outcome, recheck) = governs
            .map_or((Outcome::Ready, None), |config| outcome_in_force(node, policy, &config.hash, gpu_node, now));
        plan.outcomes.insert(policy.name.clone(), outcome);
        plan.recheck = [plan.recheck, recheck].into_iter().flatten().min();
        if governs.is_some() {
            plan.governing = Some(policy.name.clone());
            plan.waiting = agent_config::waiting(node, gpu_node);
        }
    }
    plan
}

fn names(policies: &[&Policy]) -> Vec<String> {
    policies.iter().map(|policy| policy.name.clone()).collect()
}
