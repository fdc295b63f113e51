//! A cluster in which everything is, as tests show it.

use super::fleet::FleetSummary;
use crate::{
    cluster::{ListedObjects, UnreadableObject},
    snapshot::operator::OperatorRules,
};
use gpunode_crds::{GpuNode, GpuNodePolicy};
use gpunode_plan::PolicySet;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use serde_json::json;

fn from<T: serde::de::DeserializeOwned>(value: serde_json::Value) -> T {
    serde_json::from_value(value).expect("a test object")
}

fn now() -> Timestamp {
    "2026-01-02T03:10:00Z".parse().expect("a time")
}

/// Nodes `a` (as it should be), `b` (rejected its configuration), `c` (kubelet down), `d` (unreadable), `f` (hardware
/// only) and `g` (agent and policy gone), with one policy in force and one in conflict.
pub fn sample() -> FleetSummary {
    let time = "2026-01-02T03:04:05Z";
    let condition = |kind: &str, status: &str, reason: &str, message: &str| json!({"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": time});
    let gpu_node = |name: &str, hash: Option<&str>, status: serde_json::Value| {
        let policy = if name == "g" { "gone" } else { "v100" };
        let config = hash.map(|hash| json!({"policy": policy, "version": 1, "hash": hash, "document": "{}"}));
        from::<GpuNode>(json!({
            "apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": name},
            "spec": {"config": config}, "status": status,
        }))
    };
    let in_force = json!({
        "hardware": "8 x Tesla-V100-SXM2-32GB", "configHash": "h1",
        "resources": [{"name": "nvidia.com/gpu", "capacity": 8, "allocatable": 7, "registered": true}],
        "conditions": [condition("Ready", "True", "ConfigurationInForce", "")],
    });
    let rejected = json!({
        "hardware": "8 x Tesla-V100-SXM2-32GB", "configHash": "h0",
        "rejectedConfig": {"hash": "h1", "message": "resources[0].name: bad"},
        "conditions": [condition("Ready", "False", "ConfigurationRejected", "resources[0].name: bad")],
    });
    let hardware = json!({"hardware": "4 x Tesla-T4"});
    let gpu_nodes = [
        gpu_node("b", Some("h1"), rejected),
        gpu_node("a", Some("h1"), in_force.clone()),
        gpu_node("c", Some("h2"), in_force.clone()),
        gpu_node("d", None, json!(null)),
        gpu_node("f", None, hardware),
        gpu_node("g", Some("h1"), in_force),
    ];
    let node = |name: &str, ready: &str| {
        let offered = if name == "a" { "7" } else { "0" };
        from::<Node>(json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
            "status": {
                "conditions": [{"type": "Ready", "status": ready}],
                "allocatable": {"nvidia.com/gpu": offered, "cpu": "7910m"},
            },
        }))
    };
    let nodes = [
        ("a", "True"),
        ("b", "True"),
        ("c", "Unknown"),
        ("d", "True"),
        ("f", "True"),
        ("g", "True"),
    ]
    .map(|(name, ready)| node(name, ready));
    let policies = [
        from::<GpuNodePolicy>(json!({
            "apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNodePolicy", "metadata": {"name": "v100"},
            "spec": {"nodeSelector": {}, "priority": 100},
            "status": {
                "observedGeneration": 1,
                "nodes": {"matched": 3, "ready": 1, "updating": 1, "failed": 1, "conflicted": 0},
                "conditions": [
                    condition("Ready", "False", "NodesUpdating", "1 of 3"),
                    condition("Degraded", "True", "NodesFailed", "1 node failed"),
                ],
                "failures": [{"node": "b", "reason": "ConfigurationRejected", "message": "resources[0].name: bad"}],
            },
        })),
        from::<GpuNodePolicy>(json!({
            "apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNodePolicy", "metadata": {"name": "new"},
            "spec": {"nodeSelector": {"matchLabels": {"pool": "x"}}, "mode": "Preview"},
        })),
    ];
    let bad = UnreadableObject {
        kind: "GpuNode".to_owned(),
        name: "d".to_owned(),
        message: "its status cannot be read: bad time".to_owned(),
    };
    FleetSummary::new(
        &ListedObjects {
            objects: gpu_nodes.into(),
            unreadable: vec![bad],
        },
        &ListedObjects {
            objects: nodes.into(),
            unreadable: Vec::new(),
        },
        &ListedObjects {
            objects: policies.into(),
            unreadable: Vec::new(),
        },
        OperatorRules::default(),
        now(),
    )
}

/// One node whose devices are shared: one waits, one has no MPS daemon, one is offered in its MIG devices and one whole in spite
/// of them, of one free units are withheld, one is not offered, one is held and gone, one is missing. An agent writes what it likes into its
/// status.
pub fn shared() -> FleetSummary {
    let time = "2026-01-02T03:04:05Z";
    let message = "the MPS control daemon of GPU 1 does not answer";
    let ready = json!({"type": "Ready", "status": "False", "reason": "MpsDaemonNotAnswering", "message": message, "lastTransitionTime": time});
    let gpu = |index: i32, mig: &serde_json::Value| json!({"index": index, "uuid": format!("GPU-{index}"), "product": "A100-SXM4-80GB", "memoryMiB": 81920, "migDevices": mig});
    let missing =
        json!({"index": 10, "uuid": "GPU-10", "product": "A100-SXM4-80GB", "memoryMiB": 81920, "missingSince": time});
    let mig = |uuid: &str, instance: i32| json!({"uuid": uuid, "profile": "1g.10gb", "gpuInstance": instance, "computeInstance": 0, "memoryMiB": 9728});
    let holder = |pod: &str, resource: &str, device: &str, count: i32| json!({"namespace": "team", "pod": pod, "container": "main", "resource": resource, "device": device, "count": count});
    let resource = |name: &str, sharing: Option<&str>, withheld: Option<i32>, devices: &[(&str, i32, i32)]| {
        let count = |of: fn(&(&str, i32, i32)) -> i32| devices.iter().map(of).sum::<i32>();
        let devices = devices
            .iter()
            .map(|(device, shares, healthy)| json!({"device": device, "shares": shares, "healthy": healthy}));
        json!({
            "name": name, "capacity": count(|device| device.1), "allocatable": count(|device| device.2), "registered": true,
            "sharing": sharing, "withheld": withheld, "devices": devices.collect::<Vec<_>>(),
        })
    };
    let gpu_node = from::<GpuNode>(json!({
        "apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": "n"},
        "spec": {"config": {"policy": "p", "version": 1, "hash": "h", "document": "{}"}},
        "status": {
            "hardware": "10 x A100-SXM4-80GB\u{1b}[2J", "configHash": "h", "conditions": [ready],
            "gpus": [
                gpu(0, &json!([])), gpu(1, &json!([])), gpu(2, &json!([mig("MIG-a", 7), mig("MIG-b", 8)])), gpu(3, &json!([])),
                gpu(4, &json!([])), gpu(5, &json!([])), gpu(6, &json!([mig("MIG-c", 7)])), gpu(7, &json!([])),
                gpu(8, &json!([])), missing,
            ],
            "resources": [
                resource("aliyun.com/gpu-mem", Some("Memory"), Some(89), &[("GPU-0", 80, 30), ("GPU-3", 80, 80), ("GPU-4", 80, 1), ("GPU-5", 10, 0)]),
                resource("nvidia.com/gpu.mps", Some("Mps"), None, &[("GPU-1", 10, 0)]),
                resource("nvidia.com/mig-1g.10gb", None, None, &[("MIG-a", 1, 1), ("MIG-b", 1, 1)]),
                resource("nvidia.com/gpu", None, None, &[("GPU-6", 1, 1), ("GPU-9", 1, 0)]),
                resource("nvidia.com/gpu.shared", Some("TimeSlicing"), None, &[("GPU-8", 4, 4)]),
            ],
            "holders": [
                holder("llm", "aliyun.com/gpu-mem", "GPU-0", 20), holder("ocr", "aliyun.com/gpu-mem", "GPU-0", 10),
                holder("asr", "aliyun.com/gpu-mem", "GPU-4", 1),
                holder("nb", "nvidia.com/gpu.shared", "GPU-8", 3),
                holder("train", "nvidia.com/mig-1g.10gb", "MIG-b", 1), holder("old", "nvidia.com/gpu", "GPU-9", 1),
            ],
            "waiting": [{
                "device": "GPU-0", "message": "stays aliyun.com/gpu-mem until its holders are gone, then becomes nvidia.com/gpu\u{1b}[0m",
                "pods": ["team/llm", "team/ocr", "team/x", "team/y", "team/z"],
            }],
            "mpsDaemons": [{"device": "GPU-1", "state": "NotAnswering"}],
        },
    }));
    let node = from::<Node>(json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "allocatable": {"aliyun.com/gpu-mem": "111", "nvidia.com/gpu.mps": "0", "nvidia.com/mig-1g.10gb": "2", "nvidia.com/gpu": "1",
                "nvidia.com/gpu.shared": "4"},
        },
    }));
    let policy = from::<GpuNodePolicy>(json!({
        "apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNodePolicy", "metadata": {"name": "p"},
        "spec": {"nodeSelector": {}}, "status": {"observedGeneration": 1},
    }));
    FleetSummary::new(
        &ListedObjects {
            objects: vec![gpu_node],
            unreadable: Vec::new(),
        },
        &ListedObjects {
            objects: vec![node],
            unreadable: Vec::new(),
        },
        &ListedObjects {
            objects: vec![policy],
            unreadable: Vec::new(),
        },
        OperatorRules::default(),
        now(),
    )
}

/// A rollout on seven nodes: two have it, one is being changed, one failed, two come later, one is down.
pub fn rolling() -> FleetSummary {
    let policy = from::<GpuNodePolicy>(json!({
        "apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNodePolicy", "metadata": {"name": "p", "generation": 2},
        "spec": {"nodeSelector": {}, "devicePlugin": {}, "rollout": {"maxUnavailable": 2}},
        "status": {"observedGeneration": 2, "nodes": {"matched": 7, "ready": 2, "updating": 3, "failed": 2, "conflicted": 0}},
    }));
    let set = PolicySet::new([&policy]);
    let plugin = set
        .get("p")
        .and_then(|policy| policy.device_plugin.clone())
        .expect("a device plugin");
    let wanted = plugin.document.expect("a configuration");
    let step = json!({"startedAt": "2026-01-02T03:09:00Z"});
    let gpu_node = |name: &str, hash: &str, in_force: &str, step: Option<&serde_json::Value>| {
        let rejected =
            (name == "n4").then(|| json!({"hash": hash, "message": "resource nvidia.com/gpu: no GPU is left"}));
        let (ready, reason) = if rejected.is_some() {
            ("False", "ConfigurationRejected")
        } else {
            ("True", "ConfigurationInForce")
        };
        let condition = json!({"type": "Ready", "status": ready, "reason": reason, "message": "resource nvidia.com/gpu: no GPU is left", "lastTransitionTime": "2026-01-02T03:04:05Z"});
        from::<GpuNode>(json!({
            "apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": name},
            "spec": {"config": {"policy": "p", "version": 1, "hash": hash, "document": wanted.text}, "step": step},
            "status": {
                "agent": {"pod": "a", "podUid": "u", "mode": "DevicePlugin", "version": "1", "configVersions": [1]},
                "configHash": in_force, "rejectedConfig": rejected, "conditions": [condition],
            },
        }))
    };
    let new = wanted.hash.as_str();
    let gpu_nodes = [
        gpu_node("n1", new, new, None),
        gpu_node("n2", new, new, None),
        gpu_node("n3", new, "old", Some(&step)),
        gpu_node("n4", new, "old", Some(&step)),
        gpu_node("n5", "old", "old", None),
        gpu_node("n6", "old", "old", None),
        gpu_node("n7", "old", "old", None),
    ];
    let node = |name: &str| {
        let ready = if name == "n7" { "Unknown" } else { "True" };
        let metadata = json!({"name": name, "creationTimestamp": "2026-01-01T00:00:00Z"});
        from::<Node>(json!({
            "apiVersion": "v1", "kind": "Node", "metadata": metadata,
            "status": {"conditions": [{"type": "Ready", "status": ready}]},
        }))
    };
    let nodes = ["n1", "n2", "n3", "n4", "n5", "n6", "n7"].map(node);
    FleetSummary::new(
        &ListedObjects {
            objects: gpu_nodes.into(),
            unreadable: Vec::new(),
        },
        &ListedObjects {
            objects: nodes.into(),
            unreadable: Vec::new(),
        },
        &ListedObjects {
            objects: vec![policy],
            unreadable: Vec::new(),
        },
        OperatorRules::default(),
        now(),
    )
}

/// Two nodes on the way to a layout: GPUs in every phase, and one that cannot have it.
pub fn dividing() -> FleetSummary {
    let gpu = |(index, phase, reason, message): (usize, &str, Option<&str>, Option<&str>)| {
        let observed = if phase == "Applied" {
            "1g.10gb:3,4g.40gb:1"
        } else {
            "1g.10gb:7"
        };
        let mig = json!({"wanted": "1g.10gb:3,4g.40gb:1", "observed": observed, "phase": phase, "reason": reason,
            "message": message, "since": "2026-01-02T03:04:05Z"});
        json!({"index": index, "uuid": format!("GPU-{index}"), "product": "NVIDIA-A100-SXM4-80GB", "memoryMiB": 81920,
            "migMode": "Enabled", "mig": mig})
    };
    let node = |name: &str, gpus: &[(usize, &str, Option<&str>, Option<&str>)]| {
        let holder = json!({"namespace": "team", "pod": "train", "container": "c", "resource": "r", "device": "GPU-1", "count": 1});
        let ready = json!({"type": "Ready", "status": "True", "reason": "ConfigurationInForce", "message": "",
            "lastTransitionTime": "2026-01-02T03:04:05Z"});
        let held = gpus.iter().filter(|(_, phase, ..)| *phase == "Waiting");
        let waiting = held.map(|(index, ..)| {
            json!({"device": format!("GPU-{index}"), "pods": ["team/train"],
                "message": format!("GPU {index} stays r until the last pod that holds it ends, then no resource has it")})
        });
        from::<GpuNode>(json!({
            "apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": name},
            "spec": {"config": {"policy": "p", "version": 1, "hash": "h", "document": "{}"}},
            "status": {"hardware": "4 x NVIDIA-A100-SXM4-80GB", "configHash": "h", "conditions": [ready], "holders": [holder],
                "waiting": waiting.collect::<Vec<_>>(), "gpus": gpus.iter().copied().map(gpu).collect::<Vec<_>>()},
        }))
    };
    let in_use = "process 4711 (dcgm) is on 1g.10gb@3; end it";
    let gpu_nodes = [
        node(
            "a",
            &[
                (0, "Applied", None, None),
                (1, "Waiting", None, Some("waits for team/train")),
                (2, "Blocked", Some("InUse"), Some(in_use)),
                (3, "Blocked", Some("InUse"), Some(in_use)),
            ],
        ),
        node(
            "b",
            &[
                (
                    0,
                    "RebootRequired",
                    Some("ModePending"),
                    Some("the mode changes with the next boot; reboot the node"),
                ),
                (1, "AwaitingApproval", None, Some("waits for its turn")),
            ],
        ),
    ];
    let node = |name: &str| {
        from::<Node>(json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        }))
    };
    let policy = from::<GpuNodePolicy>(json!({
        "apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNodePolicy", "metadata": {"name": "p"},
        "spec": {"nodeSelector": {}}, "status": {"observedGeneration": 1},
    }));
    FleetSummary::new(
        &ListedObjects {
            objects: gpu_nodes.into(),
            unreadable: Vec::new(),
        },
        &ListedObjects {
            objects: ["a", "b"].map(node).into(),
            unreadable: Vec::new(),
        },
        &ListedObjects {
            objects: vec![policy],
            unreadable: Vec::new(),
        },
        OperatorRules::default(),
        now(),
    )
}
