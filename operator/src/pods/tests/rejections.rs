//! Rejected pods.

use super::*;
use crate::{lenient::Readable, pods::rejected_pods::Rejected};
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher::Event;
use std::collections::HashSet;

const DELETES: &str = "{nodeSelector: {}, deleteRejectedPods: true}";
const SERVES: &str = "{resources: [{name: nvidia.com/gpu, capacity: 1, allocatable: 1, registered: true}]}";

fn pod(name: &str, resource: &str) -> Readable<Pod> {
    serde_json::from_value(json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "ml", "uid": "pod-uid", "resourceVersion": "41", "ownerReferences":
            [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "r", "controller": true}]},
        "spec": {"nodeName": "n", "containers": [{"name": "main", "resources": {"limits": {resource: "1"}}}]},
        "status": {"phase": "Failed", "reason": "UnexpectedAdmissionError"}}))
    .unwrap()
}

fn name(name: &str) -> PodName {
    PodName {
        namespace: "ml".to_owned(),
        name: name.to_owned(),
    }
}

fn of(pods: impl IntoIterator<Item = Readable<Pod>>) -> Rejected {
    let rejected = Rejected::new();
    pods.into_iter()
        .for_each(|pod| rejected.take(Event::Apply(pod), &mut HashSet::new()));
    rejected
}

#[tokio::test(start_paused = true)]
async fn rejected_pod_is_deleted_as_it_was_seen() {
    let mut scene = Scene::new(DELETES, SERVES, |_| (200, status(200, ""))).await;
    let rejected = of([pod("a", "nvidia.com/gpu")]);
    assert_eq!(rejected.pass(&scene.parts(), &name("a")).await, Done::Settled);
    let [(method, path, body)] = scene.asked().try_into().unwrap();
    assert_eq!(
        (method, path.as_str()),
        (Method::DELETE, "/api/v1/namespaces/ml/pods/a")
    );
    assert_eq!(
        body["preconditions"],
        json!({"uid": "pod-uid", "resourceVersion": "41"})
    );
    let told: Vec<_> = scene.told().into_iter().map(|(reason, _)| reason).collect();
    assert_eq!(told, ["RejectedPodDeleted"]);
}

#[tokio::test(start_paused = true)]
async fn pod_that_is_not_to_go_is_looked_at_again_later() {
    for (policy, resource) in [("{nodeSelector: {}}", "nvidia.com/gpu"), (DELETES, "example.com/fpga")] {
        let scene = Scene::new(policy, SERVES, |_| (200, status(200, ""))).await;
        let done = of([pod("a", resource)]).pass(&scene.parts(), &name("a")).await;
        assert_eq!(
            (done, scene.asked().len()),
            (Done::Again(Instant::now() + Duration::from_mins(1)), 0)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn pod_that_changed_or_cannot_be_deleted_is_tried_again() {
    for (code, reason, expected) in [
        (404, "NotFound", Done::Raced),
        (409, "Conflict", Done::Raced),
        (500, "InternalError", Done::Failed),
    ] {
        let scene = Scene::new(DELETES, SERVES, move |_| (code, status(code, reason))).await;
        let rejected = of([pod("a", "nvidia.com/gpu")]);
        assert_eq!(rejected.pass(&scene.parts(), &name("a")).await, expected, "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn pod_that_is_gone_costs_nothing() {
    let scene = Scene::new(DELETES, SERVES, |_| (200, status(200, ""))).await;
    let rejected = of([
        pod("a", "nvidia.com/gpu"),
        pod("b", "nvidia.com/gpu"),
        pod("c", "nvidia.com/gpu"),
    ]);
    let mut listed = HashSet::new();
    rejected.take(Event::Delete(pod("a", "nvidia.com/gpu")), &mut listed);
    let again =
        serde_json::from_value(json!({"metadata": {"name": "b", "namespace": "ml"}, "spec": {"containers": []}}));
    rejected.take(Event::Apply(again.unwrap()), &mut listed);
    for event in [
        Event::Init,
        Event::InitApply(pod("d", "nvidia.com/gpu")),
        Event::InitDone,
    ] {
        rejected.take(event, &mut listed);
    }
    for gone in ["a", "b", "c"] {
        assert_eq!(rejected.pass(&scene.parts(), &name(gone)).await, Done::Settled);
    }
    assert_eq!(scene.asked(), []);
    assert_eq!(rejected.pass(&scene.parts(), &name("d")).await, Done::Settled);
    assert_eq!(scene.asked().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn failed_pods_are_watched_only_while_a_policy_wants_them_to_go() {
    let list = json!({"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []});
    let scene = Scene::new("{nodeSelector: {}}", SERVES, move |_| (200, list.clone())).await;
    let parts = scene.parts();
    let mut work = std::pin::pin!(rejected_pods::delete_rejected_pods(&parts));
    assert!(timeout(Duration::from_mins(1), &mut work).await.is_err());
    assert_eq!(scene.asked(), [], "nobody wants it, so nobody watches");
    let policy = |spec: &str, version: &str| {
        let mut policy = GpuNodePolicy::new("p", serde_yaml::from_str(spec).unwrap());
        policy.metadata.resource_version = Some(version.to_owned());
        scene
            .controller
            .with_index(|index, now, effects| index.take_policies(Change::Set(policy), now, effects));
    };
    policy(DELETES, "2");
    assert!(timeout(Duration::from_millis(10), &mut work).await.is_err());
    assert!(
        scene
            .asked()
            .iter()
            .any(|(method, path, _)| *method == Method::GET && path == "/api/v1/pods")
    );
    policy("{nodeSelector: {}}", "3");
    assert!(timeout(Duration::from_secs(1), &mut work).await.is_err());
    scene.asked();
    assert!(timeout(Duration::from_mins(10), &mut work).await.is_err());
    assert_eq!(scene.asked(), [], "the watch has ended");
}
