//! The pace of taints with the effect NoExecute, which evict pods: those that a policy newly wants reach `maxUnavailable` nodes at
//! a time.
//!
//! | taint | node | stage of the node for the policy |
//! |---|---|---|
//! | new | joined lately, after the policy changed | `Done`: it gets the taint at once |
//! | new | has a permit, or evicts pods for the policy already | `Stepping`: it gets the taint |
//! | new | Ready, without a permit | `Pending`: it keeps what it has |
//! | new | down, without a permit | `Outside`: it gets the taint at its turn, once it is back |
//! | there, and evicts pods | any | `Stepping`, until none is left that does not tolerate it, or the deadline |
//! | there | any | `Done` |
//!
//! A taint that gpunode wrote before and somebody removed is not new. A taint that waits keeps those of the same key with another
//! effect in place: the node is open to nobody new meanwhile.

use crate::{
    input::{context::NodeContext, policies::Policy},
    node::{claim::KeyClaims, compose::DesiredValue, permit::RolloutPermit},
    node_drain::NodeDrain,
    record::node_record::NodeRecord,
    rollout_stage::RolloutStage,
    taint::{Taint, TaintKey},
    time::earliest,
};
use gpunode_crds::{TaintEffect, UNHEALTHY_TAINT};
use jiff::{SignedDuration, Timestamp};
use std::collections::{BTreeMap, BTreeSet};

/// Age up to which a node counts as new: it runs few pods yet.
const NEW_NODE: SignedDuration = SignedDuration::from_mins(10);

/// Taints with the effect NoExecute of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PacedTaints {
    /// Taints that wait for a permit, and those that stay for as long.
    pub held: BTreeSet<TaintKey>,
    /// Policies that want a taint that waits.
    pub waiting: BTreeSet<String>,
    /// Stage of the node for each policy with such taints, by name.
    pub stages: BTreeMap<String, RolloutStage>,
    /// Taints that evict pods.
    pub drain: NodeDrain,
    /// Moment at which the deadline of one of them ends.
    pub recheck: Option<Timestamp>,
    /// Taints that are added now and evict pods from then on.
    added: BTreeSet<TaintKey>,
}

impl PacedTaints {
    /// Decides about the taints with the effect NoExecute among `desired`. `claims` says what becomes of all taints without a pace.
    pub fn new(
        matched: &[&Policy],
        desired: &BTreeMap<TaintKey, DesiredValue>,
        claims: impl FnOnce() -> KeyClaims<TaintKey>,
        permit: RolloutPermit,
        record: &NodeRecord,
        context: NodeContext<'_>,
    ) -> Self {
        let evicting = desired.iter();
        let evicting: Vec<_> = evicting
            .filter_map(|(id, value)| EvictingTaint::of(id, value, matched))
            .collect();
        let mut paced = Self::default();
        if evicting.is_empty() {
            return paced;
        }
        let claims = claims();
        let is_new = |taint: &EvictingTaint<'_>| {
            let value = Some(&taint.value.value);
            claims.set.get(taint.id) == value && record.taints.owned.get(taint.id) != value
        };
        let (new, there): (Vec<_>, Vec<_>) = evicting.into_iter().partition(is_new);
        for taint in &there {
            paced.count_present(taint, record, context);
        }
        for taint in &new {
            paced.count_new(taint, desired, permit, record, context);
        }
        paced
    }

    fn count_present(&mut self, taint: &EvictingTaint<'_>, record: &NodeRecord, context: NodeContext<'_>) {
        let EvictingTaint { id, value, policy } = *taint;
        let since = record.evicting.get(&id.to_string()).copied();
        let taint = Taint {
            id: id.clone(),
            value: value.value.clone(),
        };
        let ends = |since| eviction_ends(since, &taint, policy, context);
        if let Some((since, end)) = since.and_then(|since| Some((since, ends(since)?))) {
            self.drain.0.insert(taint, since);
            self.recheck = earliest([self.recheck, Some(end)]);
            self.stages.insert(policy.name.clone(), RolloutStage::Stepping);
        } else {
            self.count_done(policy);
        }
    }

    fn count_new(
        &mut self,
        taint: &EvictingTaint<'_>,
        desired: &BTreeMap<TaintKey, DesiredValue>,
        permit: RolloutPermit,
        record: &NodeRecord,
        context: NodeContext<'_>,
    ) {
        let EvictingTaint { id, value, policy } = *taint;
        if permit == RolloutPermit::Simulated || joined_lately(policy, context) {
            return self.count_done(policy);
        }
        let is_stepping = self.stages.get(&policy.name) == Some(&RolloutStage::Stepping);
        if is_stepping || context.may_evict(&policy.name) {
            self.added.insert(id.clone());
            self.stages.insert(policy.name.clone(), RolloutStage::Stepping);
            return;
        }
        let of_key = record.taints.owned.keys().filter(|other| other.key == id.key);
        let kept = of_key.filter(|other| !desired.contains_key(*other));
        self.held.extend(kept.chain([id]).cloned());
        self.waiting.extend(value.policies.iter().cloned());
        let stage = if context.node.ready {
            RolloutStage::Pending
        } else {
            RolloutStage::Outside
        };
        self.stages.insert(policy.name.clone(), stage);
    }

    fn count_done(&mut self, policy: &Policy) {
        self.stages.entry(policy.name.clone()).or_insert(RolloutStage::Done);
    }

    /// Returns the seconds in which taints were added, for the record; `owned` are the taints in the record afterwards.
    pub fn recorded(
        &self,
        record: &NodeRecord,
        owned: &BTreeMap<TaintKey, String>,
        now: Timestamp,
    ) -> BTreeMap<String, i64> {
        let known = |id: &TaintKey| {
            let id = id.to_string();
            let since = *record.evicting.get(&id)?;
            Some((id, since))
        };
        let mut recorded = BTreeMap::new();
        // Most nodes have none.
        if !record.evicting.is_empty() {
            recorded.extend(owned.keys().filter_map(known));
        }
        let added = self.added.iter().filter(|id| owned.contains_key(*id));
        recorded.extend(added.map(|id| (id.to_string(), now.as_second())));
        recorded
    }
}

/// A taint with the effect NoExecute, and the policy that decides about it.
#[derive(Clone, Copy)]
struct EvictingTaint<'a> {
    id: &'a TaintKey,
    value: &'a DesiredValue,
    policy: &'a Policy,
}

impl<'a> EvictingTaint<'a> {
    /// None for other effects, and for the taint of unhealthy nodes, which has a rule of its own.
    fn of(id: &'a TaintKey, value: &'a DesiredValue, matched: &[&'a Policy]) -> Option<Self> {
        if id.effect != TaintEffect::NoExecute.as_str() || id.key == UNHEALTHY_TAINT {
            return None;
        }
        let first = value.policies.first()?;
        let policy = matched.iter().find(|policy| policy.name == *first)?;
        Some(Self { id, value, policy })
    }
}

/// Returns true if a node joined a short time ago, and the policy has not changed since.
fn joined_lately(policy: &Policy, context: NodeContext<'_>) -> bool {
    let is_young = |created: Timestamp| context.now.duration_since(created) < NEW_NODE;
    let is_younger = |created: Timestamp| policy.changed.is_some_and(|changed| changed < created);
    context
        .node
        .created
        .is_some_and(|created| is_young(created) && is_younger(created))
}

/// Returns the moment until which the policy waits for pods that a taint evicts; none once it no longer waits.
fn eviction_ends(since: i64, taint: &Taint, policy: &Policy, context: NodeContext<'_>) -> Option<Timestamp> {
    let NodeContext { now, drained, .. } = context;
    let allowed = policy.pace.progress_deadline();
    // Ignores a second further ahead than the time allowed: a clock was wrong.
    let since_time = Timestamp::from_second(since)
        .ok()
        .filter(|since| since.duration_since(now) <= allowed)?;
    let end = since_time.checked_add(allowed).ok().filter(|end| now < *end)?;
    let is_drained = drained.is_some_and(|drained| drained.0.get(taint) == Some(&since));
    (!is_drained).then_some(end)
}
