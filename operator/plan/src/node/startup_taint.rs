//! The startup taint: it keeps pods off a node after each boot until every promised device is allocatable. Nodes may join with
//! it (`--register-with-taints`), so gpunode knows it by its key and needs no record.
//!
//! | matching policies | on the node | result |
//! |---|---|---|
//! | want it; not every device was allocatable in this boot, or a GPU has not joined its fabric | any | set |
//! | want it; every device is allocatable | any | removed, and the boot goes into the record |
//! | disagree about the configuration; the one that the node has is not allocatable in this boot | any | set |
//! | do not want it; all that the governing one promises is allocatable | present | removed |
//! | do not want it; one with a startup taint would match, but is paused or waits for one | present | stays: the paused one may resume |
//! | do not want it; the one whose configuration the node has cannot be read | present | stays: that one may want it |
//! | do not want it; the node has GPU functions and no driver | present | stays: a policy may come to match |
//! | do not want it; nothing is reported and the node has not been Ready for two minutes yet | present | stays: a policy may come to match |
//! | do not want it otherwise, as where GPUs are reported | present | removed |

use crate::{
    gpu_node::progress::is_served,
    input::{
        context::NodeContext,
        facts::NodeFacts,
        matching::matches,
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
use gpunode_crds::{FaultReason, NOT_READY_TAINT, PolicyMode, ResourceStatus, TaintEffect};
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
    /// True if everything that the matching policies promise was allocatable in this boot.
    is_done: bool,
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
        promise: DevicePromise<'_>,
        permit: RolloutPermit,
        record: &NodeRecord,
        context: NodeContext<'_>,
    ) -> Self {
        let node = context.node;
        let keys = startup_keys(policies);
        let is_desired = promise != DevicePromise::None && matched.iter().any(|policy| policy.startup_taint.is_some());
        let is_kept = || match promise {
            DevicePromise::Of(policy) => is_allocatable(policy, context),
            DevicePromise::None | DevicePromise::Unknown => false,
        };
        let is_done = record.started.as_ref() == Some(&node.boot) || is_kept();
        let (started, is_over) = if !is_desired {
            (None, true)
        } else if is_done {
            (Some(node.boot.clone()), true)
        } else {
            (record.started.clone(), false)
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
        let linger = linger(policies, record, context);
        let mut lingering = BTreeSet::new();
        if !is_done && permit != RolloutPermit::Simulated && linger != Linger::Over {
            let unwanted = current
                .keys()
                .filter(|id| is_startup_taint(id, &keys) && !desired.contains_key(id));
            lingering.extend(unwanted.cloned());
        }
        let recheck = match linger {
            Linger::Until(end) if !lingering.is_empty() => Some(end),
            _ => None,
        };
        Self {
            desired,
            lingering,
            keys,
            is_done,
            started,
            recheck,
        }
    }

    /// Returns true for taints that gpunode owns with or without a record.
    pub fn is_ours(&self, id: &TaintKey) -> bool {
        is_startup_taint(id, &self.keys) && !self.lingering.contains(id)
    }

    /// Returns true for startup taints that have served their purpose in this boot, whoever wanted them.
    pub fn has_ended(&self, id: &TaintKey) -> bool {
        self.is_done && is_startup_taint(id, &self.keys)
    }
}

/// Devices that the matching policies promise on a node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DevicePromise<'a> {
    /// None: no policy has a device plugin.
    None,
    /// Those of the policy that governs, or whose configuration the node keeps.
    Of(&'a Policy),
    /// Not known: policies disagree about a node without configuration, or the policy cannot be read.
    Unknown,
}

/// Returns the startup taints of a node that is left as it is, where everything that its configuration promises is allocatable,
/// or where nothing is promised and no policy may come to match; and the moment to decide again.
pub fn ended_startup_taints(
    policies: &PolicySet,
    configured: Option<&Policy>,
    record: &NodeRecord,
    context: NodeContext<'_>,
) -> (BTreeSet<TaintKey>, Option<Timestamp>) {
    let keys = startup_keys(policies);
    let current = current_taints(context.node).into_keys();
    let ended = current.filter(|id| is_startup_taint(id, &keys)).collect();
    match configured {
        Some(policy) if is_allocatable(policy, context) => (ended, None),
        Some(_) => (BTreeSet::new(), None),
        None => match linger(policies, record, context) {
            Linger::Over => (ended, None),
            Linger::Until(end) => (BTreeSet::new(), Some(end).filter(|_| !ended.is_empty())),
            Linger::Stays => (BTreeSet::new(), None),
        },
    }
}

/// Returns true for a node with a startup taint, which ends with what the node reports.
pub fn has_startup_taint(policies: &PolicySet, node: &NodeFacts) -> bool {
    let keys = startup_keys(policies);
    node.taints.iter().any(|taint| is_startup_taint(&taint.id, &keys))
}

fn startup_keys(policies: &PolicySet) -> BTreeSet<String> {
    let active = policies.iter().filter(|policy| policy.mode != PolicyMode::Preview);
    let keys = active.filter_map(|policy| policy.startup_taint.clone());
    keys.chain([NOT_READY_TAINT.to_owned()]).collect()
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
    compose(matched, entries, |id| format!("taint {id}")).desired
}

/// Returns true if the node's configuration is in force and the scheduler knows every device that its agent advertises.
fn is_allocatable(governing: &Policy, context: NodeContext<'_>) -> bool {
    let (Some(config), Some(status)) = (context.configuration(), context.status()) else {
        return false;
    };
    let allocatable = |name: &str| context.node.allocatable.get(name).copied().unwrap_or(0);
    let is_allocatable =
        |resource: &ResourceStatus| allocatable(&resource.name) >= u64::try_from(resource.allocatable).unwrap_or(0);
    let mut promised = status.resources.iter();
    if context.node.ready && context.is_served_by_dra() {
        // Its agent promises no GPU, and pods of the DRA driver have to get there.
        return promised.filter(|resource| resource.companion).all(is_allocatable);
    }
    is_served(governing, &config.hash, context) && !waits_for_fabric(context) && promised.all(is_allocatable)
}

/// Returns true while Fabric Manager has not registered a GPU, as after each boot. A configuration may ignore that.
fn waits_for_fabric(context: NodeContext<'_>) -> bool {
    let mut healths = context.gpus().iter().filter_map(|gpu| gpu.health.as_ref());
    healths.any(|health| health.reason == Some(FaultReason::FabricNotReady))
}

/// Time for which a node keeps a startup taint that nobody wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Linger {
    /// Until something changes.
    Stays,
    /// Until this moment.
    Until(Timestamp),
    /// No longer.
    Over,
}

fn linger(policies: &PolicySet, record: &NodeRecord, context: NodeContext<'_>) -> Linger {
    let NodeContext { node, gpu_node, .. } = context;
    // Counts those in mode Enforce as well: they wait where a paused policy holds the node.
    let would_want = |policy: &Policy| {
        policy.mode != PolicyMode::Preview
            && policy.startup_taint.is_some()
            && policy.device_plugin.is_some()
            && matches(policy, node, record, gpu_node)
    };
    let is_kept = policies.unreadable_policy_of(context.configuration()).is_some();
    if !node.ready || is_kept || policies.iter().any(would_want) {
        return Linger::Stays;
    }
    if context.has_report() {
        let waits_for_driver = context.gpus().is_empty() && context.lacks_driver();
        return if waits_for_driver { Linger::Stays } else { Linger::Over };
    }
    report_timeout(context).map_or(Linger::Over, Linger::Until)
}

/// Returns the moment until which an agent may report for the first time.
fn report_timeout(context: NodeContext<'_>) -> Option<Timestamp> {
    let NodeContext { node, now, .. } = context;
    // Ignores a moment further ahead than the wait itself: the node's clock is wrong.
    let ready_since = node
        .ready_since
        .filter(|since| since.duration_since(now) <= REPORT_TIMEOUT);
    let until = ready_since.max(node.created)?.checked_add(REPORT_TIMEOUT).ok()?;
    (now < until).then_some(until)
}
