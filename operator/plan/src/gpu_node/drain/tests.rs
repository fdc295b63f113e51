use super::*;
use serde_json::{Value, json};

fn pod(name: &str, more: &Value) -> Pod {
    let mut pod = json!({"metadata": {"name": name, "namespace": "ml", "labels": {"app": name}}, "spec": {"containers": [
            {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}});
    json_patch::merge(&mut pod, more);
    serde_json::from_value(pod).unwrap()
}

fn owned_by(kind: &str) -> Value {
    json!([{"apiVersion": "apps/v1", "kind": kind, "name": "o", "uid": "u", "controller": true}])
}

fn written_by_creator(fields: &Value) -> Value {
    json!([{"manager": "kube-controller-manager", "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": fields}])
}

fn review(pods: &[&str]) -> PodReview {
    let rules: DrainRules = serde_yaml::from_str(
        "{policy: Evict, evict: [{namespace: ml, podSelector: {matchLabels: {app: dcgm}}}, \
          {namespace: ops, podSelector: {matchExpressions: [{key: app, operator: Exists}]}}]}",
    )
    .unwrap();
    PodReview {
        since: Timestamp::UNIX_EPOCH,
        pods: pods.iter().filter_map(|pod| PodName::parse(pod)).collect(),
        resources: ["nvidia.com/gpu".to_owned()].into(),
        rules: rules.evict,
    }
}

#[test]
fn pod_that_would_come_straight_back_is_an_obstacle() {
    let everything = json!([{"operator": "Exists"}]);
    let one_taint = json!([{"key": "gpunode.dev/reconfiguring", "operator": "Exists"}]);
    let other_taint = json!([{"key": "nvidia.com/gpu", "operator": "Exists"}]);
    let bound = written_by_creator(&json!({"f:spec": {"f:nodeName": {}}}));
    let of = |more: &Value| obstacle(&pod("a", more)).is_some();
    let daemon = |tolerations: &Value| json!({"metadata": {"ownerReferences": owned_by("DaemonSet")}, "spec": {"tolerations": tolerations}});
    assert!(of(&daemon(&everything)) && of(&daemon(&one_taint)) && !of(&daemon(&other_taint)));
    let replica = |fields: &Value| {
        json!({"metadata": {"ownerReferences": owned_by("ReplicaSet"), "managedFields": fields},
            "spec": {"nodeName": "n", "tolerations": everything}})
    };
    assert!(of(&replica(&bound)));
    assert!(
        !of(&replica(&written_by_creator(&json!({"f:spec": {"f:containers": {}}})))),
        "the scheduler bound it"
    );
    assert!(
        !of(&json!({"metadata": {"managedFields": bound}})),
        "nobody replaces it"
    );
    assert!(of(
        &json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}})
    ));
}

#[test]
fn review_names_obstacles_among_the_holders_alone_and_finds_the_monitors() {
    let daemon = json!({"metadata": {"ownerReferences": owned_by("DaemonSet")}, "spec": {"tolerations": [{"operator": "Exists"}]}});
    let pods = [pod("train", &json!({})), pod("dcgm", &daemon), pod("sidecar", &daemon)];
    let read = review(&["ml/train", "ml/gone"]).judge(&pods);
    assert!(read.obstacles.is_empty(), "{read:?}");
    assert_eq!(
        read.monitor_obstacles,
        ["ml/dcgm (its DaemonSet tolerates the taint and would replace it at once)"]
    );
    assert!(read.monitors.is_empty(), "{read:?}");
    let read = review(&["ml/train"]).judge(&[pod("dcgm", &json!({})), pod("train", &json!({}))]);
    let monitors: Vec<String> = read.monitors.iter().map(ToString::to_string).collect();
    assert_eq!(monitors, ["ml/dcgm"]);
    let read = review(&["ml/sidecar"]).judge(&pods);
    assert_eq!(
        read.obstacles,
        ["ml/sidecar (its DaemonSet tolerates the taint and would replace it at once)"]
    );
    let ending = pod(
        "sidecar",
        &json!({"metadata": {"ownerReferences": owned_by("DaemonSet"), "deletionTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"tolerations": [{"operator": "Exists"}]}}),
    );
    assert!(review(&["ml/sidecar"]).judge(&[ending]).obstacles.is_empty());
    let claiming = pod("claims", &json!({"spec": {"containers": []}}));
    assert_eq!(
        review(&["ml/claims"]).judge(&[claiming]).obstacles,
        ["ml/claims (it has the GPU through a claim or another plugin, and gpunode evicts no such pod)"]
    );
}

#[test]
fn pause_doubles_up_to_two_hours() {
    let minutes = [1, 2, 3, 4, 5, 40, u32::MAX].map(|attempts| pause_after(attempts).as_mins());
    assert_eq!(minutes, [10, 20, 40, 80, 120, 120, 120]);
}
