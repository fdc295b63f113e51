//! Rejected pods.

use super::{deleter::delete_pod, *};
use crate::{
    index::cache::DeletedObject,
    pods::rejected_pods::{FailedPod, RejectedPods},
    watch::WatchHealth,
};
use std::collections::HashSet;

const DELETES: &str = "{nodeSelector: {}, deleteRejectedPods: true}";
const SERVES: &str = "{resources: [{name: nvidia.com/gpu, capacity: 1, allocatable: 1, registered: true}]}";

fn pod(name: &str, resource: &str) -> FailedPod {
    let pod = serde_json::from_value(json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "ml", "uid": "pod-uid", "resourceVersion": "41", "ownerReferences":
            [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "r", "controller": true}]},
        "spec": {"nodeName": "n", "containers": [{"name": "main", "resources": {"limits": {resource: "1"}}}]},
        "status": {"phase": "Failed", "reason": "UnexpectedAdmissionError"}}));
    FailedPod::of(pod.unwrap())
}

fn name(name: &str) -> PodName {
    PodName {
        namespace: "ml".to_owned(),
        name: name.to_owned(),
    }
}

fn of(pods: impl IntoIterator<Item = FailedPod>) -> RejectedPods {
    let rejected = RejectedPods::new();
    pods.into_iter()
        .for_each(|pod| rejected.apply(WatchUpdate::applied(pod), &mut HashSet::new()));
    rejected
}

#[tokio::test(start_paused = true)]
async fn rejected_pod_is_deleted_in_the_version_that_was_read() {
    let mut scene = Scene::new(DELETES, SERVES, |_| (200, status(200, "")));
    let rejected = of([pod("a", "nvidia.com/gpu")]);
    assert_eq!(
        delete_pod(&scene.context, &rejected, &name("a")).await,
        WorkResult::Done
    );
    let [(method, path, body)] = scene.requests().try_into().unwrap();
    assert_eq!(
        (method, path.as_str()),
        (Method::DELETE, "/api/v1/namespaces/ml/pods/a")
    );
    assert_eq!(
        body["preconditions"],
        json!({"uid": "pod-uid", "resourceVersion": "41"})
    );
    let reasons: Vec<_> = scene.pod_events().into_iter().map(|(reason, _)| reason).collect();
    assert_eq!(reasons, ["RejectedPodDeleted"]);
    let audited = "deleted 1 pod that had been rejected by node n".to_owned();
    assert_eq!(scene.audited().await, (Some("p".to_owned()), audited));
}

#[tokio::test(start_paused = true)]
async fn pod_that_stays_is_checked_again_later() {
    for (policy, resource) in [("{nodeSelector: {}}", "nvidia.com/gpu"), (DELETES, "example.com/fpga")] {
        let scene = Scene::new(policy, SERVES, |_| (200, status(200, "")));
        let rejected = of([pod("a", resource)]);
        let result = delete_pod(&scene.context, &rejected, &name("a")).await;
        assert_eq!(
            (result, scene.requests().len()),
            (WorkResult::RetryAt(Instant::now() + Duration::from_mins(1)), 0)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn deletion_of_a_pod_that_changed_or_that_failed_is_retried() {
    for (code, reason, expected) in [
        (404, "NotFound", WorkResult::Conflict),
        (409, "Conflict", WorkResult::Conflict),
        (500, "InternalError", WorkResult::Failed),
    ] {
        let scene = Scene::new(DELETES, SERVES, move |_| (code, status(code, reason)));
        let rejected = of([pod("a", "nvidia.com/gpu")]);
        assert_eq!(
            delete_pod(&scene.context, &rejected, &name("a")).await,
            expected,
            "{code}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn deleted_pod_costs_no_request() {
    let scene = Scene::new(DELETES, SERVES, |_| (200, status(200, "")));
    let rejected = of([
        pod("a", "nvidia.com/gpu"),
        pod("b", "nvidia.com/gpu"),
        pod("c", "nvidia.com/gpu"),
    ]);
    let mut listed = HashSet::new();
    let deleted = DeletedObject {
        name: "ml/a".to_owned(),
        version: "42".to_owned(),
    };
    rejected.apply(WatchUpdate::Deleted(deleted), &mut listed);
    let again =
        serde_json::from_value(json!({"metadata": {"name": "b", "namespace": "ml"}, "spec": {"containers": []}}));
    rejected.apply(WatchUpdate::applied(FailedPod::of(again.unwrap())), &mut listed);
    for update in WatchUpdate::list(vec![pod("d", "nvidia.com/gpu")]) {
        rejected.apply(update, &mut listed);
    }
    for gone in ["a", "b", "c"] {
        assert_eq!(
            delete_pod(&scene.context, &rejected, &name(gone)).await,
            WorkResult::Done
        );
    }
    assert_eq!(scene.requests(), []);
    assert_eq!(
        delete_pod(&scene.context, &rejected, &name("d")).await,
        WorkResult::Done
    );
    assert_eq!(scene.requests().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn failed_pods_are_watched_only_while_a_policy_wants_them_deleted() {
    let list = json!({"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []});
    let mut scene = Scene::new("{nodeSelector: {}}", SERVES, move |_| (200, list.clone()));
    let health = WatchHealth::default();
    let deleter = RejectedPodDeleter {
        context: scene.context.clone(),
        client: scene.client.clone(),
        watch_health: health.clone(),
        is_wanted: scene.is_deletion_wanted.clone(),
    };
    let mut work = std::pin::pin!(deleter.run());
    assert!(timeout(Duration::from_mins(1), &mut work).await.is_err());
    assert_eq!(scene.requests(), [], "without such a policy there is no watch");
    let policy = |scene: &mut Scene, spec: &str, version: &str| {
        let mut policy = GpuNodePolicy::new("p", serde_yaml::from_str(spec).unwrap());
        policy.metadata.resource_version = Some(version.to_owned());
        scene.handle(IndexMessage::Policies(WatchUpdate::applied(policy.into())));
    };
    policy(&mut scene, DELETES, "2");
    assert!(timeout(Duration::from_millis(10), &mut work).await.is_err());
    assert!(
        scene
            .requests()
            .iter()
            .any(|(method, path, _)| *method == Method::GET && path == "/api/v1/pods")
    );
    let ages = health.ages(Instant::now());
    assert!(ages.iter().map(|(kind, _)| kind.as_str()).eq(["pods"]), "{ages:?}");
    policy(&mut scene, "{nodeSelector: {}}", "3");
    assert!(timeout(Duration::from_secs(1), &mut work).await.is_err());
    assert_eq!(health.ages(Instant::now()), []);
    scene.requests();
    assert!(timeout(Duration::from_mins(10), &mut work).await.is_err());
    assert_eq!(scene.requests(), [], "the watch has ended");
}
