//! Nodes and `GpuNode`s of the size that real ones have: 50 images, 40 labels, 8 GPUs. No IO.

use gpunode_config::known_fields;
use gpunode_crds::GROUP;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

/// Label that selects every simulated node.
pub const MEMBER_LABEL: &str = "fleet.example.com/member";
/// Number of GPUs of a node.
pub const GPUS: usize = 8;

const IMAGES: usize = 50;
const LABELS: usize = 40;
/// Names of node features as node feature discovery labels them.
const FEATURES: [&str; 6] = ["ADX", "AESNI", "AVX512BW", "AVX512VNNI", "FMA3", "SHA"];
const PRODUCT: &str = "NVIDIA-A100-SXM4-80GB";
const LONG_AGO: &str = "2026-01-01T00:00:00Z";

/// State of the agent of one node, as its status shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentReport {
    /// Policy and hash of the configuration in force; none for discovery.
    pub in_force: Option<(String, String)>,
    /// Start of the last step that the agent finished, RFC 3339.
    pub finished_step: Option<String>,
    /// Time since which the first GPU is unhealthy, RFC 3339.
    pub unhealthy_since: Option<String>,
}

/// Start of the names of simulated nodes; digits follow.
pub const NODE_PREFIX: &str = "fleet-";

/// Returns the name of a node; names sort by index.
pub fn node_name(index: usize) -> String {
    format!("{NODE_PREFIX}{index:05}")
}

/// Returns the key of the label whose value is the node's index modulo `parts`.
pub fn part_label(parts: usize) -> String {
    format!("fleet.example.com/part-of-{parts}")
}

/// Returns a Node as a kubelet registers it and reports its status.
pub fn node(index: usize, parts: &[usize]) -> Value {
    let name = node_name(index);
    let condition = |kind: &str, status: &str, reason: &str| {
        json!({
            "type": kind, "status": status, "reason": reason, "message": format!("kubelet reports {reason}"),
            "lastHeartbeatTime": LONG_AGO, "lastTransitionTime": LONG_AGO,
        })
    };
    let amounts = json!({
        "cpu": "96", "memory": "1056270380Ki", "pods": "250", "ephemeral-storage": "1843269236Ki", "hugepages-1Gi": "0",
        "hugepages-2Mi": "0", "nvidia.com/gpu": GPUS.to_string(),
    });
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": labels(index, parts),
            "annotations": {
                "node.alpha.kubernetes.io/ttl": "0",
                "volumes.kubernetes.io/controller-managed-attach-detach": "true",
                "csi.volume.kubernetes.io/nodeid": format!("{{\"ebs.csi.example.com\":\"i-{index:017x}\"}}"),
            },
        },
        "spec": {"providerID": format!("example:///zone-a/i-{index:017x}"), "podCIDR": "10.128.0.0/24"},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "addresses": [
                {"type": "InternalIP", "address": format!("10.{}.{}.{}", index >> 16, (index >> 8) & 255, index & 255)},
                {"type": "Hostname", "address": name},
            ],
            "conditions": [
                condition("MemoryPressure", "False", "KubeletHasSufficientMemory"),
                condition("DiskPressure", "False", "KubeletHasNoDiskPressure"),
                condition("PIDPressure", "False", "KubeletHasSufficientPID"),
                condition("Ready", "True", "KubeletReady"),
            ],
            "nodeInfo": {
                "machineID": format!("{index:032x}"), "systemUUID": format!("{index:032x}"), "bootID": format!("{index:032x}"),
                "kernelVersion": "6.8.0-1021-example", "osImage": "Debian GNU/Linux 12 (bookworm)",
                "containerRuntimeVersion": "containerd://2.1.4", "kubeletVersion": "v1.35.4", "kubeProxyVersion": "",
                "operatingSystem": "linux", "architecture": "amd64",
            },
            "images": (0..IMAGES).map(image).collect::<Vec<_>>(),
        },
    })
}

fn image(index: usize) -> Value {
    json!({
        "names": [
            format!("registry.example.com/platform/service-{index}@sha256:{:064x}", index * 7919 + 1),
            format!("registry.example.com/platform/service-{index}:v1.24.{index}"),
        ],
        "sizeBytes": 123_456_789 + index,
    })
}

fn labels(index: usize, parts: &[usize]) -> Map<String, Value> {
    let mut labels = Map::new();
    let mut add = |key: String, value: String| {
        labels.insert(key, Value::String(value));
    };
    add(MEMBER_LABEL.to_owned(), "true".to_owned());
    for parts in parts {
        add(part_label(*parts), (index % parts).to_string());
    }
    add("kubernetes.io/hostname".to_owned(), node_name(index));
    add("kubernetes.io/arch".to_owned(), "amd64".to_owned());
    add("kubernetes.io/os".to_owned(), "linux".to_owned());
    add(
        "node.kubernetes.io/instance-type".to_owned(),
        "p4de.24xlarge".to_owned(),
    );
    add("topology.kubernetes.io/region".to_owned(), "region-1".to_owned());
    add(
        "topology.kubernetes.io/zone".to_owned(),
        format!("region-1{}", index % 3),
    );
    for feature in FEATURES {
        add(
            format!("feature.node.kubernetes.io/cpu-cpuid.{feature}"),
            "true".to_owned(),
        );
    }
    for filler in labels.len()..LABELS {
        labels.insert(
            format!("platform.example.com/attribute-{filler:02}"),
            Value::String(format!("value-{filler:02}")),
        );
    }
    labels
}

/// Returns a `GpuNode` as an agent creates it: without configuration, deleted with its Node.
pub fn gpu_node(name: &str, node_uid: &str) -> Value {
    json!({
        "apiVersion": format!("{GROUP}/v1alpha1"),
        "kind": "GpuNode",
        "metadata": {
            "name": name,
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": name, "uid": node_uid}],
        },
        "spec": {},
    })
}

/// Returns the merge patch with which an agent turns its status from `before` into `report`; none if they are equal. It
/// has each changed field as a whole, so it is larger than that of a real agent.
pub fn status_patch(name: &str, before: Option<&AgentReport>, report: &AgentReport) -> Option<Value> {
    let before = before.map_or_else(|| json!({}), |before| status(name, before));
    let now = status(name, report);
    let keys: BTreeSet<&String> = [&before, &now]
        .into_iter()
        .filter_map(Value::as_object)
        .flat_map(Map::keys)
        .collect();
    let changes: Map<String, Value> = keys
        .into_iter()
        .filter(|key| before.get(*key) != now.get(*key))
        .map(|key| (key.clone(), now.get(key).cloned().unwrap_or_default()))
        .collect();
    (!changes.is_empty()).then(|| json!({"status": changes}))
}

fn status(name: &str, report: &AgentReport) -> Value {
    let gpus: Vec<Value> = (0..GPUS).map(|index| gpu(name, index, report)).collect();
    let healthy = GPUS - usize::from(report.unhealthy_since.is_some());
    let mut agent = json!({
        "pod": format!("gpunode-agent-{name}"), "podUid": format!("uid-of-{name}"), "mode": "Discovery",
        "version": env!("CARGO_PKG_VERSION"), "configVersions": [1], "configFields": known_fields(),
    });
    let mut status = json!({
        "hardware": format!("{GPUS} x {PRODUCT}"),
        "driverVersion": "580.95.05",
        "cudaVersion": "13.0",
        "gpus": gpus,
        "conditions": [
            {"type": "DriverAvailable", "status": "True", "reason": "Available", "message": "", "lastTransitionTime": LONG_AGO},
        ],
    });
    if let Some((policy, hash)) = &report.in_force {
        agent["mode"] = "DevicePlugin".into();
        agent["policy"] = policy.as_str().into();
        status["configHash"] = hash.as_str().into();
        let devices: Vec<Value> = (0..GPUS)
            .map(|index| {
                let is_healthy = index > 0 || report.unhealthy_since.is_none();
                json!({"device": uuid(name, index), "shares": 1, "healthy": i32::from(is_healthy)})
            })
            .collect();
        status["resources"] = json!([{
            "name": "nvidia.com/gpu", "capacity": GPUS, "allocatable": healthy, "registered": true, "devices": devices,
        }]);
        status["conditions"] = json!([
            {"type": "Ready", "status": "True", "reason": "Registered", "message": "", "lastTransitionTime": LONG_AGO},
            {"type": "DriverAvailable", "status": "True", "reason": "Available", "message": "", "lastTransitionTime": LONG_AGO},
        ]);
    }
    if let Some(finished) = &report.finished_step {
        status["finishedStep"] = finished.as_str().into();
    }
    status["agent"] = agent;
    status
}

fn uuid(name: &str, index: usize) -> String {
    format!("GPU-{name}-0000-4000-8000-{index:012x}")
}

fn gpu(name: &str, index: usize, report: &AgentReport) -> Value {
    let links: Vec<Value> = (0..GPUS)
        .filter(|peer| *peer != index)
        .map(|peer| json!({"peer": peer, "level": "SYS", "nvlinks": 12}))
        .collect();
    let health = match &report.unhealthy_since {
        Some(since) if index == 0 => json!({
            "state": "Unhealthy", "grade": "Broken", "reason": "Xid", "xid": 79, "message": "GPU has fallen off the bus",
            "since": since, "brokenSince": since,
        }),
        _ => json!({"state": "Healthy"}),
    };
    json!({
        "index": index, "uuid": uuid(name, index), "product": PRODUCT, "memoryMiB": 81920, "architecture": "ampere",
        "computeCapability": "8.0", "pciBusId": format!("0000:{:02x}:00.0", index * 16 + 7),
        "pciDeviceId": "0x20B210DE", "numaNode": index / 4, "mode": "Compute", "migMode": "Disabled", "health": health, "links": links,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpunode_crds::{AgentMode, GpuNodeStatus, HealthState};

    #[test]
    fn simulated_node_has_the_size_of_a_real_one() {
        let node = node(4321, &[6, 30]);
        assert_eq!(node["metadata"]["labels"].as_object().unwrap().len(), LABELS);
        assert_eq!(node["metadata"]["labels"][part_label(30)], "1");
        // The API server adds 3 KB of managedFields.
        let length = node.to_string().len();
        assert!((11_000..16_000).contains(&length), "{length} bytes");
    }

    #[test]
    fn simulated_status_is_one_of_the_api() {
        let mut report = AgentReport::default();
        let read =
            |report: &AgentReport| -> GpuNodeStatus { serde_json::from_value(status("fleet-00001", report)).unwrap() };
        let status = read(&report);
        assert_eq!((status.gpus.len(), status.config_hash), (GPUS, None));
        assert_eq!(status.agent.unwrap().mode, AgentMode::Discovery);

        report.in_force = Some(("p".to_owned(), "h".to_owned()));
        report.finished_step = Some("2026-01-03T00:00:00Z".to_owned());
        report.unhealthy_since = Some("2026-01-02T00:00:00Z".to_owned());
        let status = read(&report);
        assert_eq!(status.config_hash.as_deref(), Some("h"));
        assert!(status.finished_step.is_some());
        assert_eq!(status.resources[0].allocatable, 7);
        let health: Vec<_> = status
            .gpus
            .iter()
            .map(|gpu| gpu.health.as_ref().unwrap().state)
            .collect();
        assert_eq!(health[..2], [HealthState::Unhealthy, HealthState::Healthy]);
        assert!(status.gpus[0].architecture.is_some() && status.gpus[0].mode.is_some());
    }

    #[test]
    fn agent_that_answers_a_step_sends_what_changed_alone() {
        let before = AgentReport {
            in_force: Some(("p".to_owned(), "old".to_owned())),
            ..AgentReport::default()
        };
        let mut after = before.clone();
        assert_eq!(status_patch("fleet-00001", Some(&before), &after), None);
        after.in_force = Some(("p".to_owned(), "new".to_owned()));
        after.finished_step = Some("2026-01-03T00:00:00Z".to_owned());
        assert_eq!(
            status_patch("fleet-00001", Some(&before), &after).unwrap(),
            json!({"status": {"configHash": "new", "finishedStep": "2026-01-03T00:00:00Z"}})
        );
        let undone = status_patch("fleet-00001", Some(&after), &before).unwrap();
        assert!(undone["status"]["finishedStep"].is_null());
    }
}
