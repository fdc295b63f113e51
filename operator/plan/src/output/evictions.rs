//! Evictions of pods that hold a broken GPU or MIG device, or one that changes. Pods on other unhealthy devices stay.

use crate::{
    input::{
        broken_devices::broken_devices, facts::NodeFacts, gpu_node_facts::GpuNodeFacts, policies::PolicySet,
        release::is_released,
    },
    node::plan::NodePlan,
    pod_eviction::{EvictionCause, PodEviction},
    pods::PodName,
};
use gpunode_crds::MAX_HOLDERS;
use jiff::Timestamp;
use std::collections::BTreeMap;

/// Returns the pods of a node to evict, at most as many as a `GpuNode` has holders, and those of its drain. `plan` is the plan for
/// that node.
///
/// A held node, a node whose GPUs are released, and a node whose kubelet does not answer keep their pods.
pub fn evictions(
    policies: &PolicySet,
    plan: &NodePlan,
    node: &NodeFacts,
    gpu_node: Option<&GpuNodeFacts>,
) -> BTreeMap<PodName, PodEviction> {
    let mut evictions = plan.drain_work.evictions.clone();
    evictions.extend(evictions_of_broken(policies, plan, node, gpu_node));
    evictions
}

fn evictions_of_broken(
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
    let mut matched = plan.matched.iter().filter_map(|name| policies.get(name));
    let Some(policy) = matched.find(|policy| policy.evicts_pods) else {
        return BTreeMap::new();
    };
    let broken = broken_devices(status);
    if broken.is_empty() || plan.hold.is_some() || !node.ready || spec.release || is_released(node) {
        return BTreeMap::new();
    }
    let mut evictions: BTreeMap<PodName, (Timestamp, PodEviction)> = BTreeMap::new();
    for holder in status.holders.iter().take(MAX_HOLDERS) {
        let Some((since, fault)) = broken.get(holder.device.as_str()) else {
            continue;
        };
        let pod = PodName {
            namespace: holder.namespace.clone(),
            name: holder.pod.clone(),
        };
        let (device, resource) = (holder.device.clone(), holder.resource.clone());
        // Keeps the device that failed last: a pod that started before holds it.
        if evictions.get(&pod).is_some_and(|(other, _)| other >= since) {
            continue;
        }
        let cause = EvictionCause::Broken {
            device,
            resource,
            since: *since,
            fault: fault.clone(),
        };
        let eviction = PodEviction {
            policy: policy.name.clone(),
            cause,
            grace_seconds: None,
        };
        evictions.insert(pod, (*since, eviction));
    }
    evictions
        .into_iter()
        .map(|(pod, (_, eviction))| (pod, eviction))
        .collect()
}

#[cfg(test)]
mod tests;
