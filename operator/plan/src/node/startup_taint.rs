//! The startup taint: it keeps pods off a node from each of its boots on until what was promised is allocatable there. Nodes may
//! join with it (`--register-with-taints`), so it is known by its key and needs no record.
//!
//! | the policies that match | on the node | then |
//! |---|---|---|
//! | want it, in this boot not all was allocatable yet | any | set |
//! | want it, all is allocatable | any | removed, and the boot goes into the record |
//! | do not want it, no agent has reported and the node is not Ready for two minutes | present | stays: a policy may come to match |
//! | do not want it otherwise | present | removed |

use crate::{
    gpu_node::progress::is_served,
    input::facts::{NodeFacts, TaintKey},
    input::inventory::is_reported,
    input::policies::{Policy, PolicySet},
    node::compose::{Wanted, compose},
    node::plan::RolloutPermit,
    node::taints::current_taints,
    record::Record,
};
use gpunode_crds::{GpuNode, NOT_READY_TAINT, PolicyMode, TaintEffect};
use jiff::{SignedDuration, Timestamp};
use std::collections::{BTreeMap, BTreeSet};

/// Longer than an agent of discovery takes to start and to report on a node that is Ready.
const UNREPORTED: SignedDuration = SignedDuration::from_mins(2);

/// What is to become of the startup taints of one node.
#[derive(Debug)]
pub struct Startup {
    /// Those that are to be there.
    pub wanted: BTreeMap<TaintKey, Wanted>,
    /// Those that nobody wants and that stay for now.
    lingering: BTreeSet<TaintKey>,
    /// The keys by which they are known.
    keys: BTreeSet<String>,
    /// The boot that the record is to name.
    pub started: Option<String>,
    /// When to decide again though nothing changed.
    pub recheck: Option<Timestamp>,
}

impl Startup {
    /// Decides.
    #[allow(clippy::too_many_arguments, reason = "all that is known of one node")]
    pub fn of(
        policies: &PolicySet,
        matched: &[&Policy],
        governing: Option<&Policy>,
        turn: RolloutPermit,
        node: &NodeFacts,
        record: &Record,
        gpu_node: Option<&GpuNode>,
        now: Timestamp,
    ) -> Self {
        let known = policies.iter().filter(|policy| policy.mode != PolicyMode::Preview);
        let mut keys: BTreeSet<String> = known.filter_map(|policy| policy.startup_taint.clone()).collect();
        keys.insert(NOT_READY_TAINT.to_owned());
        // Nothing is promised where no device plugin runs.
        let is_wanted = governing.is_some() && matched.iter().any(|policy| policy.startup_taint.is_some());
        let has_started = record.started.as_ref() == Some(&node.boot);
        let is_kept = |governing| has_started || is_allocatable(node, governing, gpu_node, now);
        let (started, is_over) = match governing.filter(|_| is_wanted) {
            None => (None, true),
            Some(governing) if is_kept(governing) => (Some(node.boot.clone()), true),
            Some(_) => (record.started.clone(), false),
        };
        let current = current_taints(node);
        let mut wanted = if is_over { BTreeMap::new() } else { wanted(matched) };
        for (id, wanted) in &mut wanted {
            // A node may join with a value, which says nothing.
            wanted.value = current.get(id).cloned().unwrap_or_default();
        }
        if turn == RolloutPermit::Simulated {
            wanted.retain(|id, _| current.contains_key(id));
        }
        let until = waits_until(node, gpu_node, now);
        let mut lingering = BTreeSet::new();
        if !has_started && turn != RolloutPermit::Simulated && (!node.ready || until.is_some()) {
            let unwanted = current
                .keys()
                .filter(|id| is_startup(id, &keys) && !wanted.contains_key(id));
            lingering.extend(unwanted.cloned());
        }
        let recheck = until.filter(|_| !lingering.is_empty());
        Self {
            wanted,
            lingering,
            keys,
            started,
            recheck,
        }
    }

    /// Whether a taint is gpunode's with or without a record.
    pub fn is_ours(&self, id: &TaintKey) -> bool {
        is_startup(id, &self.keys) && !self.lingering.contains(id)
    }
}

/// Whether a taint is a startup taint, of which there are these keys.
fn is_startup(id: &TaintKey, keys: &BTreeSet<String>) -> bool {
    // A key of a policy's own may be somebody else's with another effect.
    id.key == NOT_READY_TAINT || (id.effect == TaintEffect::NoSchedule.as_str() && keys.contains(&id.key))
}

fn wanted(matched: &[&Policy]) -> BTreeMap<TaintKey, Wanted> {
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

/// Whether the configuration that the node was given is in force, and the scheduler knows of every device that its agent offers.
fn is_allocatable(node: &NodeFacts, governing: &Policy, gpu_node: Option<&GpuNode>, now: Timestamp) -> bool {
    let given = gpu_node.and_then(|gpu_node| Some((gpu_node.spec.config.as_ref()?, gpu_node.status.as_ref()?)));
    let Some((config, status)) = given else { return false };
    let offered = |name: &str| node.offered.get(name).copied().unwrap_or(0);
    let mut promised = status.resources.iter();
    is_served(node, governing, &config.hash, gpu_node, now)
        && promised.all(|resource| offered(&resource.name) >= u64::try_from(resource.allocatable).unwrap_or(0))
}

/// Until when a Ready node keeps a startup taint that nobody wants, if it does.
fn waits_until(node: &NodeFacts, gpu_node: Option<&GpuNode>, now: Timestamp) -> Option<Timestamp> {
    if !node.ready || is_reported(gpu_node) {
        return None;
    }
    // The clock of the node may be wrong: a time further ahead than the wait itself does not count.
    let told = node.ready_since.filter(|since| since.duration_since(now) <= UNREPORTED);
    let until = told.max(node.created)?.checked_add(UNREPORTED).ok()?;
    (now < until).then_some(until)
}
