//! The taint of nodes with too few healthy GPUs. Each GPU reports since when it is unhealthy or missing, which tells since when
//! there are too few. A taint that evicts pods counts broken and missing GPUs: work on other unhealthy ones may go on.

use crate::{
    input::{context::NodeContext, policies::Policy},
    node::{
        compose::{DesiredValue, compose},
        permit::RolloutPermit,
    },
    taint::TaintKey,
};
use gpunode_crds::{DeviceHealth, GpuDevice, HealthState, TaintEffect, UNHEALTHY_TAINT, UnhealthyTaint};
use jiff::Timestamp;
use std::collections::BTreeMap;

/// Returns the taints that the matching policies want now, and the moment at which they may want another.
pub fn unhealthy_taints(
    matched: &[&Policy],
    permit: RolloutPermit,
    context: NodeContext<'_>,
) -> (BTreeMap<TaintKey, DesiredValue>, Option<Timestamp>) {
    let NodeContext { node, now, .. } = context;
    let gpus = context.gpus();
    // Without a report, or with released GPUs, the taint stays as it is.
    let is_unknown = gpus.is_empty() || context.is_released();
    let due = |taint: &UnhealthyTaint| {
        let since = too_few_since(gpus, taint).filter(|_| !is_unknown)?;
        let due = since.checked_add(taint.after()).unwrap_or(Timestamp::MAX);
        // A node clock that is ahead by more than the delay does not prolong it.
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
            due(taint).is_some_and(|due| due <= now || permit == RolloutPermit::Simulated)
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
    let desired = compose(matched, entries, |id| format!("taint {id}")).desired;
    let taints = matched.iter().filter_map(|policy| policy.unhealthy_taint.as_ref());
    (desired, taints.filter_map(due).filter(|due| *due > now).min())
}

/// Returns true if one of the policies has a rule about this taint, so that the taint ends where none of them wants it.
pub fn has_rule(policies: &[&Policy], id: &TaintKey) -> bool {
    let mut rules = policies.iter().filter_map(|policy| policy.unhealthy_taint.as_ref());
    id.key == UNHEALTHY_TAINT && rules.any(|rule| rule.effect().as_str() == id.effect)
}

/// Returns true if GPUs are reported and all of them are healthy.
pub fn all_healthy(context: NodeContext<'_>) -> bool {
    let gpus = context.gpus();
    !gpus.is_empty()
        && !context.is_released()
        && gpus
            .iter()
            .all(|gpu| unhealthy_since(gpu, TaintEffect::NoSchedule).is_none())
}

/// Returns the moment since which too few GPUs are healthy for the rule: that at which the decisive GPU failed or vanished. A node
/// with fewer GPUs never had enough.
fn too_few_since(gpus: &[GpuDevice], taint: &UnhealthyTaint) -> Option<Timestamp> {
    let least = taint.min_healthy();
    let mut unhealthy: Vec<Timestamp> = gpus
        .iter()
        .filter_map(|gpu| unhealthy_since(gpu, taint.effect()))
        .collect();
    if gpus.len() - unhealthy.len() >= least {
        return None;
    }
    unhealthy.sort();
    let spare = gpus.len().checked_sub(least);
    Some(
        spare
            .and_then(|spare| unhealthy.get(spare).copied())
            .unwrap_or(Timestamp::UNIX_EPOCH),
    )
}

/// Returns the moment since which a GPU is missing, or unhealthy for a taint with this effect.
fn unhealthy_since(gpu: &GpuDevice, effect: TaintEffect) -> Option<Timestamp> {
    let failed = gpu.health.as_ref().and_then(|health| failed_since(health, effect));
    let missing = gpu.missing_since.as_ref().map(|since| since.0);
    [failed, missing].into_iter().flatten().min()
}

fn failed_since(health: &DeviceHealth, effect: TaintEffect) -> Option<Timestamp> {
    let (counts, since) = match effect {
        TaintEffect::NoExecute => (
            health.is_broken(),
            health.broken_since.as_ref().or(health.since.as_ref()),
        ),
        TaintEffect::NoSchedule | TaintEffect::PreferNoSchedule => {
            (health.state == HealthState::Unhealthy, health.since.as_ref())
        }
    };
    counts.then(|| since.map_or(Timestamp::UNIX_EPOCH, |since| since.0))
}
