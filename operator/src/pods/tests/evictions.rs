//! Evictions.

use super::{
    evictor::{after_refusal, evict},
    *,
};
use gpunode_plan::EvictionCause;
use std::collections::BTreeSet;

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
    let audited = "evicted 1 pod from broken GPUs of node n".to_owned();
    assert_eq!(scene.audited().await, (Some("p".to_owned()), audited));
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
    assert_eq!(scene.pod_events(), [("EvictionRefused".to_owned(), message.to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn refusal_is_told_again_with_another_text_and_before_the_api_server_forgets_it() {
    let text = Arc::new(Mutex::new("one budget"));
    let answered = text.clone();
    let mut scene = Scene::new(EVICTS, UNHEALTHY, move |method| {
        let mut refusal = status(429, "TooManyRequests");
        refusal["message"] = json!(*answered.lock().unwrap());
        if *method == Method::GET {
            (200, pod("2026-01-01T09:00:00Z"))
        } else {
            (429, refusal)
        }
    });
    let key = next(&scene).await;
    for (after, answer, count) in [
        (0, "one budget", 1),
        (10, "one budget", 0),
        (10, "two budgets", 1),
        (1800, "two budgets", 1),
    ] {
        tokio::time::advance(Duration::from_secs(after)).await;
        *text.lock().unwrap() = answer;
        evict(&scene.context, &key).await;
        assert_eq!(scene.pod_events().len(), count, "{after} {answer}");
    }
}

#[tokio::test(start_paused = true)]
async fn budget_lets_the_pods_of_a_drain_go_one_after_the_other_within_its_time() {
    let since = "2026-01-01T10:00:00Z".parse().unwrap();
    let of_drain = [
        EvictionCause::OpenHandle { since },
        EvictionCause::Change {
            resources: BTreeSet::new(),
            since,
        },
    ];
    for cause in of_drain {
        let soon = WorkResult::RetryAt(Instant::now() + Duration::from_secs(10));
        assert_eq!(after_refusal(&cause), soon);
    }
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

/// A drain under way: the devices are withdrawn, and nobody has read the pods.
fn drain(pods: Value) -> Scene {
    let policy = "{nodeSelector: {}, devicePlugin: {}, drain: {policy: Evict, gracePeriod: 45s}}";
    let plugin: gpunode_crds::GpuNodePolicySpec = serde_yaml::from_str(policy).unwrap();
    let document = gpunode_config::ConfigDocument::of(plugin.device_plugin.as_ref().unwrap());
    let condition =
        "{type: Ready, status: 'True', reason: Registered, message: '', lastTransitionTime: '2026-01-01T00:00:00Z'}";
    let status = format!(
        "
agent: {{pod: a, podUid: u, mode: DevicePlugin, version: '1', configVersions: [1]}}
configHash: {}
conditions: [{condition}]
gpus: [{{index: 0, uuid: GPU-0, product: Tesla-T4, memoryMiB: 15360}}]
resources: [{{name: nvidia.com/gpu, capacity: 1, allocatable: 0, registered: true, devices: [{{device: GPU-0, shares: 1, healthy: 0}}]}}]
waiting: [{{device: GPU-0, message: m, pods: [ml/a], switches: true}}]
",
        document.hash
    );
    let mut scene = Scene::new(policy, &status, move |method| {
        if *method == Method::GET {
            (200, pods.clone())
        } else {
            (201, json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}))
        }
    });
    let change = json!({"state": "Prepare", "hash": document.hash, "since": jiff::Timestamp::now()});
    let config = json!({"policy": "p", "version": 1, "hash": document.hash, "document": document.text});
    let gpu_node = json!({"apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNode",
        "metadata": {"name": "n", "uid": "g", "resourceVersion": "3"}, "spec": {"config": config, "change": change},
        "status": serde_yaml::from_str::<Value>(&status).unwrap()});
    let facts = gpunode_plan::GpuNodeFacts::of(serde_json::from_value(gpu_node).unwrap());
    let update = WatchUpdate::applied(facts);
    scene.handle(IndexMessage::GpuNodes(update));
    let taint = json!({"key": "gpunode.dev/reconfiguring", "effect": "NoSchedule"});
    let record = json!({"version": 1, "taints": [taint], "policies": ["p"]});
    let node = json!({
        "metadata": {"name": "n", "uid": "u", "resourceVersion": "2", "annotations": {"gpunode.dev/owned": record.to_string()}},
        "spec": {"taints": [taint]},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    });
    let facts = NodeFacts::of(&serde_json::from_value::<Node>(node).unwrap());
    scene.handle(IndexMessage::Nodes(WatchUpdate::applied(facts)));
    scene
}

#[tokio::test(start_paused = true)]
async fn pods_are_read_before_a_drain_evicts_them_with_the_grace_period_of_the_policy() {
    let mut pod = pod("2026-01-01T09:00:00Z");
    pod["metadata"]["creationTimestamp"] = json!("2026-01-01T08:00:00Z");
    // One answer for the list of the node's pods and for the pod.
    pod["items"] = json!([pod.clone()]);
    let mut scene = drain(pod);
    assert!(
        timeout(Duration::from_secs(1), scene.evictions.next()).await.is_err(),
        "nobody has read the pods"
    );
    let (messages, mut received) = mpsc::channel(1);
    let watcher = drain_watcher::DrainWatcher {
        context: scene.context.clone(),
        client: scene.client.clone(),
        queue: scene.drains.clone(),
        messages,
    };
    assert_eq!(timeout(Duration::from_secs(1), scene.drains.next()).await.unwrap(), "n");
    assert_eq!(watcher.check("n").await, WorkResult::Done);
    let reviewed = received.try_recv().unwrap();
    assert!(
        matches!(&reviewed, IndexMessage::PodsReviewed { node, .. } if node == "n"),
        "{reviewed:?}"
    );
    scene.handle(reviewed);
    scene.reconciler.take_due();
    let key = next(&scene).await;
    assert_eq!(key.pod.to_string(), "ml/a");
    scene.requests();
    assert_eq!(evict(&scene.context, &key).await, WorkResult::Done);
    let (method, _, request) = scene.requests().remove(1);
    assert_eq!(
        (method, &request["deleteOptions"]["gracePeriodSeconds"]),
        (Method::POST, &json!(45))
    );
}
