//! What the objects of one node say about it. Pure.

use super::{
    devices::{DeviceState, State},
    offered::Offer,
    usage::Usage,
};
use gpunode_crds::{ConditionType, DeviceHealth, FaultReason, GpuNode, RELEASE_LABEL, Reason};
use gpunode_plan::PAUSE_LABEL;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use serde::Serialize;
use std::collections::BTreeSet;

/// Most devices whose faults are told in words; `-o json` has all of them.
const MAX_FAULTS: usize = 16;

/// Most devices that are named of those that are missing.
const MAX_MISSING: usize = 4;

/// The state of one GPU node.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeState {
    pub name: String,
    pub hardware: Option<String>,
    pub policy: Option<String>,
    pub resources: Vec<Offer>,
    /// Its GPUs and MIG devices, with who holds them.
    pub devices: Vec<DeviceState>,
    /// There are more holders than the agent lists.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub holders_truncated: bool,
    /// What containers hold of these devices.
    #[serde(rename = "inUse")]
    pub usage: Usage,
    pub configuration: Configuration,
    /// `True`, `False` or `Unknown`.
    pub ready: String,
    pub reason: Option<String>,
    /// What the reason means here; only where the node is not ready.
    pub message: Option<String>,
    /// Its agents were asked to let go of the GPUs.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub released: bool,
    /// What does not fit together, and what to do about it.
    pub problems: Vec<String>,
}

/// What became of the configuration that the operator wrote for a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Configuration {
    /// No policy with a `devicePlugin` governs the node.
    None,
    InForce,
    Pending,
    Rejected,
    /// The agent's word on it cannot be read.
    Unknown,
}

/// The state of a node, but for what does not fit together there.
pub fn node_state(gpu_node: &GpuNode, node: Option<&Node>) -> NodeState {
    let status = gpu_node.status.as_ref();
    let config = gpu_node.spec.config.as_ref();
    let rejected = status.and_then(|status| status.rejected_config.as_ref());
    let configuration = match config {
        None => Configuration::None,
        Some(config) if rejected.is_some_and(|rejected| rejected.hash == config.hash) => Configuration::Rejected,
        Some(config) if status.and_then(|status| status.config_hash.as_ref()) == Some(&config.hash) => {
            Configuration::InForce
        }
        Some(_) => Configuration::Pending,
    };
    let own = status.and_then(|status| ConditionType::Ready.find(&status.conditions));
    let unreachable = |message: &str| {
        (
            "Unknown".to_owned(),
            Some(Reason::NodeNotReady),
            Some(message.to_owned()),
        )
    };
    let (ready, reason, message) = match (node.map(is_node_ready), own) {
        // What an agent last said of a node that has gone or is out of reach says nothing about now.
        (None, _) => unreachable("the Node object is gone"),
        (Some(false), _) => unreachable("the node's kubelet is not ready"),
        (Some(true), None) => ("Unknown".to_owned(), Some(Reason::AgentNotReporting), None),
        (Some(true), Some(own)) => {
            let message = Some(own.message.clone()).filter(|_| own.status != "True");
            return NodeState {
                reason: Some(own.reason.clone()),
                ready: own.status.clone(),
                message,
                ..state(gpu_node, node, configuration)
            };
        }
    };
    NodeState {
        ready,
        reason: reason.map(|reason| reason.as_str().to_owned()),
        message,
        ..state(gpu_node, node, configuration)
    }
}

/// What does not fit together on a node: its agent and the Node, its configuration and the policies `known`.
pub fn problems(state: &NodeState, node: Option<&Node>, known: &BTreeSet<String>) -> Vec<String> {
    // Where the Node is gone, that is what to say.
    let offers = state.resources.iter().filter(|_| node.is_some());
    let orphaned = state
        .policy
        .as_ref()
        .filter(|policy| !known.contains(*policy))
        .map(|policy| {
            format!(
                "its configuration comes from policy {policy}, which does not exist; the operator takes it away, so \
             see whether it runs: `kubectl -n gpunode-system get pods`"
            )
        });
    let released = state.released.then(|| {
        format!("its agents have let go of the GPUs, as label {RELEASE_LABEL} or {PAUSE_LABEL} of the node asks")
    });
    let differences = offers.filter_map(|offer| offer.difference(&state.name)).chain(orphaned);
    differences
        .chain(missing(state))
        .chain(released)
        .chain(faults(state))
        .collect()
}

/// What is wrong with GPUs, what to do about it, and who holds them.
fn faults(state: &NodeState) -> Vec<String> {
    let broken = state
        .devices
        .iter()
        .filter_map(|device| Some((device, device.fault.as_ref()?)));
    let words = |(device, fault): (&DeviceState, &DeviceHealth)| {
        let reason = fault.reason.map_or("broken", FaultReason::as_str);
        let since = fault
            .since
            .as_ref()
            .map(|since| format!(" since {}", since.0))
            .unwrap_or_default();
        let pods: BTreeSet<String> = device
            .holders
            .iter()
            .map(|holder| format!("{}/{}", holder.namespace, holder.pod))
            .collect();
        let held = (!pods.is_empty()).then(|| format!("held by {}", pods.into_iter().collect::<Vec<_>>().join(", ")));
        let waits = fault
            .waits_for
            .as_ref()
            .map(|waits| format!("healthy again when {waits}"));
        let what = fault.message.as_deref().unwrap_or(reason);
        let what = Some(format!("{} is unhealthy{since}: {what}", device.name()));
        let parts = [what, fault.action.clone(), waits, held];
        parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
    };
    broken.map(words).take(MAX_FAULTS).collect()
}

/// Which GPUs have not been seen lately.
fn missing(state: &NodeState) -> Option<String> {
    let gone: Vec<&DeviceState> = state
        .devices
        .iter()
        .filter(|device| device.state == State::Missing)
        .collect();
    let since = gone
        .iter()
        .filter_map(|device| device.missing_since.as_ref())
        .map(|time| time.0)
        .min()?;
    let there = state
        .devices
        .iter()
        .any(|device| device.gpu.is_some() && device.state != State::Missing);
    let names: Vec<String> = gone.iter().take(MAX_MISSING).map(|device| device.name()).collect();
    let more = gone.len().saturating_sub(names.len());
    let more = if more > 0 {
        format!(" and {more} more")
    } else {
        String::new()
    };
    let what = if there {
        format!("{}{more}", names.join(", "))
    } else {
        "every GPU".to_owned()
    };
    Some(format!(
        "{what} not seen since {since}, by the agent or by the driver; after 15 minutes it counts as removed. See \
         `nvidia-smi` and the kernel's log on the node"
    ))
}

fn state(gpu_node: &GpuNode, node: Option<&Node>, configuration: Configuration) -> NodeState {
    let devices = DeviceState::all(gpu_node);
    let holders_truncated = gpu_node.status.as_ref().is_some_and(|status| status.holders_truncated);
    NodeState {
        name: gpu_node.name_any(),
        hardware: gpu_node.status.as_ref().and_then(|status| status.hardware.clone()),
        policy: gpu_node.spec.config.as_ref().map(|config| config.policy.clone()),
        resources: Offer::all(gpu_node, node),
        usage: Usage::of(&devices, holders_truncated),
        devices,
        holders_truncated,
        configuration,
        released: gpu_node.spec.release,
        ready: String::new(),
        reason: None,
        message: None,
        problems: Vec::new(),
    }
}

fn is_node_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn told(gpu_node: &serde_json::Value) -> Vec<String> {
        let gpu_node = serde_json::from_value(gpu_node.clone()).expect("a GpuNode");
        problems(&node_state(&gpu_node, None), None, &BTreeSet::new())
    }

    #[test]
    fn broken_devices_are_told_with_what_is_wrong_what_to_do_and_who_holds_them() {
        let health = json!({"state": "Unhealthy", "reason": "Xid", "xid": 79, "since": "2026-01-02T03:04:05Z",
            "message": "XID 79: GPU has fallen off the bus", "action": "restart the machine", "waitsFor": "the machine was restarted"});
        let gpu = json!({"index": 0, "uuid": "GPU-0", "product": "T4", "memoryMiB": 1, "health": health});
        let whole =
            json!({"index": 1, "uuid": "GPU-1", "product": "T4", "memoryMiB": 1, "health": {"state": "Healthy"}});
        let holder = |pod: &str| json!({"namespace": "team", "pod": pod, "container": "c", "resource": "nvidia.com/gpu", "device": "GPU-0", "count": 1});
        let status = json!({"gpus": [gpu, whole], "holders": [holder("b"), holder("a"), holder("a")]});
        let gpu_node = json!({"apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": "n"}, "spec": {},
            "status": status});
        let expected = "GPU 0 is unhealthy since 2026-01-02T03:04:05Z: XID 79: GPU has fallen off the bus; restart the machine; \
            healthy again when the machine was restarted; held by team/a, team/b";
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
            released.contains("let go of the GPUs, as label gpunode.dev/release"),
            "{released}"
        );
    }
}
