//! Pods that do not tolerate a new taint.

use super::{drain_watcher::DrainWatcher, *};
use crate::index::message::WrittenObject;

const EVICTING: &str = "{nodeSelector: {}, taints: [{key: k, effect: NoExecute}]}";

fn watcher(scene: &Scene) -> (DrainWatcher, mpsc::Receiver<IndexMessage>) {
    let (messages, received) = mpsc::channel(1);
    let watcher = DrainWatcher {
        context: scene.context.clone(),
        client: scene.client.clone(),
        queue: scene.drains.clone(),
        messages,
    };
    (watcher, received)
}

/// The node once it has the taint.
fn tainted() -> NodeFacts {
    let since = jiff::Timestamp::now().as_second();
    let record = json!({"version": 1, "taints": [{"key": "k", "effect": "NoExecute"}], "policies": ["p"], "evicting": {"k:NoExecute": since}});
    let node = json!({
        "metadata": {"name": "n", "uid": "u", "resourceVersion": "9", "annotations": {"gpunode.dev/owned": record.to_string()}},
        "spec": {"taints": [{"key": "k", "effect": "NoExecute"}]},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    });
    NodeFacts::of(&serde_json::from_value::<Node>(node).unwrap())
}

/// A scene with these pods on the node, which evicts pods.
fn evicting(pods: Value) -> Scene {
    let mut scene = Scene::new(EVICTING, "{}", move |_| (200, pods.clone()));
    let node = Box::new(tainted());
    scene.handle(IndexMessage::Written(WrittenObject::Node(node)));
    scene
}

fn list(pods: &[Value]) -> Value {
    json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": pods})
}

fn pod(tolerations: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "ml"},
        "spec": {"nodeName": "n", "containers": [], "tolerations": tolerations}, "status": {"phase": "Running"}})
}

#[tokio::test(start_paused = true)]
async fn node_is_looked_at_again_while_a_pod_has_to_go() {
    let malformed = json!({"metadata": {"name": "b", "namespace": "ml"}, "spec": {"nodeName": 7}});
    for left in [pod(&json!([])), malformed] {
        let scene = evicting(list(&[left]));
        let (watcher, mut received) = watcher(&scene);
        assert_eq!(timeout(Duration::from_secs(1), scene.drains.next()).await.unwrap(), "n");
        assert!(matches!(watcher.check("n").await, WorkResult::RetryAt(_)));
        assert!(received.try_recv().is_err());
        let (method, path, _) = scene.requests().remove(0);
        assert_eq!((method, path.as_str()), (Method::GET, "/api/v1/pods"));
    }
}

#[tokio::test(start_paused = true)]
async fn end_of_the_last_pod_is_told_once() {
    let mut scene = evicting(list(&[pod(&json!([{"operator": "Exists"}]))]));
    let (watcher, mut received) = watcher(&scene);
    assert_eq!(watcher.check("n").await, WorkResult::Done);
    let message = received.try_recv().unwrap();
    assert!(
        matches!(&message, IndexMessage::Drained { node, .. } if node == "n"),
        "{message:?}"
    );
    scene.handle(message);
    scene.requests();
    assert_eq!(watcher.check("n").await, WorkResult::Done);
    assert!(scene.requests().is_empty(), "nothing is left to look at");
}

#[tokio::test(start_paused = true)]
async fn failed_list_is_repeated() {
    let mut scene = Scene::new(EVICTING, "{}", |_| (500, status(500, "InternalError")));
    let node = Box::new(tainted());
    scene.handle(IndexMessage::Written(WrittenObject::Node(node)));
    assert_eq!(watcher(&scene).0.check("n").await, WorkResult::Failed);
}
