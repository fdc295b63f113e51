//! Problems of one node, each with the next step. Pure.

use super::{
    devices::{DeviceAvailability, DeviceSummary},
    faults::fault_descriptions,
    mig::layout_problems,
    node::NodeSummary,
};
use gpunode_crds::{RELEASE_LABEL, named};
use gpunode_plan::PAUSE_LABEL;
use k8s_openapi::api::core::v1::Node;
use std::collections::BTreeSet;

/// Most missing devices named.
const MAX_MISSING: usize = 4;

/// Describes mismatches between agent, Node, configuration and the policies `known`, and the faults of a node.
pub fn problems(state: &NodeSummary, node: Option<&Node>, known: &BTreeSet<String>) -> Vec<String> {
    // Without a Node, its absence is the problem to show.
    let offers = state.resources.iter().filter(|_| node.is_some());
    let orphaned = state
        .policy
        .as_ref()
        .filter(|policy| !known.contains(*policy))
        .map(|policy| {
            format!(
                "its configuration comes from policy {policy}, which no longer exists; the operator should remove it, \
             check that it is running: `kubectl -n gpunode-system get pods`"
            )
        });
    let released = state.released.then(|| {
        format!("its agents have released the GPUs, as requested by node label {RELEASE_LABEL} or {PAUSE_LABEL}")
    });
    let differences = offers.filter_map(|offer| offer.difference(&state.name)).chain(orphaned);
    differences
        .chain(missing(state))
        .chain(released)
        .chain(state.unreadable_annotation.clone())
        .chain(fault_descriptions(&state.devices))
        .chain(layout_problems(&state.mig))
        .chain(state.companion_files.clone())
        .collect()
}

/// Describes the missing GPUs.
fn missing(state: &NodeSummary) -> Option<String> {
    let gone: Vec<&DeviceSummary> = state
        .devices
        .iter()
        .filter(|device| device.state == DeviceAvailability::Missing)
        .collect();
    let since = gone
        .iter()
        .filter_map(|device| device.missing_since.as_ref())
        .map(|time| time.0)
        .min()?;
    let there = state
        .devices
        .iter()
        .any(|device| device.gpu.is_some() && device.state != DeviceAvailability::Missing);
    let what = if there {
        let have = if gone.len() == 1 { "has" } else { "have" };
        let names = named(gone.iter().map(|device| device.name()), MAX_MISSING);
        format!("{names} {have} not been seen")
    } else {
        "no GPU has been seen".to_owned()
    };
    Some(format!(
        "{what} by the agent or the driver since {since}; a missing GPU counts as removed after 15 minutes. Check \
         `nvidia-smi` and the kernel log on the node"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::node::summarise_node;
    use serde_json::json;

    fn told(gpu_node: &serde_json::Value) -> Vec<String> {
        let gpu_node = serde_json::from_value(gpu_node.clone()).expect("a GpuNode");
        problems(&summarise_node(&gpu_node, None), None, &BTreeSet::new())
    }

    #[test]
    fn missing_and_refused_files_of_a_companion_are_told_though_the_node_is_ready() {
        let told_of = |status: &str, reason: &str| {
            let condition = json!({"type": "DevicesOffered", "status": status, "reason": reason,
                "lastTransitionTime": "2026-01-02T03:04:05Z", "message": "resource a.b/c has no device: no file matches /dev/x*"});
            told(
                &json!({"apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": "n"}, "spec": {},
                "status": {"conditions": [condition]}}),
            )
        };
        assert_eq!(
            told_of("True", "FileMissing"),
            ["resource a.b/c has no device: no file matches /dev/x*"]
        );
        assert!(told_of("True", "DevicesOffered").is_empty());
        // The reason of a node that is not ready is shown as such.
        assert!(told_of("False", "FileRefused").is_empty());
    }

    #[test]
    fn broken_devices_are_told_with_what_is_wrong_what_to_do_and_who_holds_them() {
        let health = json!({"state": "Unhealthy", "reason": "Xid", "xid": 79, "since": "2026-01-02T03:04:05Z",
            "message": "XID 79: GPU has fallen off the bus", "action": "reboot the node", "waitsFor": "node reboot"});
        let gpu = json!({"index": 0, "uuid": "GPU-0", "product": "T4", "memoryMiB": 1, "health": health});
        let whole =
            json!({"index": 1, "uuid": "GPU-1", "product": "T4", "memoryMiB": 1, "health": {"state": "Healthy"}});
        let holder = |pod: &str| json!({"namespace": "team", "pod": pod, "container": "c", "resource": "nvidia.com/gpu", "device": "GPU-0", "count": 1});
        let status = json!({"gpus": [gpu, whole], "holders": [holder("b"), holder("a"), holder("a")]});
        let gpu_node = json!({"apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": "n"}, "spec": {},
            "status": status});
        let expected = "GPU 0 is unhealthy since 2026-01-02T03:04:05Z: XID 79: GPU has fallen off the bus; reboot the node; \
            clears after: node reboot; held by team/a, team/b";
        assert_eq!(told(&gpu_node), [expected]);
    }

    #[test]
    fn released_node_says_who_asked() {
        let gpu_node = json!({"apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": "n"},
            "spec": {"release": true}, "status": {}});
        let [released] = &told(&gpu_node)[..] else {
            panic!("it says one thing")
        };
        assert!(
            released.contains("released the GPUs, as requested by node label gpunode.dev/release"),
            "{released}"
        );
    }

    #[test]
    fn released_gpus_are_called_so_and_an_unreadable_annotation_is_told() {
        let condition = |of: &str, reason: &str, message: &str| {
            json!({"type": of, "status": "False", "reason": reason, "message": message,
                "lastTransitionTime": "2026-01-02T03:04:05Z"})
        };
        let gpu = json!({"index": 0, "uuid": "GPU-0", "product": "T4", "memoryMiB": 1, "health": {"state": "Healthy"}});
        let resource = json!({"name": "nvidia.com/gpu", "registered": true, "capacity": 1, "allocatable": 0,
            "devices": [{"device": "GPU-0", "shares": 1, "healthy": 0}]});
        let conditions = [
            condition("DriverAvailable", "Released", "released"),
            condition(
                "RecoveredAnnotation",
                "Unreadable",
                "cannot read annotation \"yesterday\": no time",
            ),
        ];
        let gpu_node = json!({"apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": "n"}, "spec": {},
            "status": {"gpus": [gpu], "resources": [resource], "conditions": conditions}});
        assert_eq!(told(&gpu_node), ["cannot read annotation \"yesterday\": no time"]);
        let object = serde_json::from_value(gpu_node).expect("a GpuNode");
        let summary = summarise_node(&object, None);
        assert_eq!(summary.devices[0].state.text(), "released");
    }
}
