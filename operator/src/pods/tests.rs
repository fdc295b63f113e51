//! What is asked of the API server, and what its answers come to.

use super::{evicted, rejected, *};
use crate::{
    controller::{Change, Done},
    lease::LEASE_DURATION,
};
use gpunode_crds::{GpuNode, GpuNodePolicy};
use gpunode_plan::{AgentPods, NodeFacts, PodName};
use http::{Method, Request, Response};
use http_body::Body as _;
use k8s_openapi::api::core::v1::Node;
use kube::client::Body;
use serde_json::{Value, json};
use std::{
    convert::Infallible,
    future::poll_fn,
    pin::Pin,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    sync::mpsc,
    time::{Instant, timeout},
};
use tower::service_fn;

/// Method, path and body of a request.
type Asked = (Method, String, Value);

/// An operator that leads, with an API server that answers as told.
struct Scene {
    controller: Controller,
    notices: mpsc::Receiver<Notice>,
    metrics: Metrics,
    client: Client,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Scene {
    /// The policy and the status of the `GpuNode` are YAML; `answer` is the code and body for a method.
    async fn new(
        policy: &str,
        status: &str,
        answer: impl Fn(&Method) -> (u16, Value) + Clone + Send + 'static,
    ) -> Self {
        let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let seen = asked.clone();
        let service = service_fn(move |request: Request<Body>| {
            let (seen, answer) = (seen.clone(), answer.clone());
            async move {
                let (parts, mut body) = request.into_parts();
                let frame = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await;
                let bytes = frame.map(|frame| frame.unwrap().into_data().unwrap()).unwrap_or_default();
                let sent = serde_json::from_slice(&bytes).unwrap_or_default();
                let (code, body) = answer(&parts.method);
                seen.lock().unwrap().push((parts.method, parts.uri.path().to_owned(), sent));
                let response = Response::builder().status(code).body(Body::from(body.to_string().into_bytes()));
                Ok::<_, Infallible>(response.unwrap())
            }
        });
        let pods = AgentPods { namespace: "ns".to_owned(), image: "image".to_owned() };
        let (controller, notices) = Controller::new(pods, true);
        let node = json!({"metadata": {"name": "n", "uid": "u", "resourceVersion": "1"},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        let node = NodeFacts::of(&serde_json::from_value::<Node>(node).unwrap());
        let mut gpu_node = GpuNode::new("n", serde_yaml::from_str("{}").unwrap());
        gpu_node.status = serde_yaml::from_str(status).unwrap();
        gpu_node.metadata.resource_version = Some("2".to_owned());
        let policy = GpuNodePolicy::new("p", serde_yaml::from_str(policy).unwrap());
        controller.with_index(|index, now, effects| {
            index.take_policies(Change::All(vec![policy]), now, effects);
            index.take_nodes(Change::All(vec![node]), now, effects);
            index.take_gpu_nodes(Change::All(vec![gpu_node]), now, effects);
            index.take_daemonsets(Change::All(vec![]), now, effects);
        });
        controller.lead().await;
        Self { controller, notices, metrics: Metrics::new(), client: Client::new(service, "ns"), asked }
    }

    fn parts(&self) -> Parts<'_> {
        let (client, guarded) = (self.client.clone(), self.client.clone());
        let claim = Claim::until(Instant::now() + LEASE_DURATION);
        Parts { controller: &self.controller, client, guarded, metrics: &self.metrics, claim }
    }

    fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }

    /// Reasons and messages of what people are told of pods.
    fn told(&mut self) -> Vec<(String, String)> {
        let notices = std::iter::from_fn(|| self.notices.try_recv().ok());
        let of_pods = notices.filter(|notice| notice.about.kind.as_deref() == Some("Pod"));
        of_pods.map(|notice| (notice.reason, notice.message)).collect()
    }
}

fn status(code: u16, reason: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": if code < 300 { "Success" } else { "Failure" },
        "code": code, "reason": reason, "message": "Cannot evict"})
}

mod evictions {
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
            "spec": {"nodeName": "n", "containers": []}, "status": {"phase": "Running", "startTime": started}})
    }

    async fn scene(started: &'static str, code: u16, reason: &'static str) -> Scene {
        Scene::new(EVICTS, BROKEN, move |method| {
            if *method == Method::GET { (200, pod(started)) } else { (code, status(code, reason)) }
        })
        .await
    }

    async fn next(scene: &Scene) -> HolderKey {
        timeout(Duration::from_secs(1), scene.controller.evictions().next()).await.expect("there is something to do")
    }

    #[tokio::test(start_paused = true)]
    async fn pod_is_evicted_as_it_was_looked_at_and_people_hear_why() {
        let mut scene = scene("2026-01-01T09:00:00Z", 201, "").await;
        let key = next(&scene).await;
        assert_eq!(evicted::pass(&scene.parts(), &key).await, Done::Settled);
        let path = "/api/v1/namespaces/ml/pods/a";
        let request = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a", "namespace": "ml"},
            "deleteOptions": {"preconditions": {"uid": "pod-uid", "resourceVersion": "41"}}});
        let expected =
            [(Method::GET, path.to_owned(), Value::Null), (Method::POST, format!("{path}/eviction"), request)];
        assert_eq!(scene.asked(), expected);
        let message = "evicted from node n, since it holds GPU-0, which is unhealthy: XID 79";
        assert_eq!(scene.told(), [("PodEvicted".to_owned(), message.to_owned())]);
    }

    #[tokio::test(start_paused = true)]
    async fn namesake_that_started_later_is_left_alone() {
        let scene = scene("2026-01-01T10:00:01Z", 201, "").await;
        let key = next(&scene).await;
        assert_eq!(evicted::pass(&scene.parts(), &key).await, Done::Settled);
        assert_eq!(scene.asked().len(), 1, "it was looked at");
    }

    #[tokio::test(start_paused = true)]
    async fn budget_is_respected_and_the_pod_says_what_it_waits_for() {
        let mut scene = scene("2026-01-01T09:00:00Z", 429, "TooManyRequests").await;
        let key = next(&scene).await;
        let mut pauses = Vec::new();
        for _ in 0..7 {
            let done = evicted::pass(&scene.parts(), &key).await;
            assert_eq!(done, Done::Refused);
            let before = Instant::now();
            scene.controller.evictions().done(key.clone(), done);
            scene.controller.evictions().next().await;
            pauses.push(before.elapsed().as_secs());
        }
        let least = [10, 20, 40, 80, 160, 300, 300];
        assert!(pauses.iter().zip(least).all(|(pause, least)| (least..=least * 6 / 5).contains(pause)), "{pauses:?}");
        let message =
            "to be evicted from node n, since it holds GPU-0, which is unhealthy: XID 79; refused so far: Cannot evict";
        assert_eq!(scene.told().first(), Some(&("EvictionRefused".to_owned(), message.to_owned())));
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
            assert_eq!(evicted::pass(&scene.parts(), &key).await, expected, "{code}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn refusal_in_the_guise_of_a_success_is_one() {
        let answer = |method: &Method| {
            if *method == Method::GET { (200, pod("2026-01-01T09:00:00Z")) } else { (201, status(500, "")) }
        };
        let scene = Scene::new(EVICTS, BROKEN, answer).await;
        let key = next(&scene).await;
        assert_eq!(evicted::pass(&scene.parts(), &key).await, Done::Refused);
    }

    #[tokio::test(start_paused = true)]
    async fn device_that_works_again_costs_no_look_at_its_holder() {
        let scene = scene("2026-01-01T09:00:00Z", 201, "").await;
        let key = next(&scene).await;
        let mut whole = GpuNode::new("n", serde_yaml::from_str("{}").unwrap());
        whole.metadata.resource_version = Some("3".to_owned());
        scene.controller.with_index(|index, now, effects| index.take_gpu_nodes(Change::Set(whole), now, effects));
        assert_eq!(evicted::pass(&scene.parts(), &key).await, Done::Settled);
        assert_eq!(scene.asked(), []);
    }
}

mod rejections {
    use super::*;
    use crate::{controller::Readable, pods::rejected::Rejected};
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
        PodName { namespace: "ml".to_owned(), name: name.to_owned() }
    }

    fn of(pods: impl IntoIterator<Item = Readable<Pod>>) -> Rejected {
        let rejected = Rejected::new();
        pods.into_iter().for_each(|pod| rejected.take(Event::Apply(pod), &mut HashSet::new()));
        rejected
    }

    #[tokio::test(start_paused = true)]
    async fn rejected_pod_is_deleted_as_it_was_seen() {
        let mut scene = Scene::new(DELETES, SERVES, |_| (200, status(200, ""))).await;
        let rejected = of([pod("a", "nvidia.com/gpu")]);
        assert_eq!(rejected.pass(&scene.parts(), &name("a")).await, Done::Settled);
        let [(method, path, body)] = scene.asked().try_into().unwrap();
        assert_eq!((method, path.as_str()), (Method::DELETE, "/api/v1/namespaces/ml/pods/a"));
        assert_eq!(body["preconditions"], json!({"uid": "pod-uid", "resourceVersion": "41"}));
        let told: Vec<_> = scene.told().into_iter().map(|(reason, _)| reason).collect();
        assert_eq!(told, ["RejectedPodDeleted"]);
    }

    #[tokio::test(start_paused = true)]
    async fn pod_that_is_not_to_go_is_looked_at_again_later() {
        for (policy, resource) in [("{nodeSelector: {}}", "nvidia.com/gpu"), (DELETES, "example.com/fpga")] {
            let scene = Scene::new(policy, SERVES, |_| (200, status(200, ""))).await;
            let done = of([pod("a", resource)]).pass(&scene.parts(), &name("a")).await;
            assert_eq!((done, scene.asked().len()), (Done::Again(Instant::now() + Duration::from_mins(1)), 0));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn pod_that_changed_or_cannot_be_deleted_is_tried_again() {
        for (code, reason, expected) in
            [(404, "NotFound", Done::Raced), (409, "Conflict", Done::Raced), (500, "InternalError", Done::Failed)]
        {
            let scene = Scene::new(DELETES, SERVES, move |_| (code, status(code, reason))).await;
            let rejected = of([pod("a", "nvidia.com/gpu")]);
            assert_eq!(rejected.pass(&scene.parts(), &name("a")).await, expected, "{code}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn pod_that_is_gone_costs_nothing() {
        let scene = Scene::new(DELETES, SERVES, |_| (200, status(200, ""))).await;
        let rejected = of([pod("a", "nvidia.com/gpu"), pod("b", "nvidia.com/gpu"), pod("c", "nvidia.com/gpu")]);
        let mut listed = HashSet::new();
        rejected.take(Event::Delete(pod("a", "nvidia.com/gpu")), &mut listed);
        let again =
            serde_json::from_value(json!({"metadata": {"name": "b", "namespace": "ml"}, "spec": {"containers": []}}));
        rejected.take(Event::Apply(again.unwrap()), &mut listed);
        for event in [Event::Init, Event::InitApply(pod("d", "nvidia.com/gpu")), Event::InitDone] {
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
        let mut work = std::pin::pin!(rejected::delete_rejected_pods(&parts));
        assert!(timeout(Duration::from_mins(1), &mut work).await.is_err());
        assert_eq!(scene.asked(), [], "nobody wants it, so nobody watches");
        let policy = |spec: &str, version: &str| {
            let mut policy = GpuNodePolicy::new("p", serde_yaml::from_str(spec).unwrap());
            policy.metadata.resource_version = Some(version.to_owned());
            scene.controller.with_index(|index, now, effects| index.take_policies(Change::Set(policy), now, effects));
        };
        policy(DELETES, "2");
        assert!(timeout(Duration::from_millis(10), &mut work).await.is_err());
        assert!(scene.asked().iter().any(|(method, path, _)| *method == Method::GET && path == "/api/v1/pods"));
        policy("{nodeSelector: {}}", "3");
        assert!(timeout(Duration::from_secs(1), &mut work).await.is_err());
        scene.asked();
        assert!(timeout(Duration::from_mins(10), &mut work).await.is_err());
        assert_eq!(scene.asked(), [], "the watch has ended");
    }
}
