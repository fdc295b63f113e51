//! Evictions of pods that hold a broken GPU or MIG device. Pods on other unhealthy devices stay.

use crate::{
    input::{
        broken_devices::broken_devices, facts::NodeFacts, gpu_node_facts::GpuNodeFacts, policies::PolicySet,
        release::is_released,
    },
    node::plan::NodePlan,
    pods::{self, PodName},
};
use gpunode_crds::MAX_HOLDERS;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use std::{collections::BTreeMap, fmt};

/// Reason to evict a pod. An agent reports holders by name, so check the pod before ([`PodEviction::is_of`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodEviction {
    /// UUID of the device that the pod holds.
    pub device: String,
    /// Resource through which the pod got the device.
    pub resource: String,
    /// Moment since which the device is unhealthy, by the node's clock.
    pub since: Timestamp,
    /// Fault of the device, for people.
    pub fault: String,
}

impl fmt::Display for PodEviction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "it holds {}, which is broken: {}", self.device, self.fault)
    }
}

impl PodEviction {
    /// Returns true if the pod of this name really holds the device: it runs on the node, requests the resource, and started before
    /// the device failed. A later pod of the same name got another device, and a forged report evicts no pod that requests no
    /// device.
    pub fn is_of(&self, pod: &Pod, node: &str) -> bool {
        let (spec, status) = (pod.spec.as_ref(), pod.status.as_ref());
        let is_there = spec.and_then(|spec| spec.node_name.as_deref()) == Some(node);
        let is_over = pod.metadata.deletion_timestamp.is_some() || pods::has_ended(pod);
        // Both times are by the node's clock; this one is rounded down to seconds.
        let started = status.and_then(|status| status.start_time.as_ref());
        let was_before = started.is_some_and(|time| time.0 <= self.since);
        let requests = spec.is_some_and(|spec| pods::extended_resources(spec).any(|name| *name == self.resource));
        requests && is_there && !is_over && was_before && !pods::is_mirror(pod)
    }
}

/// Returns the pods of a node to evict, at most as many as a `GpuNode` has holders. `plan` is the plan for that node.
///
/// A held node, a node whose GPUs are released, and a node whose kubelet does not answer keep their pods.
pub fn evictions(
    policies: &PolicySet,
    plan: &NodePlan,
    node: &NodeFacts,
    gpu_node: Option<&GpuNodeFacts>,
) -> BTreeMap<PodName, PodEviction> {
    let Some(GpuNodeFacts {
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
    let broken = broken_devices(status);
    if broken.is_empty() || plan.hold.is_some() || !node.ready || spec.release || is_released(node) || !is_wanted() {
        return BTreeMap::new();
    }
    let mut evictions: BTreeMap<PodName, PodEviction> = BTreeMap::new();
    for holder in status.holders.iter().take(MAX_HOLDERS) {
        let Some((since, fault)) = broken.get(holder.device.as_str()) else {
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
            fault: fault.clone(),
        };
        match evictions.get_mut(&pod) {
            // Keeps the device that failed last: a pod that started before holds it.
            Some(other) if other.since >= of_device.since => {}
            Some(other) => *other = of_device,
            None => drop(evictions.insert(pod, of_device)),
        }
    }
    evictions
}

#[cfg(test)]
mod tests;
