//! The startup taint: it keeps pods off a node after each boot until every promised device is allocatable. Nodes may join with
//! it (`--register-with-taints`), so gpunode knows it by its key and needs no record.
//!
//! | matching policies | on the node | result |
//! |---|---|---|
//! | want it; not every device was allocatable in this boot | any | set |
//! | want it; every device is allocatable | any | removed, and the boot goes into the record |
//! | do not want it; no agent reported and the node has not been Ready for two minutes yet | present | stays: a policy may come to match |
//! | do not want it otherwise | present | removed |

use crate::{
    gpu_node::progress::is_served,
    input::{
        context::NodeContext,
        policies::{Policy, PolicySet},
    },
    node::{
        compose::{DesiredValue, compose},
        permit::RolloutPermit,
        taints::current_taints,
    },
    record::node_record::NodeRecord,
    taint::TaintKey,
};
use gpunode_crds::{NOT_READY_TAINT, PolicyMode, TaintEffect};
use jiff::{SignedDuration, Timestamp};
use std::collections::{BTreeMap, BTreeSet};

/// Longer than a discovery agent takes to start and to report on a Ready node.
const REPORT_TIMEOUT: SignedDuration = SignedDuration::from_mins(2);

/// Decision about the startup taints of one node.
#[derive(Debug)]
pub struct StartupTaints {
    /// Taints that policies want now.
    pub desired: BTreeMap<TaintKey, DesiredValue>,
    /// Taints that nobody wants and that stay for now.
    lingering: BTreeSet<TaintKey>,
    /// Keys of all startup taints.
    keys: BTreeSet<String>,
    /// Boot that the record names.
    pub started: Option<String>,
    /// Moment to decide again though nothing changed.
    pub recheck: Option<Timestamp>,
}

impl StartupTaints {
    /// Decides about the startup taints of one node.
    pub fn new(
        policies: &PolicySet,
        matched: &[&Policy],
        governing: Option<&Policy>,
        permit: RolloutPermit,
        record: &NodeRecord,
        context: NodeContext<'_>,
    ) -> Self {
        let node = context.node;
        let active = policies.iter().filter(|policy| policy.mode != PolicyMode::Preview);
        let mut keys: BTreeSet<String> = active.filter_map(|policy| policy.startup_taint.clone()).collect();
        keys.insert(NOT_READY_TAINT.to_owned());
        // Without a device plugin, no device is promised.
        let is_desired = governing.is_some() && matched.iter().any(|policy| policy.startup_taint.is_some());
        let has_started = record.started.as_ref() == Some(&node.boot);
        let is_over = |governing| has_started || is_allocatable(governing, context);
        let (started, is_over) = match governing.filter(|_| is_desired) {
            None => (None, true),
            Some(governing) if is_over(governing) => (Some(node.boot.clone()), true),
            Some(_) => (record.started.clone(), false),
        };
        let current = current_taints(node);
        let mut desired = if is_over { BTreeMap::new() } else { desired_by(matched) };
        for (id, desired) in &mut desired {
            // A node may join with any value, which means nothing.
            desired.value = current.get(id).cloned().unwrap_or_default();
        }
        if permit == RolloutPermit::Simulated {
            desired.retain(|id, _| current.contains_key(id));
        }
        // Keeps taints that nobody wants on a node that has just joined: a policy may come to match.
        let until = waits_until(context);
        let mut lingering = BTreeSet::new();
        if !has_started && permit != RolloutPermit::Simulated && (!node.ready || until.is_some()) {
            let unwanted = current
                .keys()
                .filter(|id| is_startup_taint(id, &keys) && !desired.contains_key(id));
            lingering.extend(unwanted.cloned());
        }
        let recheck = until.filter(|_| !lingering.is_empty());
        Self {
            desired,
            lingering,
            keys,
            started,
            recheck,
        }
    }

    /// Returns true for taints that gpunode owns with or without a record.
    pub fn is_ours(&self, id: &TaintKey) -> bool {
        is_startup_taint(id, &self.keys) && !self.lingering.contains(id)
    }
}

/// Returns true for startup taints, given their keys.
fn is_startup_taint(id: &TaintKey, keys: &BTreeSet<String>) -> bool {
    // A policy's own key may be somebody else's with another effect.
    id.key == NOT_READY_TAINT || (id.effect == TaintEffect::NoSchedule.as_str() && keys.contains(&id.key))
}

fn desired_by(matched: &[&Policy]) -> BTreeMap<TaintKey, DesiredValue> {
    let entries = |policy: &Policy| {
        let id = |key: &String| TaintKey {
            key: key.clone(),
            effect: TaintEffect::NoSchedule.as_str().to_owned(),
        };
        policy.startup_taint.iter().map(|key| (id(key), "")).collect::<Vec<_>>()
    };
    // All want the same value, so nobody disagrees.
    compose(matched, entries, |id| format!("taint {id}")).unwrap_or_default()
}

/// Returns true if the node's configuration is in force and the scheduler knows every device that its agent advertises.
fn is_allocatable(governing: &Policy, context: NodeContext<'_>) -> bool {
    let (Some(config), Some(status)) = (context.configuration(), context.status()) else {
        return false;
    };
    let allocatable = |name: &str| context.node.allocatable.get(name).copied().unwrap_or(0);
    let mut promised = status.resources.iter();
    is_served(governing, &config.hash, context)
        && promised.all(|resource| allocatable(&resource.name) >= u64::try_from(resource.allocatable).unwrap_or(0))
}

/// Returns the moment until which a Ready node keeps a startup taint that nobody wants.
fn waits_until(context: NodeContext<'_>) -> Option<Timestamp> {
    let NodeContext { node, now, .. } = context;
    if !node.ready || context.has_report() {
        return None;
    }
    // Ignores a moment further ahead than the wait itself: the node's clock is wrong.
    let ready_since = node
        .ready_since
        .filter(|since| since.duration_since(now) <= REPORT_TIMEOUT);
    let until = ready_since.max(node.created)?.checked_add(REPORT_TIMEOUT).ok()?;
    (now < until).then_some(until)
}
