//! Evictions.

use super::*;

const EVICTS: &str = "{nodeSelector: {}, evictPods: true}";
const BROKEN: &str = "
gpus:
- {index: 0, uuid: GPU-0, product: Tesla-T4, memoryMiB: 15360, health: {state: Unhealthy, message: 'XID 79', since: '2026-01-01T10:00:00Z'}}
holders: [{namespace: ml, pod: a, container: main, resource: nvidia.com/gpu, device: GPU-0, count: 1}]
";

fn pod(started: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "a", "namespace": "ml", "uid": "pod-uid", "resourceVersion": "41"},
            "spec": {"nodeName": "n", "containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
            "status": {"phase": "Running", "startTime": started}})
}

async fn scene(started: &'static str, code: u16, reason: &'static str) -> Scene {
    Scene::new(EVICTS, BROKEN, move |method| {
        if *method == Method::GET {
            (200, pod(started))
        } else {
            (code, status(code, reason))
        }
    })
    .await
}

async fn next(scene: &Scene) -> HolderKey {
    timeout(Duration::from_secs(1), scene.controller.evictions().next())
        .await
        .expect("there is something to do")
}

#[tokio::test(start_paused = true)]
async fn pod_is_evicted_as_it_was_looked_at_and_people_hear_why() {
    let mut scene = scene("2026-01-01T09:00:00Z", 201, "").await;
    let key = next(&scene).await;
    assert_eq!(evictor::pass(&scene.parts(), &key).await, Done::Settled);
    let path = "/api/v1/namespaces/ml/pods/a";
    let request = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a", "namespace": "ml"},
            "deleteOptions": {"preconditions": {"uid": "pod-uid", "resourceVersion": "41"}}});
    let expected = [
        (Method::GET, path.to_owned(), Value::Null),
        (Method::POST, format!("{path}/eviction"), request),
    ];
    assert_eq!(scene.asked(), expected);
    let message = "evicted from node n, since it holds GPU-0, which is unhealthy: XID 79";
    assert_eq!(scene.told(), [("PodEvicted".to_owned(), message.to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn namesake_that_started_later_is_left_alone() {
    let scene = scene("2026-01-01T10:00:01Z", 201, "").await;
    let key = next(&scene).await;
    assert_eq!(evictor::pass(&scene.parts(), &key).await, Done::Settled);
    assert_eq!(scene.asked().len(), 1, "it was looked at");
}

#[tokio::test(start_paused = true)]
async fn budget_is_respected_and_the_pod_says_what_it_waits_for() {
    let mut scene = scene("2026-01-01T09:00:00Z", 429, "TooManyRequests").await;
    let key = next(&scene).await;
    let mut pauses = Vec::new();
    for _ in 0..7 {
        let done = evictor::pass(&scene.parts(), &key).await;
        assert_eq!(done, Done::Refused);
        let before = Instant::now();
        scene.controller.evictions().done(key.clone(), done);
        scene.controller.evictions().next().await;
        pauses.push(before.elapsed().as_secs());
    }
    let least = [10, 20, 40, 80, 160, 300, 300];
    assert!(
        pauses
            .iter()
            .zip(least)
            .all(|(pause, least)| (least..=least * 6 / 5).contains(pause)),
        "{pauses:?}"
    );
    let message =
        "to be evicted from node n, since it holds GPU-0, which is unhealthy: XID 79; refused so far: Cannot evict";
    assert_eq!(
        scene.told().first(),
        Some(&("EvictionRefused".to_owned(), message.to_owned()))
    );
}

#[tokio::test(start_paused = true)]
async fn every_answer_has_its_end() {
    for (code, reason, expected) in [
        (404, "NotFound", Done::Settled),
        (409, "Conflict", Done::Raced),
        (500, "InternalError", Done::Refused),
        (503, "ServiceUnavailable", Done::Failed),
    ] {
        let scene = scene("2026-01-01T09:00:00Z", code, reason).await;
        let key = next(&scene).await;
        assert_eq!(evictor::pass(&scene.parts(), &key).await, expected, "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn refusal_in_the_guise_of_a_success_is_one() {
    let answer = |method: &Method| {
        if *method == Method::GET {
            (200, pod("2026-01-01T09:00:00Z"))
        } else {
            (201, status(500, ""))
        }
    };
    let scene = Scene::new(EVICTS, BROKEN, answer).await;
    let key = next(&scene).await;
    assert_eq!(evictor::pass(&scene.parts(), &key).await, Done::Refused);
}

#[tokio::test(start_paused = true)]
async fn device_that_works_again_costs_no_look_at_its_holder() {
    let scene = scene("2026-01-01T09:00:00Z", 201, "").await;
    let key = next(&scene).await;
    let mut whole = GpuNode::new("n", serde_yaml::from_str("{}").unwrap());
    whole.metadata.resource_version = Some("3".to_owned());
    scene
        .controller
        .with_index(|index, now, effects| index.take_gpu_nodes(Change::Set(whole), now, effects));
    assert_eq!(evictor::pass(&scene.parts(), &key).await, Done::Settled);
    assert_eq!(scene.asked(), []);
}
