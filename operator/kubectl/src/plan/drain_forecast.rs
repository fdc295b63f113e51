//! Pods that the drain of one node evicts for a change of its GPUs. Pure.

use gpunode_crds::{DrainRules, GpuNodeStatus, named};
use gpunode_plan::{gpu_with_handles, switching_devices};
use std::collections::BTreeSet;

/// Most pods named; `-o json` has all of them.
const MAX_PODS: usize = 8;

/// Rules of a node's drains, with the policies of the cluster and with those of the plan; none where its changes wait for the pods.
#[derive(Clone, Copy, Debug)]
pub struct DrainChange<'a> {
    pub before: Option<&'a DrainRules>,
    pub after: Option<&'a DrainRules>,
}

/// Effect of the drain on the pods of a node.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct DrainForecast {
    /// Pods that are evicted, as `NAMESPACE/NAME`.
    pub pods: BTreeSet<String>,
    pub disruptions: Vec<String>,
    pub notes: Vec<String>,
}

/// Forecasts the evictions that the plan adds. `held_by` are the pods on devices that the new configuration changes, and
/// `changes_mig` is true if it changes MIG.
pub fn drain_forecast(
    drain: DrainChange<'_>,
    status: Option<&GpuNodeStatus>,
    mut held_by: BTreeSet<String>,
    changes_mig: bool,
) -> DrainForecast {
    let Some(rules) = drain.after else {
        return DrainForecast::default();
    };
    // Under rules that evict already, these pods go without the plan.
    if drain.before.is_none() {
        held_by.extend(status.into_iter().flat_map(waiting_pods));
    }
    let names_others = !rules.evict.is_empty() && drain.before.is_none_or(|before| before.evict != rules.evict);
    let monitors = names_others.then(|| status.and_then(monitors_message)).flatten();
    let may_evict = changes_mig && monitors.is_none() && !rules.evict.is_empty();
    DrainForecast {
        disruptions: pods_message(&held_by).into_iter().chain(monitors).collect(),
        notes: may_evict
            .then(|| "drain evicts pods that drain.evict names too, if they keep a GPU open that changes".to_owned())
            .into_iter()
            .collect(),
        pods: held_by,
    }
}

/// Returns the pods that changes wait for already.
fn waiting_pods(status: &GpuNodeStatus) -> impl Iterator<Item = String> {
    switching_devices(status).flat_map(|waiting| waiting.pods.iter().cloned())
}

fn pods_message(pods: &BTreeSet<String>) -> Option<String> {
    let when = "at the turn of the node, within PodDisruptionBudgets and drain.timeout";
    match pods.len() {
        0 => None,
        1 => Some(format!("drain evicts pod {} {when}", named(pods, MAX_PODS))),
        count => Some(format!("drain evicts {count} pods {when}: {}", named(pods, MAX_PODS))),
    }
}

/// Says for which GPU pods without one are evicted: processes or open handles keep it from its layout.
fn monitors_message(status: &GpuNodeStatus) -> Option<String> {
    let gpu = gpu_with_handles(status)?;
    Some(format!(
        "drain evicts pods that drain.evict names: GPU {} is Blocked (InUse)",
        gpu.index
    ))
}
