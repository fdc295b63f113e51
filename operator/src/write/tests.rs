//! Requests to the API server, and what its answers lead to.

use super::{worker::carry_out, *};
use crate::{
    audit::AuditTrail,
    index::{
        ClusterIndex,
        cache::WatchUpdate,
        effects::Effects,
        message::{FinishedWrite, IndexMessage, WriteResult},
        work::{PlannedWrite, WorkKey},
    },
    metrics::OperatorMetrics,
    written_versions::WrittenVersions,
};
use gpunode_crds::{GpuNode, GpuNodePolicy};
use gpunode_plan::{AgentImages, AgentPodSettings, GpuNodeFacts, HostPaths, NodeFacts};
use http::{Method, Request, Response};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::{Client, client::Body};
use serde_json::{Value, json};
use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{sync::mpsc, time::timeout};
use tower::service_fn;

/// An index with one node, the writer to an API server that answers every request with one code, and what was requested.
struct Scene {
    index: ClusterIndex,
    writer: ClusterWriter,
    messages: mpsc::Receiver<IndexMessage>,
    requests: Requests,
}

/// Method, path and body.
type Requests = Arc<Mutex<Vec<(Method, String, Value)>>>;

impl Scene {
    /// An index that knows one node, these policies and these `GpuNode` objects.
    fn new(code: u16, policies: Vec<GpuNodePolicy>, node: &Value, gpu_nodes: Vec<GpuNode>) -> Self {
        let pods = AgentPodSettings {
            namespace: "ns".to_owned(),
            image: "image".to_owned(),
            allowed: AgentImages::of_agent("image"),
            paths: HostPaths::default(),
        };
        let mut index = ClusterIndex::new(pods, true);
        let node = NodeFacts::of(&serde_json::from_value::<Node>(node.clone()).unwrap());
        for message in [
            IndexMessage::list(IndexMessage::Policies, policies.into_iter().map(Into::into).collect()),
            IndexMessage::list(IndexMessage::Nodes, vec![node]),
            IndexMessage::list(
                IndexMessage::GpuNodes,
                gpu_nodes.into_iter().map(GpuNodeFacts::of).collect(),
            ),
            IndexMessage::list(IndexMessage::DaemonSets, vec![]),
        ]
        .into_iter()
        .flatten()
        {
            index.apply(message, Timestamp::now(), &mut Effects::default());
        }
        let (sender, messages) = mpsc::channel(8);
        let requests = Requests::default();
        let written = WrittenVersions::default();
        for kind in ["nodes", "daemonsets"] {
            written.watch(kind);
        }
        let writer = ClusterWriter {
            client: client(code, requests.clone()),
            namespace: "ns".to_owned(),
            results: WriteResults {
                metrics: Arc::new(OperatorMetrics::new()),
                messages: sender,
                written,
            },
            audit: AuditTrail::new(Box::new(|_| None)),
        };
        Self {
            index,
            writer,
            messages,
            requests,
        }
    }

    /// Carries out the write of the node, lets the index know, and returns how it ended.
    async fn reconcile(&mut self) -> WriteResult {
        self.reconcile_key(WorkKey::Node("n".to_owned())).await
    }

    async fn reconcile_key(&mut self, key: WorkKey) -> WriteResult {
        let mut effects = Effects::default();
        let write = self.index.planned_write(&key, Timestamp::now(), &mut effects);
        let write = write.expect("there is something to write");
        carry_out(&self.writer, request(key, write)).await;
        let mut end = None;
        while let Ok(message) = self.messages.try_recv() {
            assert_eq!(end, None, "the end is the last message");
            if let IndexMessage::Finished(FinishedWrite { result, .. }) = &message {
                end = Some(result.clone());
            }
            self.index.apply(message, Timestamp::now(), &mut effects);
        }
        end.expect("the write ends")
    }
}

fn request(key: WorkKey, write: PlannedWrite) -> WriteRequest {
    let class = key.class();
    WriteRequest { key, class, write }
}

/// A client of an API server that answers every request with this code.
fn client(code: u16, requests: Requests) -> Client {
    let service = service_fn(move |request: Request<Body>| {
        let requests = requests.clone();
        let reason = match code {
            404 => "NotFound",
            409 => "Conflict",
            _ => "",
        };
        let status = json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": "no"});
        let response = Response::builder()
            .status(code)
            .body(Body::from(status.to_string().into_bytes()));
        async move {
            let (head, body) = request.into_parts();
            let body = serde_json::from_slice(&body.collect_bytes().await.unwrap()).unwrap_or_default();
            let path = head.uri.path().to_owned();
            requests.lock().unwrap().push((head.method, path, body));
            Ok::<_, Infallible>(response.unwrap())
        }
    });
    Client::new(service, "ns")
}

/// A client of an API server that answers every patch as a real one answers a JSON patch that does not fit the object, and every
/// read with this object in this version.
fn client_whose_patches_do_not_fit(object: &Value, version: &str) -> Client {
    let mut item = object.clone();
    item["metadata"]["resourceVersion"] = json!(version);
    item["metadata"]["labels"] = json!({"new": "label"});
    let service = service_fn(move |request: Request<Body>| {
        let answer = if request.method() == Method::GET {
            (200, item.clone())
        } else {
            let message = "the server rejected our request due to an error in our request";
            let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": 422,
                "reason": "Invalid", "message": message, "details": {}});
            (422, status)
        };
        async move {
            let (code, body) = answer;
            let response = Response::builder()
                .status(code)
                .body(Body::from(body.to_string().into_bytes()));
            Ok::<_, Infallible>(response.unwrap())
        }
    });
    Client::new(service, "ns")
}

/// A client of an API server that answers every write with 409, and every read with this `GpuNode`.
fn client_that_knows_better(newest: &Value, reason: &'static str, requests: Requests) -> Client {
    let newest = newest.clone();
    let service = service_fn(move |request: Request<Body>| {
        let (code, body) = if request.method() == Method::GET {
            (200, newest.clone())
        } else {
            let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": 409,
                "reason": reason, "message": "newer"});
            (409, status)
        };
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        requests.lock().unwrap().push((method, path, Value::Null));
        async move {
            let response = Response::builder()
                .status(code)
                .body(Body::from(body.to_string().into_bytes()));
            Ok::<_, Infallible>(response.unwrap())
        }
    });
    Client::new(service, "ns")
}

/// A client of an API server that has none of the objects under this path, and refuses the rest.
fn client_without(path: &'static str, requests: Requests) -> Client {
    let service = service_fn(move |request: Request<Body>| {
        let at = request.uri().path().to_owned();
        let status = |code: u16, reason: &str| {
            let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code,
                "reason": reason, "message": "no"});
            (code, status)
        };
        let (code, body) = if !at.contains(path) {
            status(403, "Forbidden")
        } else if request.method() == Method::GET {
            let (_, name) = at.rsplit_once('/').unwrap();
            let (code, mut absent) = status(404, "NotFound");
            absent["details"] = json!({"name": name});
            (code, absent)
        } else {
            status(404, "NotFound")
        };
        requests
            .lock()
            .unwrap()
            .push((request.method().clone(), at, Value::Null));
        async move {
            let response = Response::builder()
                .status(code)
                .body(Body::from(body.to_string().into_bytes()));
            Ok::<_, Infallible>(response.unwrap())
        }
    });
    Client::new(service, "ns")
}

fn policy(spec: &Value) -> GpuNodePolicy {
    let mut policy = GpuNodePolicy::new("p", serde_json::from_value(spec.clone()).unwrap());
    policy.metadata.resource_version = Some("1".to_owned());
    policy
}

/// Methods and paths of the requests for a node, of an API server that refuses them.
async fn requested(policies: Vec<GpuNodePolicy>, node: &Value, gpu_nodes: Vec<GpuNode>) -> Vec<(Method, String)> {
    let mut scene = Scene::new(403, policies, node, gpu_nodes);
    assert!(matches!(scene.reconcile().await, WriteResult::Refused(_)));
    let mut requests = scene.requests.lock().unwrap();
    requests.drain(..).map(|(method, path, _)| (method, path)).collect()
}

#[tokio::test]
async fn configuration_comes_before_the_labels_and_goes_after_them() {
    let bare = json!({"metadata": {"name": "n", "uid": "u", "resourceVersion": "1"}});
    let governing = policy(&json!({"nodeSelector": {}, "devicePlugin": {}}));
    let (patch_node, gpu_nodes) = (
        (Method::PATCH, "/api/v1/nodes/n".to_owned()),
        "/apis/gpunode.dev/v1alpha1/gpunodes",
    );
    let given = requested(vec![governing], &bare, vec![]).await;
    assert_eq!(given, [(Method::POST, gpu_nodes.to_owned()), patch_node.clone()]);

    let owned = json!({"version": 1, "labels": {"x": "y"}}).to_string();
    let labelled = json!({"metadata": {"name": "n", "uid": "u", "resourceVersion": "1", "labels": {"x": "y"},
        "annotations": {"gpunode.dev/owned": owned}}});
    let config = json!({"policy": "p", "version": 1, "hash": "0123456789abcdef", "document": "{}"});
    let mut gpu_node = json!({"apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNode",
        "metadata": {"name": "n", "uid": "g", "resourceVersion": "2"}, "spec": {"config": config}});
    let without_gpu: GpuNode = serde_json::from_value(gpu_node.clone()).unwrap();
    let withdrawn = requested(vec![], &labelled, vec![without_gpu.clone()]).await;
    assert_eq!(
        withdrawn,
        std::slice::from_ref(&patch_node),
        "the facts about the GPUs go last"
    );
    let withdrawn = requested(vec![], &bare, vec![without_gpu]).await;
    assert_eq!(withdrawn, [(Method::DELETE, format!("{gpu_nodes}/n"))]);
    gpu_node["status"] = json!({"gpus": [serde_json::to_value(gpunode_crds::GpuDevice::default()).unwrap()]});
    let with_gpu = serde_json::from_value(gpu_node).unwrap();
    let withdrawn = requested(vec![], &labelled, vec![with_gpu]).await;
    assert_eq!(withdrawn, [patch_node, (Method::PATCH, format!("{gpu_nodes}/n"))]);
}

#[tokio::test]
async fn request_to_agents_is_all_that_its_write_changes() {
    let config = json!({"policy": "p", "version": 1, "hash": "0123456789abcdef", "document": "{}"});
    let step = json!({"startedAt": "2026-01-01T00:00:00Z", "generation": 1});
    let gpu_node = |release: bool| {
        let spec = json!({"config": config, "step": step, "release": release});
        let object = json!({"apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNode",
            "metadata": {"name": "n", "uid": "g", "resourceVersion": "2"}, "spec": spec});
        serde_json::from_value::<GpuNode>(object).unwrap()
    };
    for (labels, before, written) in [
        (json!({"gpunode.dev/release": "true"}), false, json!(true)),
        (
            json!({"nvidia.com/gpu.deploy.device-plugin": "paused-for-driver-upgrade"}),
            false,
            json!(true),
        ),
        (
            json!({"nvidia.com/gpu.deploy.device-plugin": "false"}),
            true,
            Value::Null,
        ),
    ] {
        let object = json!({"metadata": {"name": "n", "uid": "u", "resourceVersion": "1", "labels": labels}});
        let governing = policy(&json!({"nodeSelector": {}, "devicePlugin": {}}));
        let mut scene = Scene::new(403, vec![governing], &object, vec![gpu_node(before)]);
        scene.reconcile().await;
        let spec = json!({"release": written, "servedByDra": null, "recovered": null});
        let expected = json!({"metadata": {"resourceVersion": "2"}, "spec": spec});
        let requests = scene.requests.lock().unwrap();
        let bodies: Vec<_> = requests
            .iter()
            .filter(|it| it.1.ends_with("/gpunodes/n"))
            .map(|it| &it.2)
            .collect();
        assert_eq!(bodies, [&expected], "{labels}");
    }
}

#[tokio::test]
async fn refusal_holds_until_the_api_server_answers_again() {
    let bare = json!({"metadata": {"name": "n", "uid": "u", "resourceVersion": "1"}});
    let labels = policy(&json!({"nodeSelector": {}, "labels": {"x": "y"}}));
    let mut scene = Scene::new(503, vec![labels], &bare, vec![]);
    for (code, failed) in [(503, 0), (500, 0), (401, 0), (403, 1), (502, 1), (409, 1), (429, 1)] {
        scene.writer.client = client(code, Requests::default());
        assert_ne!(scene.reconcile().await, WriteResult::Accepted);
        assert_eq!(scene.index.node_counts()[0].1.failed, failed, "{code}");
    }
}

#[tokio::test]
async fn patch_that_does_not_fit_is_a_conflict_if_the_object_changed_and_otherwise_a_refusal() {
    let bare = json!({"metadata": {"name": "n", "uid": "u", "resourceVersion": "1"}});
    // Nobody has wanted the resource for long: its keys go by a patch of the status.
    let mut with_stale_resource = bare.clone();
    let record = r#"{"version":1,"resources":{"nvidia.com/gpu":1000}}"#;
    with_stale_resource["metadata"]["annotations"] = json!({"gpunode.dev/owned": record});
    with_stale_resource["status"] =
        json!({"capacity": {"nvidia.com/gpu": "0"}, "allocatable": {"nvidia.com/gpu": "0"}});
    assert_eq!(
        requested(vec![], &with_stale_resource, vec![]).await,
        [(Method::PATCH, "/api/v1/nodes/n/status".to_owned())]
    );
    let labels = policy(&json!({"nodeSelector": {}, "labels": {"x": "y"}}));
    // After the lost race the index knows the node that was read. A policy comes by the watch.
    for (key, policies, node, known, kind) in [
        (WorkKey::Node("n".to_owned()), vec![labels.clone()], &bare, "2", "Node"),
        (WorkKey::Node("n".to_owned()), vec![], &with_stale_resource, "2", "Node"),
        (
            WorkKey::PolicyStatus("p".to_owned()),
            vec![labels],
            &bare,
            "1",
            "Status",
        ),
    ] {
        let mut scene = Scene::new(503, policies, node, vec![]);
        let errors = format!("errors_total{{kind=\"{kind}\"}} 1");
        scene.writer.client = client_whose_patches_do_not_fit(node, "2");
        assert_eq!(scene.reconcile_key(key.clone()).await, WriteResult::Conflict, "{key:?}");
        assert!(!scene.writer.results.metrics.render().contains(&errors), "{key:?}");
        scene.writer.client = client_whose_patches_do_not_fit(node, known);
        let result = scene.reconcile_key(key.clone()).await;
        assert!(matches!(result, WriteResult::Refused(_)), "{key:?}: {result:?}");
        assert!(scene.writer.results.metrics.render().contains(&errors), "{key:?}");
    }
}

#[tokio::test]
async fn node_that_was_read_after_a_lost_race_is_what_the_next_patch_is_made_for() {
    let bare = json!({"metadata": {"name": "n", "uid": "u", "resourceVersion": "1"}});
    let labels = policy(&json!({"nodeSelector": {}, "labels": {"x": "y"}}));
    let mut scene = Scene::new(503, vec![labels], &bare, vec![]);
    scene.writer.client = client_whose_patches_do_not_fit(&bare, "7");
    assert_eq!(scene.reconcile().await, WriteResult::Conflict);
    scene.writer.client = client(403, scene.requests.clone());
    scene.reconcile().await;
    let requests = scene.requests.lock().unwrap();
    assert_eq!(requests[0].2[0]["value"], "7", "{requests:?}");
}

#[tokio::test]
async fn gpu_node_that_was_read_after_a_lost_race_is_what_the_next_write_is_made_for() {
    let node = json!({"metadata": {"name": "n", "uid": "u", "resourceVersion": "1"}});
    let gpu_node = |version: &str| {
        json!({"apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNode",
            "metadata": {"name": "n", "uid": "g", "resourceVersion": version}, "spec": {}})
    };
    let known = serde_json::from_value::<GpuNode>(gpu_node("2")).unwrap();
    // The watch has not brought the object, or the last change of it.
    for (known, reason) in [(vec![], "AlreadyExists"), (vec![known], "Conflict")] {
        let governing = policy(&json!({"nodeSelector": {}, "devicePlugin": {}}));
        let mut scene = Scene::new(503, vec![governing], &node, known);
        scene.writer.client = client_that_knows_better(&gpu_node("7"), reason, scene.requests.clone());
        assert_eq!(scene.reconcile().await, WriteResult::Conflict, "{reason}");
        let requests: Vec<_> = scene.requests.lock().unwrap().drain(..).collect();
        let reads = requests.iter().filter(|(method, ..)| *method == Method::GET);
        let reads: Vec<_> = reads.map(|(_, path, _)| path.as_str()).collect();
        assert_eq!(reads, ["/apis/gpunode.dev/v1alpha1/gpunodes/n"], "{reason}");
        scene.writer.client = client(403, scene.requests.clone());
        scene.reconcile().await;
        let requests = scene.requests.lock().unwrap();
        let patched = requests.iter().find(|it| it.1.ends_with("/gpunodes/n")).unwrap();
        assert_eq!(patched.2["metadata"]["resourceVersion"], "7", "{requests:?}");
    }
}

#[tokio::test]
async fn older_version_than_the_planned_one_asks_for_lists_of_all_kinds() {
    let node = |version: &str| json!({"metadata": {"name": "n", "uid": "u", "resourceVersion": version}});
    let gpu_node = |version: &str| {
        json!({"apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNode",
            "metadata": {"name": "n", "uid": "g", "resourceVersion": version}, "spec": {}})
    };
    for (version, is_wanted) in [("900", true), ("1100", false)] {
        let governing = policy(&json!({"nodeSelector": {}, "devicePlugin": {}}));
        let known = serde_json::from_value::<GpuNode>(gpu_node("1000")).unwrap();
        let mut scene = Scene::new(503, vec![governing], &node("1"), vec![known]);
        scene.writer.client = client_that_knows_better(&gpu_node(version), "Conflict", scene.requests.clone());
        scene.reconcile().await;
        let written = &scene.writer.results.written;
        assert_eq!(written.wants_list("daemonsets"), is_wanted, "{version}");

        let labels = policy(&json!({"nodeSelector": {}, "labels": {"x": "y"}}));
        let mut scene = Scene::new(503, vec![labels], &node("1000"), vec![]);
        scene.writer.client = client_whose_patches_do_not_fit(&node("1000"), version);
        scene.reconcile().await;
        let written = &scene.writer.results.written;
        assert_eq!(written.wants_list("nodes"), is_wanted, "{version}");

        let spec = json!({"nodeSelector": {}, "labels": {"x": "y"}});
        let mut governing = policy(&spec);
        governing.metadata.resource_version = Some("1000".to_owned());
        let stored = json!({"apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNodePolicy", "spec": spec,
            "metadata": {"name": "p", "resourceVersion": "1"}});
        let mut scene = Scene::new(503, vec![governing], &node("1"), vec![]);
        scene.writer.client = client_whose_patches_do_not_fit(&stored, version);
        scene.reconcile_key(WorkKey::PolicyStatus("p".to_owned())).await;
        let written = &scene.writer.results.written;
        assert_eq!(written.wants_list("nodes"), is_wanted, "{version}");
    }
}

#[tokio::test]
async fn gpu_node_that_a_write_does_not_find_is_created_by_the_next() {
    let node = json!({"metadata": {"name": "n", "uid": "u", "resourceVersion": "1"}});
    let gpu_node = json!({"apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNode",
        "metadata": {"name": "n", "uid": "g", "resourceVersion": "2"}, "spec": {}});
    let governing = policy(&json!({"nodeSelector": {}, "devicePlugin": {}}));
    let known = vec![serde_json::from_value::<GpuNode>(gpu_node).unwrap()];
    let mut scene = Scene::new(503, vec![governing], &node, known);
    scene.writer.client = client_without("/gpunodes", scene.requests.clone());
    let mut written = Vec::new();
    for _ in 0..2 {
        scene.reconcile().await;
        let requests: Vec<_> = scene.requests.lock().unwrap().drain(..).collect();
        let of_gpu_node = requests.into_iter().filter(|it| it.1.contains("/gpunodes"));
        written.push(of_gpu_node.map(|it| it.0).collect::<Vec<_>>());
    }
    assert_eq!(written, [vec![Method::PATCH, Method::GET], vec![Method::POST]]);
}

#[tokio::test]
async fn node_that_a_write_does_not_find_is_not_written_again() {
    let node = json!({"metadata": {"name": "n", "uid": "u", "resourceVersion": "1"}});
    let labels = policy(&json!({"nodeSelector": {}, "labels": {"x": "y"}}));
    let mut scene = Scene::new(503, vec![labels], &node, vec![]);
    scene.writer.client = client_without("/nodes", scene.requests.clone());
    assert_eq!(scene.reconcile().await, WriteResult::Conflict);
    let key = WorkKey::Node("n".to_owned());
    let next = scene
        .index
        .planned_write(&key, Timestamp::now(), &mut Effects::default());
    assert!(next.is_none(), "{next:?}");
}

#[tokio::test]
async fn missing_kind_is_no_conflict_and_missing_object_is_one() {
    let bare = json!({"metadata": {"name": "n", "uid": "u", "resourceVersion": "1"}});
    for (spec, is_conflict) in [
        (json!({"nodeSelector": {}, "devicePlugin": {}}), false),
        (json!({"nodeSelector": {}, "labels": {"x": "y"}}), true),
    ] {
        let result = Scene::new(404, vec![policy(&spec)], &bare, vec![]).reconcile().await;
        assert_eq!(result == WriteResult::Conflict, is_conflict, "{result:?}");
    }
}

/// A slot in the input of the index is free before a request goes out, so that no result waits, and none is lost to a timeout.
#[tokio::test(start_paused = true)]
async fn no_request_goes_out_before_the_index_has_a_place_for_its_result() {
    let bare = json!({"metadata": {"name": "n", "uid": "u", "resourceVersion": "1"}});
    let labels = policy(&json!({"nodeSelector": {}, "labels": {"x": "y"}}));
    let mut scene = Scene::new(403, vec![labels], &bare, vec![]);
    let (sender, messages) = mpsc::channel(1);
    let message = || IndexMessage::Nodes(WatchUpdate::ListStarted);
    sender.try_send(message()).unwrap();
    (scene.writer.results.messages, scene.messages) = (sender, messages);
    let key = WorkKey::Node("n".to_owned());
    let write = scene
        .index
        .planned_write(&key, Timestamp::now(), &mut Effects::default());
    let write = write.expect("there is something to write");
    let mut work = std::pin::pin!(carry_out(&scene.writer, request(key, write)));
    assert!(timeout(Duration::from_secs(1), &mut work).await.is_err());
    assert!(scene.requests.lock().unwrap().is_empty(), "the index is behind");
    assert!(matches!(scene.messages.recv().await, Some(IndexMessage::Nodes(_))));
    timeout(Duration::from_secs(1), work).await.unwrap();
    assert_eq!(scene.requests.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn approval_and_its_end_leave_nothing_of_the_change_before() {
    let spec = json!({"nodeSelector": {}, "devicePlugin": {"mig": {"strategy": "Mixed", "layout": [{"preset": "all-balanced"}]}}});
    let governing = policy(&spec);
    let document = gpunode_config::ConfigDocument::of(governing.spec.device_plugin.as_ref().unwrap());
    let config = json!({"policy": "p", "version": 1, "hash": document.hash, "document": document.text});
    let before = json!({"state": "Prepare", "hash": "another", "since": "2026-01-01T00:00:00Z"});
    let mig = json!({"wanted": "1g.5gb:7", "observed": "off", "phase": "AwaitingApproval"});
    let condition = json!({"type": "Ready", "status": "True", "reason": "Registered", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let status = json!({
        "agent": {"pod": "a", "podUid": "u", "mode": "DevicePlugin", "version": "1", "configVersions": [1]},
        "configHash": document.hash, "conditions": [condition],
        "gpus": [{"index": 0, "uuid": "GPU-0", "product": "A100", "memoryMiB": 1, "mig": mig}],
    });
    for (node_is_ready, state) in [("True", json!("Approved")), ("False", Value::Null)] {
        let object = json!({"apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNode",
            "metadata": {"name": "n", "uid": "g", "resourceVersion": "2"},
            "spec": {"config": config, "change": before}, "status": status});
        let node = json!({"metadata": {"name": "n", "uid": "u", "resourceVersion": "1"},
            "status": {"conditions": [{"type": "Ready", "status": node_is_ready}]}});
        let gpu_node = serde_json::from_value(object).unwrap();
        let mut scene = Scene::new(403, vec![governing.clone()], &node, vec![gpu_node]);
        scene.index.lead(Timestamp::now(), &mut Effects::default());
        scene.reconcile().await;
        let requests = scene.requests.lock().unwrap();
        let body = requests.iter().find(|it| it.1.ends_with("/gpunodes/n")).map(|it| &it.2);
        let spec = &body.unwrap()["spec"];
        assert_eq!(spec["step"], Value::Null, "{requests:?}");
        if state.is_null() {
            assert_eq!(spec["change"], Value::Null, "{requests:?}");
            continue;
        }
        assert_eq!(
            (&spec["change"]["state"], &spec["change"]["hash"]),
            (&state, &json!(document.hash))
        );
        assert_ne!(spec["change"]["since"], before["since"]);
    }
}
