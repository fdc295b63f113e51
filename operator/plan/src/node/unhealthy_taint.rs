//! The taint of nodes with too few healthy GPUs, from what their agents report. No clock of our own is needed: since when there
//! are too few follows from since when each GPU is broken or missing.

use crate::{
    gpu_node::requests::is_released,
    input::facts::{NodeFacts, TaintKey},
    input::policies::Policy,
    node::compose::{Wanted, compose},
    node::plan::RolloutPermit,
};
use gpunode_crds::{GpuDevice, GpuNode, HealthState, UNHEALTHY_TAINT, UnhealthyTaint};
use jiff::Timestamp;
use std::collections::BTreeMap;

/// The taints that the matching policies want now, and when they may want another.
pub fn unhealthy_taints(
    matched: &[&Policy],
    turn: RolloutPermit,
    node: &NodeFacts,
    gpu_node: Option<&GpuNode>,
    now: Timestamp,
) -> (BTreeMap<TaintKey, Wanted>, Option<Timestamp>) {
    let gpus = gpu_node
        .and_then(|gpu_node| gpu_node.status.as_ref())
        .map_or(&[][..], |status| &status.gpus);
    // Where nothing is known of GPUs, or agents have let go of them, nobody knows that anything changed.
    let is_unknown = gpus.is_empty() || is_released(node);
    let due = |taint: &UnhealthyTaint| {
        let since = too_few_since(gpus, taint.min_healthy()).filter(|_| !is_unknown)?;
        let due = since.checked_add(taint.after()).unwrap_or(Timestamp::MAX);
        // Where the clock of the node is ahead by more than the delay, nobody waits for it.
        Some(if since.duration_since(now) > taint.after() {
            now
        } else {
            due
        })
    };
    let id = |taint: &UnhealthyTaint| TaintKey {
        key: UNHEALTHY_TAINT.to_owned(),
        effect: taint.effect().as_str().to_owned(),
    };
    let is_wanted = |taint: &&UnhealthyTaint| {
        let is_there = || node.taints.iter().any(|there| there.id == id(taint));
        if is_unknown {
            is_there()
        } else {
            due(taint).is_some_and(|due| due <= now || turn == RolloutPermit::Simulated)
        }
    };
    let entries = |policy: &Policy| {
        policy
            .unhealthy_taint
            .iter()
            .filter(is_wanted)
            .map(|taint| (id(taint), ""))
            .collect::<Vec<_>>()
    };
    // All want the same value, so nobody disagrees.
    let wanted = compose(matched, entries, |id| format!("taint {id}")).unwrap_or_default();
    let taints = matched.iter().filter_map(|policy| policy.unhealthy_taint.as_ref());
    (wanted, taints.filter_map(due).filter(|due| *due > now).min())
}

/// Since when fewer than `least` GPUs are healthy, if so: since the one broke or vanished with which there were too few. A node
/// that has fewer never had enough.
fn too_few_since(gpus: &[GpuDevice], least: usize) -> Option<Timestamp> {
    let mut broken: Vec<Timestamp> = gpus.iter().filter_map(broken_since).collect();
    if gpus.len() - broken.len() >= least {
        return None;
    }
    broken.sort();
    let spare = gpus.len().checked_sub(least);
    Some(
        spare
            .and_then(|spare| broken.get(spare).copied())
            .unwrap_or(Timestamp::UNIX_EPOCH),
    )
}

fn broken_since(gpu: &GpuDevice) -> Option<Timestamp> {
    let unhealthy = gpu
        .health
        .as_ref()
        .filter(|health| health.state == HealthState::Unhealthy);
    let unhealthy = unhealthy.map(|health| health.since.as_ref().map_or(Timestamp::UNIX_EPOCH, |since| since.0));
    let missing = gpu.missing_since.as_ref().map(|since| since.0);
    [unhealthy, missing].into_iter().flatten().min()
}
