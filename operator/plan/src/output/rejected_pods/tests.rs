use super::*;
use crate::{input::context::NodeContext, node::planner::plan_node};
use gpunode_crds::GpuNodePolicy;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};

const DELETES: &str = "{nodeSelector: {}, deleteRejectedPods: true}";
const SERVED: &str = r#"{"version":1,"resources":{"nvidia.com/gpu":null}}"#;

/// A pod as a kubelet leaves it that could not give it its GPU.
fn rejected() -> Value {
    json!({
        "metadata": {"namespace": "ml", "name": "a", "uid": "u", "resourceVersion": "7",
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "r", "controller": true}]},
        "spec": {"nodeName": "n", "containers": [
            {"name": "side", "resources": {"limits": {"cpu": "1"}}},
            {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1", "example.com/none": "0"}}},
        ]},
        "status": {"phase": "Failed", "reason": "UnexpectedAdmissionError"},
    })
}

fn changed(pointer: &str, value: Value) -> Value {
    let mut pod = rejected();
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    pod.pointer_mut(parent).unwrap()[key] = value;
    pod
}

fn kept(pod: &Value) -> Option<RejectedPod> {
    RejectedPod::of(&serde_json::from_value(pod.clone()).unwrap())
}

#[test]
fn pod_that_was_rejected_and_that_a_controller_replaces_is_known_by_little() {
    let expected = RejectedPod {
        name: PodName {
            namespace: "ml".to_owned(),
            name: "a".to_owned(),
        },
        uid: "u".to_owned(),
        resource_version: "7".to_owned(),
        node: "n".to_owned(),
        resources: BTreeSet::from(["nvidia.com/gpu".to_owned()]),
    };
    assert_eq!(kept(&rejected()), Some(expected));
}

#[test]
fn pod_of_another_kind_is_not_even_kept() {
    let owner = |kind: &str, controller: Value| json!([{"apiVersion": "v1", "kind": kind, "name": "r", "uid": "r", "controller": controller}]);
    for pod in [
        changed("/status/phase", json!("Running")),
        changed("/status/reason", json!("Evicted")),
        changed("/status/reason", Value::Null),
        changed("/metadata/ownerReferences", Value::Null),
        changed("/metadata/ownerReferences", owner("ReplicaSet", json!(false))),
        changed("/metadata/ownerReferences", owner("ReplicaSet", Value::Null)),
        changed("/metadata/ownerReferences", owner("Node", json!(true))),
        changed("/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z")),
        changed("/metadata/annotations", json!({"kubernetes.io/config.mirror": "x"})),
        changed("/spec/nodeName", Value::Null),
    ] {
        assert_eq!(kept(&pod), None, "{pod}");
    }
}

fn goes(policies: &[(&str, &str)], labels: &Value, owned: &str, reported: Option<&str>, pod: &Value) -> bool {
    let policies = policies
        .iter()
        .map(|(name, spec)| GpuNodePolicy::new(name, serde_yaml::from_str(spec).unwrap()));
    let set = PolicySet::new(&policies.collect::<Vec<_>>());
    let node = json!({"metadata": {"name": "n", "uid": "u", "resourceVersion": "1", "labels": labels,
        "annotations": {"gpunode.dev/owned": owned}}});
    let node = NodeFacts::of(&serde_json::from_value::<Node>(node).unwrap());
    let gpu_node = reported.map(|resource| {
        let resource = json!({"name": resource, "capacity": 1, "allocatable": 0, "registered": false});
        let gpu_node = json!({"apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNode",
            "metadata": {"name": "n"}, "spec": {}, "status": {"resources": [resource]}});
        GpuNodeFacts::of(serde_json::from_value(gpu_node).unwrap())
    });
    let plan = plan_node(&set, NodeContext::new(&node, gpu_node.as_ref(), Timestamp::UNIX_EPOCH));
    kept(pod)
        .unwrap()
        .deleting_policy(&set, &plan, &node, gpu_node.as_ref())
        .is_some()
}

#[test]
fn rejected_pod_goes_where_a_policy_that_is_in_force_says_so() {
    let none = json!({});
    for (policies, labels, owned, expected) in [
        (vec![], &none, SERVED, false),
        (vec![("p", "{nodeSelector: {}}")], &none, SERVED, false),
        (vec![("p", DELETES)], &none, SERVED, true),
        (
            vec![
                ("p", "{priority: 9, nodeSelector: {}, deleteRejectedPods: false}"),
                ("q", DELETES),
            ],
            &none,
            SERVED,
            true,
        ),
        (
            vec![(
                "p",
                "{nodeSelector: {matchLabels: {pool: x}}, deleteRejectedPods: true}",
            )],
            &none,
            SERVED,
            false,
        ),
        (
            vec![("p", "{mode: Preview, nodeSelector: {}, deleteRejectedPods: true}")],
            &none,
            SERVED,
            false,
        ),
        (
            vec![("p", "{mode: Paused, nodeSelector: {}, deleteRejectedPods: true}")],
            &none,
            SERVED,
            false,
        ),
        (vec![("p", DELETES)], &json!({"gpunode.dev/ignore": ""}), SERVED, false),
        (vec![("p", DELETES)], &none, "no record", false),
    ] {
        assert_eq!(
            goes(&policies, labels, owned, None, &rejected()),
            expected,
            "{policies:?} {labels} {owned}"
        );
    }
}

#[test]
fn only_a_pod_that_asks_for_what_gpunode_serves_goes() {
    let init = changed("/spec/initContainers", rejected()["spec"]["containers"].clone());
    let mut init_only = init.clone();
    init_only["spec"]["containers"] = json!([{"name": "main"}]);
    let other = changed(
        "/spec/containers",
        json!([{"name": "main", "resources": {"limits": {"example.com/fpga": "1"}}}]),
    );
    let without = changed("/spec/containers", json!([{"name": "main"}]));
    let unwanted = r#"{"version":1,"resources":{"nvidia.com/gpu":1000}}"#;
    let nothing = r#"{"version":1}"#;
    for (pod, owned, reported, expected) in [
        (&rejected(), nothing, None, false),
        (&rejected(), nothing, Some("nvidia.com/gpu"), true),
        (&rejected(), nothing, Some("nvidia.com/gpu.shared"), false),
        (&rejected(), unwanted, None, false),
        (&init_only, SERVED, None, true),
        (&other, SERVED, Some("nvidia.com/gpu"), false),
        (&without, SERVED, Some("nvidia.com/gpu"), false),
    ] {
        assert_eq!(
            goes(&[("p", DELETES)], &json!({}), owned, reported, pod),
            expected,
            "{pod} {owned} {reported:?}"
        );
    }
}

#[test]
fn only_a_policy_in_force_makes_it_worthwhile_to_look() {
    for (spec, expected) in [
        ("{nodeSelector: {}}", false),
        ("{mode: Preview, nodeSelector: {}, deleteRejectedPods: true}", false),
        ("{mode: Paused, nodeSelector: {}, deleteRejectedPods: true}", false),
        (DELETES, true),
    ] {
        let policy = GpuNodePolicy::new("p", serde_yaml::from_str(spec).unwrap());
        assert_eq!(
            policies_delete_rejected_pods(&PolicySet::new([&policy])),
            expected,
            "{spec}"
        );
    }
}
