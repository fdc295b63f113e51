use super::*;
use crate::{input::context::NodeContext, node::planner::plan_node};
use gpunode_crds::{GpuNode, GpuNodePolicy};
use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};
use std::collections::BTreeSet;

const EVICTS: &str = "{nodeSelector: {}, evictPods: true}";

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn policy(name: &str, spec: &str) -> GpuNodePolicy {
    GpuNodePolicy::new(name, serde_yaml::from_str(spec).unwrap())
}

fn broken_since(second: i64, message: &str) -> Value {
    json!({"state": "Unhealthy", "reason": "Xid", "message": message, "since": at(second).to_string()})
}

fn gpu(index: i32, health: &Value) -> Value {
    json!({"index": index, "uuid": format!("GPU-{index}"), "product": "Tesla-T4", "memoryMiB": 15360, "health": health})
}

fn holder(pod: &str, device: &str) -> Value {
    json!({"namespace": "ml", "pod": pod, "container": "main", "resource": "nvidia.com/gpu", "device": device, "count": 1})
}

/// A node whose GPU 0 broke at 100, and GPU 1 at 200; GPU 2 works. `a` holds the first, `b` both, `c` the last.
fn gpu_node() -> GpuNode {
    let healthy = json!({"state": "Healthy"});
    let gpus = [
        gpu(0, &broken_since(100, "XID 79: lost")),
        gpu(1, &broken_since(200, "XID 48: ECC")),
        gpu(2, &healthy),
    ];
    let holders = [
        holder("a", "GPU-0"),
        holder("b", "GPU-0"),
        holder("b", "GPU-1"),
        holder("c", "GPU-2"),
    ];
    serde_json::from_value(json!({"apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNode",
        "metadata": {"name": "n", "resourceVersion": "7"}, "spec": {}, "status": {"gpus": gpus, "holders": holders}}))
    .unwrap()
}

fn facts(labels: &Value, owned: &str, ready: &str) -> NodeFacts {
    let node = json!({"metadata": {"name": "n", "uid": "u", "resourceVersion": "1", "labels": labels,
        "annotations": {"gpunode.dev/owned": owned}},
        "status": {"conditions": [{"type": "Ready", "status": ready}]}});
    NodeFacts::of(&serde_json::from_value::<Node>(node).unwrap())
}

const NOTHING: &str = r#"{"version":1}"#;

fn of(policies: &[GpuNodePolicy], node: &NodeFacts, gpu_node: &GpuNode) -> BTreeMap<PodName, PodEviction> {
    let set = PolicySet::new(policies);
    let gpu_node = GpuNodeFacts::of(gpu_node.clone());
    let plan = plan_node(&set, NodeContext::new(node, Some(&gpu_node), at(1000)));
    evictions(&set, &plan, node, Some(&gpu_node))
}

fn since(eviction: &PodEviction) -> Timestamp {
    match &eviction.cause {
        EvictionCause::Broken { since, .. }
        | EvictionCause::Change { since, .. }
        | EvictionCause::OpenHandle { since } => *since,
    }
}

fn names(evictions: &BTreeMap<PodName, PodEviction>) -> Vec<&str> {
    evictions.keys().map(|pod| pod.name.as_str()).collect()
}

#[test]
fn pods_that_hold_a_broken_gpu_are_evicted_and_told_why() {
    let found = of(&[policy("p", EVICTS)], &facts(&json!({}), NOTHING, "True"), &gpu_node());
    let reasons: Vec<_> = found
        .iter()
        .map(|(pod, why)| (pod.to_string(), since(why), why.cause.to_string()))
        .collect();
    assert_eq!(
        reasons,
        [
            (
                "ml/a".to_owned(),
                at(100),
                "it holds GPU-0, which is broken: XID 79: lost".to_owned()
            ),
            (
                "ml/b".to_owned(),
                at(200),
                "it holds GPU-1, which is broken: XID 48: ECC".to_owned()
            ),
        ]
    );
}

#[test]
fn pods_on_devices_that_only_get_no_new_work_stay() {
    let graded = |grade: &str| {
        let mut gpu_node = gpu_node();
        for gpu in &mut gpu_node.status.as_mut().unwrap().gpus {
            if let Some(health) = gpu.health.as_mut().filter(|health| health.reason.is_some()) {
                health.grade = serde_json::from_value(json!(grade)).unwrap();
            }
        }
        gpu_node
    };
    let of_grade = |grade| {
        of(
            &[policy("p", EVICTS)],
            &facts(&json!({}), NOTHING, "True"),
            &graded(grade),
        )
    };
    assert!(of_grade("NoNewWork").is_empty());
    assert_eq!(names(&of_grade("Broken")), ["a", "b"]);
}

#[test]
fn one_policy_that_matches_and_is_in_force_is_enough() {
    let node = facts(&json!({"pool": "x"}), NOTHING, "True");
    for (policies, expected) in [
        (vec![], false),
        (vec![policy("p", "{nodeSelector: {}}")], false),
        (vec![policy("p", "{nodeSelector: {}, evictPods: false}")], false),
        (
            vec![policy("p", "{nodeSelector: {matchLabels: {pool: y}}, evictPods: true}")],
            false,
        ),
        (
            vec![policy("p", "{mode: Preview, nodeSelector: {}, evictPods: true}")],
            false,
        ),
        (
            vec![policy("p", "{mode: Paused, nodeSelector: {}, evictPods: true}")],
            false,
        ),
        (
            vec![
                policy("p", "{priority: 9, nodeSelector: {}, evictPods: false}"),
                policy("q", EVICTS),
            ],
            true,
        ),
    ] {
        assert_eq!(!of(&policies, &node, &gpu_node()).is_empty(), expected, "{policies:?}");
    }
}

#[test]
fn node_that_is_released_left_alone_or_away_keeps_its_pods() {
    let paused = r#"{"version":1,"policies":["q"]}"#;
    let policies = [
        policy("p", EVICTS),
        policy("q", "{mode: Paused, nodeSelector: {}, labels: {x: y}}"),
    ];
    for (node, keeps) in [
        (facts(&json!({}), NOTHING, "True"), false),
        (facts(&json!({"gpunode.dev/release": "true"}), NOTHING, "True"), true),
        (
            facts(
                &json!({"nvidia.com/gpu.deploy.device-plugin": "paused-for-driver-upgrade"}),
                NOTHING,
                "True",
            ),
            true,
        ),
        (facts(&json!({"gpunode.dev/ignore": ""}), NOTHING, "True"), true),
        (facts(&json!({}), paused, "True"), true),
        (facts(&json!({}), "no record", "True"), true),
        (facts(&json!({}), NOTHING, "Unknown"), true),
    ] {
        assert_eq!(of(&policies, &node, &gpu_node()).is_empty(), keeps, "{node:?}");
    }
    let mut still = gpu_node();
    still.spec.release = true;
    assert!(
        of(&policies, &facts(&json!({}), NOTHING, "True"), &still).is_empty(),
        "its agent has not come back yet"
    );
}

#[test]
fn mig_device_is_broken_by_itself_or_with_its_gpu() {
    let mut node = gpu_node();
    let status = node.status.as_mut().unwrap();
    let mig = |uuid: &str, health: Value| {
        serde_json::from_value(
            json!({"uuid": uuid, "profile": "1g.10gb", "gpuInstance": 1, "computeInstance": 0,
            "memoryMiB": 9728, "health": health}),
        )
        .unwrap()
    };
    status.gpus[0].mig_devices = vec![
        mig("MIG-0", Value::Null),
        mig("MIG-1", broken_since(50, "XID 94: contained")),
    ];
    status.gpus[2].mig_devices = vec![
        mig("MIG-2", broken_since(70, "XID 94: contained")),
        mig("MIG-3", Value::Null),
    ];
    let pods = ["MIG-0", "MIG-1", "MIG-2", "MIG-3"];
    status.holders = pods
        .map(|uuid| serde_json::from_value(holder(uuid, uuid)).unwrap())
        .to_vec();
    let found = of(&[policy("p", EVICTS)], &facts(&json!({}), NOTHING, "True"), &node);
    let since: Vec<_> = found
        .iter()
        .map(|(pod, why)| (pod.name.as_str(), since(why).as_second()))
        .collect();
    assert_eq!(since, [("MIG-0", 100), ("MIG-1", 50), ("MIG-2", 70)]);
}

#[test]
fn device_of_which_nobody_says_since_when_it_is_broken_costs_nobody_anything() {
    let mut node = gpu_node();
    for gpu in &mut node.status.as_mut().unwrap().gpus {
        gpu.health.as_mut().unwrap().since = None;
    }
    assert!(of(&[policy("p", EVICTS)], &facts(&json!({}), NOTHING, "True"), &node).is_empty());
}

#[test]
fn only_the_holders_of_broken_devices_are_kept() {
    let (policies, node) = ([policy("p", EVICTS)], facts(&json!({}), NOTHING, "True"));
    let read = GpuNodeFacts::of(gpu_node());
    let kept: Vec<_> = read
        .status
        .as_ref()
        .unwrap()
        .holders
        .iter()
        .map(|holder| holder.pod.as_str())
        .collect();
    assert_eq!(kept, ["a", "b", "b"]);
    assert_eq!(names(&of(&policies, &node, &gpu_node())), ["a", "b"]);
}

#[test]
fn pod_that_cannot_hold_the_device_is_left_alone() {
    let (device, resource) = ("GPU-0".to_owned(), "nvidia.com/gpu".to_owned());
    let eviction = PodEviction {
        policy: "p".to_owned(),
        cause: EvictionCause::Broken {
            device,
            resource,
            since: at(100),
            fault: "x".to_owned(),
        },
        grace_seconds: None,
    };
    let asks = |name: &str, count: &str| json!([{"name": "main", "resources": {"limits": {name: count}}}]);
    let pod = || {
        json!({"metadata": {"name": "a", "namespace": "ml"},
            "spec": {"nodeName": "n", "containers": asks("nvidia.com/gpu", "1")},
            "status": {"phase": "Running", "startTime": at(100).to_string()}})
    };
    let changed = |pointer: &str, value: Value| {
        let mut pod = pod();
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        pod.pointer_mut(parent).unwrap()[key] = value;
        pod
    };
    for (pod, expected) in [
        (pod(), true),
        (changed("/status/phase", json!("Pending")), true),
        (changed("/spec/containers", asks("nvidia.com/gpu", "0")), false),
        (changed("/spec/containers", asks("cpu", "1")), false),
        (changed("/status/startTime", json!(at(101).to_string())), false),
        (changed("/status/startTime", Value::Null), false),
        (changed("/spec/nodeName", json!("other")), false),
        (
            changed("/metadata/deletionTimestamp", json!(at(150).to_string())),
            false,
        ),
        (changed("/status/phase", json!("Failed")), false),
        (changed("/status/phase", json!("Succeeded")), false),
        (
            changed("/metadata/annotations", json!({"kubernetes.io/config.mirror": "x"})),
            false,
        ),
    ] {
        assert_eq!(
            eviction.is_of(&serde_json::from_value(pod.clone()).unwrap(), "n"),
            expected,
            "{pod}"
        );
    }
}

#[test]
fn drain_evicts_holders_from_before_it_and_no_later_pod_of_the_same_name() {
    let (resources, since) = (BTreeSet::from(["nvidia.com/gpu".to_owned()]), at(100));
    let of = |cause: &EvictionCause, created: i64, resource: &str| {
        let pod = json!({"metadata": {"name": "a", "namespace": "ml", "creationTimestamp": at(created).to_string()},
            "spec": {"nodeName": "n", "containers": [{"name": "main", "resources": {"limits": {resource: "1"}}}]}});
        let eviction = PodEviction {
            policy: "p".to_owned(),
            cause: cause.clone(),
            grace_seconds: None,
        };
        eviction.is_of(&serde_json::from_value(pod).unwrap(), "n")
    };
    let holder = EvictionCause::Change { resources, since };
    assert!(of(&holder, 50, "nvidia.com/gpu") && of(&holder, 130, "nvidia.com/gpu"));
    assert!(!of(&holder, 131, "nvidia.com/gpu") && !of(&holder, 50, "example.com/fpga"));
    let monitor = EvictionCause::OpenHandle { since };
    assert!(of(&monitor, 50, "cpu") && !of(&monitor, 131, "cpu"));
}
