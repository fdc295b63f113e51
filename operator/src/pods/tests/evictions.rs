//! Evictions.

use super::{evictor::evict, *};

const EVICTS: &str = "{nodeSelector: {}, evictPods: true}";
const UNHEALTHY: &str = "
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

fn scene(started: &'static str, code: u16, reason: &'static str) -> Scene {
    Scene::new(EVICTS, UNHEALTHY, move |method| {
        if *method == Method::GET {
            (200, pod(started))
        } else {
            (code, status(code, reason))
        }
    })
}

async fn next(scene: &Scene) -> EvictionKey {
    timeout(Duration::from_secs(1), scene.evictions.next())
        .await
        .expect("there is something to do")
}

#[tokio::test(start_paused = true)]
async fn pod_is_evicted_in_the_version_that_was_read_and_an_event_says_why() {
    let mut scene = scene("2026-01-01T09:00:00Z", 201, "");
    let key = next(&scene).await;
    assert_eq!(evict(&scene.context, &key).await, WorkResult::Done);
    let path = "/api/v1/namespaces/ml/pods/a";
    let request = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a", "namespace": "ml"},
            "deleteOptions": {"preconditions": {"uid": "pod-uid", "resourceVersion": "41"}}});
    let expected = [
        (Method::GET, path.to_owned(), Value::Null),
        (Method::POST, format!("{path}/eviction"), request),
    ];
    assert_eq!(scene.requests(), expected);
    let message = "evicted from node n: it holds GPU-0, which is broken: XID 79";
    assert_eq!(scene.pod_events(), [("PodEvicted".to_owned(), message.to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn namesake_that_started_later_stays() {
    let scene = scene("2026-01-01T10:00:01Z", 201, "");
    let key = next(&scene).await;
    assert_eq!(evict(&scene.context, &key).await, WorkResult::Done);
    assert_eq!(scene.requests().len(), 1, "it was read");
}

#[tokio::test(start_paused = true)]
async fn budget_is_respected_and_an_event_says_what_the_eviction_waits_for() {
    let mut scene = scene("2026-01-01T09:00:00Z", 429, "TooManyRequests");
    let key = next(&scene).await;
    let mut pauses = Vec::new();
    for _ in 0..7 {
        let result = evict(&scene.context, &key).await;
        assert_eq!(result, WorkResult::TooEarly);
        let before = Instant::now();
        scene.evictions.done(key.clone(), result);
        scene.evictions.next().await;
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
    let message = "waits for eviction from node n: it holds GPU-0, which is broken: XID 79; the API server refuses so far: Cannot evict";
    assert_eq!(
        scene.pod_events().first(),
        Some(&("EvictionRefused".to_owned(), message.to_owned()))
    );
}

#[tokio::test(start_paused = true)]
async fn every_answer_decides_about_the_next_try() {
    for (code, reason, expected) in [
        (404, "NotFound", WorkResult::Done),
        (409, "Conflict", WorkResult::Conflict),
        (500, "InternalError", WorkResult::TooEarly),
        (503, "ServiceUnavailable", WorkResult::Failed),
    ] {
        let scene = scene("2026-01-01T09:00:00Z", code, reason);
        let key = next(&scene).await;
        assert_eq!(evict(&scene.context, &key).await, expected, "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn failure_in_the_body_of_a_success_is_a_refusal() {
    let answer = |method: &Method| {
        if *method == Method::GET {
            (200, pod("2026-01-01T09:00:00Z"))
        } else {
            (201, status(500, ""))
        }
    };
    let scene = Scene::new(EVICTS, UNHEALTHY, answer);
    let key = next(&scene).await;
    assert_eq!(evict(&scene.context, &key).await, WorkResult::TooEarly);
}

#[tokio::test(start_paused = true)]
async fn holder_of_a_recovered_device_is_not_read() {
    let mut scene = scene("2026-01-01T09:00:00Z", 201, "");
    let key = next(&scene).await;
    let mut healthy = GpuNode::new("n", serde_yaml::from_str("{}").unwrap());
    healthy.metadata.resource_version = Some("3".to_owned());
    let message = IndexMessage::GpuNodes(WatchUpdate::applied(GpuNodeFacts::of(healthy)));
    scene.handle(message);
    assert_eq!(evict(&scene.context, &key).await, WorkResult::Done);
    assert_eq!(scene.requests(), []);
}
