//! Which pods of a node are to be evicted, since they hold a GPU or MIG device that does not work.

use crate::{
    gpu_node::requests::is_released,
    input::facts::NodeFacts,
    input::policies::PolicySet,
    node::plan::NodePlan,
    output::pods::{self, PodName},
};
use gpunode_crds::{DeviceHealth, FaultReason, GpuNode, GpuNodeStatus, HealthState, MAX_HOLDERS};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use std::{
    collections::{BTreeMap, HashMap},
    fmt,
};

/// Why a pod is to be evicted. Who holds what is told by name, so the pod has to be looked at before
/// ([`PodEviction::is_of`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodEviction {
    /// UUID of the device that it holds.
    pub device: String,
    /// The resource that it got the device as.
    pub resource: String,
    /// Since when the device is not given out, by the clock of the node.
    pub since: Timestamp,
    /// What is wrong with it, for people.
    pub trouble: String,
}

impl fmt::Display for PodEviction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "it holds {}, which is unhealthy: {}", self.device, self.trouble)
    }
}

impl PodEviction {
    /// Whether the pod of the name that was told is the one that holds the device: it is on the node, runs, asks for the
    /// resource, and started before the device broke. A namesake that came later was given another one, and whoever can write
    /// what an agent says gets no pod evicted that asks for no device.
    pub fn is_of(&self, pod: &Pod, node: &str) -> bool {
        let (spec, status) = (pod.spec.as_ref(), pod.status.as_ref());
        let is_there = spec.and_then(|spec| spec.node_name.as_deref()) == Some(node);
        let phase = status.and_then(|status| status.phase.as_deref()).unwrap_or_default();
        let is_over = pod.metadata.deletion_timestamp.is_some() || ["Succeeded", "Failed"].contains(&phase);
        // The kubelet's clock, as that of `since`, in whole seconds rounded down.
        let started = status.and_then(|status| status.start_time.as_ref());
        let was_before = started.is_some_and(|time| time.0 <= self.since);
        let asks = spec.is_some_and(|spec| pods::extended_resources(spec).any(|name| *name == self.resource));
        asks && is_there && !is_over && was_before && !pods::is_mirror(pod)
    }
}

/// The pods of a node that are to be evicted, at most as many as a `GpuNode` has holders. `plan` is the plan for that node.
///
/// A node that is left as it is, whose GPUs are released, or whose kubelet does not answer keeps its pods.
pub fn evictions(
    policies: &PolicySet,
    plan: &NodePlan,
    node: &NodeFacts,
    gpu_node: Option<&GpuNode>,
) -> BTreeMap<PodName, PodEviction> {
    let Some(GpuNode {
        spec,
        status: Some(status),
        ..
    }) = gpu_node
    else {
        return BTreeMap::new();
    };
    let is_wanted = || {
        plan.matched
            .iter()
            .filter_map(|name| policies.get(name))
            .any(|policy| policy.evicts_pods)
    };
    let broken = broken(status);
    if broken.is_empty() || plan.hold.is_some() || !node.ready || spec.release || is_released(node) || !is_wanted() {
        return BTreeMap::new();
    }
    let mut evictions: BTreeMap<PodName, PodEviction> = BTreeMap::new();
    for holder in status.holders.iter().take(MAX_HOLDERS) {
        let Some((since, trouble)) = broken.get(holder.device.as_str()) else {
            continue;
        };
        let pod = PodName {
            namespace: holder.namespace.clone(),
            name: holder.pod.clone(),
        };
        let (device, resource) = (holder.device.clone(), holder.resource.clone());
        let of_device = PodEviction {
            device,
            resource,
            since: *since,
            trouble: trouble.clone(),
        };
        match evictions.get_mut(&pod) {
            // Who started before one of its devices broke may hold that one.
            Some(other) if other.since >= of_device.since => {}
            Some(other) => *other = of_device,
            None => drop(evictions.insert(pod, of_device)),
        }
    }
    evictions
}

/// Drops the holders of devices that work, which come and go, from the status of a `GpuNode`.
pub fn retain_holders_of_unhealthy(status: &mut GpuNodeStatus) {
    let mut holders = std::mem::take(&mut status.holders);
    if !holders.is_empty() {
        let broken = broken(status);
        holders.retain(|holder| broken.contains_key(holder.device.as_str()));
    }
    status.holders = holders;
}

/// Devices that do not work, by UUID: since when, and what is wrong. A MIG device goes with its GPU.
fn broken(status: &GpuNodeStatus) -> HashMap<&str, (Timestamp, String)> {
    let mut broken = HashMap::new();
    for gpu in &status.gpus {
        let of_gpu = trouble(gpu.health.as_ref());
        for mig in &gpu.mig_devices {
            let first = [of_gpu.clone(), trouble(mig.health.as_ref())]
                .into_iter()
                .flatten()
                .min();
            broken.extend(first.map(|first| (mig.uuid.as_str(), first)));
        }
        broken.extend(of_gpu.map(|of_gpu| (gpu.uuid.as_str(), of_gpu)));
    }
    broken
}

/// A device of which nobody says since when it is broken tells nothing about who holds it.
fn trouble(health: Option<&DeviceHealth>) -> Option<(Timestamp, String)> {
    let health = health.filter(|health| health.state == HealthState::Unhealthy)?;
    let text = health.message.as_deref().or(health.reason.map(FaultReason::as_str));
    Some((
        health.since.as_ref()?.0,
        text.unwrap_or("nobody says what is wrong").to_owned(),
    ))
}

#[cfg(test)]
mod tests;
