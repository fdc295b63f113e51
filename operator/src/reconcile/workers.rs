//! Workers: each takes a key from the queue, carries it out, and says how it ended.

use crate::{
    index::work::Key,
    leader_election::Claim,
    metrics::{Kind, Metrics},
    reconcile::controller::Controller,
    work_queue::Done,
    write::{ApplyError, Writer, one_line},
};
use futures::future::join_all;
use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};
use tokio::time::{Instant, timeout};

/// Keys that are worked on at a time: enough to hide the way to the API server, and no burden to it.
const WORKERS: usize = 4;
/// The longest that one key may take.
const PASS_TIMEOUT: Duration = Duration::from_secs(10);
/// The status of one policy is written at most this often.
const STATUS_EVERY: Duration = Duration::from_secs(1);

/// Works off the queue until it is dropped.
pub async fn run_workers(controller: &Controller, writer: &Writer, metrics: &Metrics, claim: &Claim) {
    let pace = Pace::default();
    join_all((0..WORKERS).map(|_| async {
        let mut claim = claim.clone();
        loop {
            claim.current().await;
            let key = controller.queue.next().await;
            let done = work(controller, writer, metrics, &pace, &key).await;
            controller.queue.done(key, done);
        }
    }))
    .await;
}

async fn work(controller: &Controller, writer: &Writer, metrics: &Metrics, pace: &Pace, key: &Key) -> Done {
    if let Key::Status(policy) = key
        && let Some(at) = pace.not_before(policy)
    {
        return Done::Again(at);
    }
    let (kind, pass) = match key {
        Key::Node(name) => (Kind::Node, timeout(PASS_TIMEOUT, node(controller, writer, name)).await),
        Key::DaemonSet(name) => (
            Kind::DaemonSet,
            timeout(PASS_TIMEOUT, daemonset(controller, writer, name)).await,
        ),
        Key::Status(name) => (
            Kind::Status,
            timeout(PASS_TIMEOUT, status(controller, writer, pace, name)).await,
        ),
    };
    metrics.reconciled(kind);
    match pass.unwrap_or(Err(ApplyError::TimedOut)) {
        Ok(()) => Done::Settled,
        Err(error) if error.is_race() => {
            tracing::debug!(?key, error = one_line(&error), "changed meanwhile");
            Done::Raced
        }
        Err(error) => {
            metrics.failed(kind);
            tracing::warn!(?key, error = one_line(&error), "reconcile");
            Done::Failed
        }
    }
}

async fn node(controller: &Controller, writer: &Writer, name: &str) -> Result<(), ApplyError> {
    let Some(work) = controller.with_index(|index, now, effects| index.node_work(name, now, effects)) else {
        return Ok(());
    };
    let result = writer.apply_node(controller, name, work).await;
    let refusal = result.as_ref().err().and_then(ApplyError::refusal);
    // Where the API server could not be asked, what it said before still holds.
    if result.is_ok() || refusal.is_some() {
        controller.with_index(|index, now, effects| index.node_written(name, refusal, now, effects));
    }
    result
}

async fn daemonset(controller: &Controller, writer: &Writer, name: &str) -> Result<(), ApplyError> {
    let result = match controller.with_index(|index, _, _| index.daemonset_work(name)) {
        Some(work) => writer.apply_daemonset(controller, name, work).await,
        None => Ok(()),
    };
    let refusal = result.as_ref().err().and_then(ApplyError::refusal);
    // Where the API server could not be asked, what it said before still holds.
    if result.is_ok() || refusal.is_some() {
        controller.with_index(|index, _, effects| index.daemonset_written(name, refusal.as_deref(), effects));
    }
    result
}

async fn status(controller: &Controller, writer: &Writer, pace: &Pace, name: &str) -> Result<(), ApplyError> {
    let work = controller.with_index(|index, now, effects| {
        index.wake_when_late(name, now, effects);
        index.status_work(name, now)
    });
    match work {
        Some(work) => {
            pace.written(name);
            writer.apply_status(controller, name, work).await
        }
        None => Ok(()),
    }
}

/// When each status was last written. Entries that no longer hold anything back are dropped.
#[derive(Default)]
struct Pace(Mutex<HashMap<String, Instant>>);

impl Pace {
    fn not_before(&self, policy: &str) -> Option<Instant> {
        let mut written = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        written.retain(|_, at| at.elapsed() < STATUS_EVERY);
        written.get(policy).map(|at| *at + STATUS_EVERY)
    }

    fn written(&self, policy: &str) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(policy.to_owned(), Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::{cache::Change, work::DaemonSetWork};
    use gpunode_crds::{GpuNode, GpuNodePolicy};
    use gpunode_plan::{AgentPodSettings, NodeFacts, policy_daemonset_name};
    use http::{Method, Request, Response};
    use k8s_openapi::api::{apps::v1::DaemonSetStatus, core::v1::Node};
    use kube::{Client, client::Body};
    use serde_json::{Value, json};
    use std::{convert::Infallible, sync::Arc};
    use tower::service_fn;

    /// Method, path and body.
    type Requests = Arc<Mutex<Vec<(Method, String, Value)>>>;

    /// A writer to an API server that answers every request with this code, and what it is asked.
    fn writer(code: u16) -> (Writer, Requests) {
        let requests = Requests::default();
        let seen = requests.clone();
        let service = service_fn(move |request: Request<Body>| {
            let seen = seen.clone();
            let reason = match code {
                404 => "NotFound",
                409 => "Conflict",
                _ => "",
            };
            let status =
                json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": "no"});
            let response = Response::builder()
                .status(code)
                .body(Body::from(status.to_string().into_bytes()));
            async move {
                let (head, body) = request.into_parts();
                let body = serde_json::from_slice(&body.collect_bytes().await.unwrap()).unwrap_or_default();
                seen.lock()
                    .unwrap()
                    .push((head.method, head.uri.path().to_owned(), body));
                Ok::<_, Infallible>(response.unwrap())
            }
        });
        (
            Writer::new(Client::new(service, "ns"), Arc::new(Metrics::new())),
            requests,
        )
    }

    /// A controller that knows one node, with what policies and `GpuNode` there are.
    fn controller(policies: Vec<GpuNodePolicy>, node: &Value, gpu_nodes: Vec<GpuNode>) -> Controller {
        let pods = AgentPodSettings {
            namespace: "ns".to_owned(),
            image: "image".to_owned(),
        };
        let (controller, _) = Controller::new(pods, true);
        let node = NodeFacts::of(&serde_json::from_value::<Node>(node.clone()).unwrap());
        controller.with_index(|index, now, effects| {
            index.take_policies(Change::All(policies), now, effects);
            index.take_nodes(Change::All(vec![node]), now, effects);
            index.take_gpu_nodes(Change::All(gpu_nodes), now, effects);
            index.take_daemonsets(Change::All(vec![]), now, effects);
        });
        controller
    }

    fn policy(spec: &Value) -> GpuNodePolicy {
        GpuNodePolicy::new("p", serde_json::from_value(spec.clone()).unwrap())
    }

    async fn requested(controller: &Controller) -> Vec<(Method, String)> {
        let (writer, requests) = writer(403);
        assert!(node(controller, &writer, "n").await.is_err());
        requests
            .lock()
            .unwrap()
            .drain(..)
            .map(|(method, path, _)| (method, path))
            .collect()
    }

    #[tokio::test]
    async fn configuration_comes_before_the_labels_and_goes_after_them() {
        let bare = json!({"metadata": {"name": "n", "uid": "u", "resourceVersion": "1"}});
        let governing = policy(&json!({"nodeSelector": {}, "devicePlugin": {}}));
        let (patch_node, gpu_nodes) = (
            (Method::PATCH, "/api/v1/nodes/n".to_owned()),
            "/apis/gpunode.dev/v1alpha1/gpunodes",
        );
        let given = requested(&controller(vec![governing], &bare, vec![])).await;
        assert_eq!(given, [(Method::POST, gpu_nodes.to_owned()), patch_node.clone()]);

        let owned = json!({"version": 1, "labels": {"x": "y"}}).to_string();
        let labelled = json!({"metadata": {"name": "n", "uid": "u", "resourceVersion": "1", "labels": {"x": "y"},
            "annotations": {"gpunode.dev/owned": owned}}});
        let config = json!({"policy": "p", "version": 1, "hash": "0123456789abcdef", "document": "{}"});
        let mut gpu_node = json!({"apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNode",
            "metadata": {"name": "n", "uid": "g", "resourceVersion": "2"}, "spec": {"config": config}});
        let without_gpu: GpuNode = serde_json::from_value(gpu_node.clone()).unwrap();
        let withdrawn = requested(&controller(vec![], &labelled, vec![without_gpu.clone()])).await;
        assert_eq!(
            withdrawn,
            std::slice::from_ref(&patch_node),
            "what is known of the GPUs goes last"
        );
        let withdrawn = requested(&controller(vec![], &bare, vec![without_gpu])).await;
        assert_eq!(withdrawn, [(Method::DELETE, format!("{gpu_nodes}/n"))]);
        gpu_node["status"] = json!({"gpus": [serde_json::to_value(gpunode_crds::GpuDevice::default()).unwrap()]});
        let with_gpu = serde_json::from_value(gpu_node).unwrap();
        let withdrawn = requested(&controller(vec![], &labelled, vec![with_gpu])).await;
        assert_eq!(withdrawn, [patch_node, (Method::PATCH, format!("{gpu_nodes}/n"))]);
    }

    #[tokio::test]
    async fn what_is_asked_of_agents_is_all_that_its_write_changes() {
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
            let controller = controller(vec![governing], &object, vec![gpu_node(before)]);
            let (writer, requests) = writer(403);
            node(&controller, &writer, "n").await.unwrap_err();
            let spec = json!({"release": written, "recovered": null});
            let expected = json!({"metadata": {"resourceVersion": "2"}, "spec": spec});
            let requests = requests.lock().unwrap();
            let bodies: Vec<_> = requests
                .iter()
                .filter(|it| it.1.ends_with("/gpunodes/n"))
                .map(|it| &it.2)
                .collect();
            assert_eq!(bodies, [&expected], "{labels}");
        }
    }

    #[tokio::test]
    async fn refusal_holds_until_the_api_server_can_be_asked_again() {
        let bare = json!({"metadata": {"name": "n", "uid": "u", "resourceVersion": "1"}});
        let controller = controller(
            vec![policy(&json!({"nodeSelector": {}, "labels": {"x": "y"}}))],
            &bare,
            vec![],
        );
        for (code, failed) in [(503, 0), (403, 1), (503, 1), (409, 1), (429, 1)] {
            assert!(node(&controller, &writer(code).0, "n").await.is_err());
            assert!(
                controller.node_numbers().contains(&("p".to_owned(), "failed", failed)),
                "{code}"
            );
        }
    }

    #[tokio::test]
    async fn missing_kind_is_no_race_and_missing_object_is_one() {
        let bare = json!({"metadata": {"name": "n", "uid": "u", "resourceVersion": "1"}});
        for (spec, is_race) in [
            (json!({"nodeSelector": {}, "devicePlugin": {}}), false),
            (json!({"nodeSelector": {}, "labels": {"x": "y"}}), true),
        ] {
            let controller = controller(vec![policy(&spec)], &bare, vec![]);
            let error = node(&controller, &writer(404).0, "n").await.unwrap_err();
            assert_eq!(error.is_race(), is_race, "{error:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn status_is_looked_at_again_when_agents_are_late_however_often_it_was_before() {
        let bare = json!({"metadata": {"name": "n", "uid": "u", "resourceVersion": "1"}});
        let plugin = json!({"nodeSelector": {}, "devicePlugin": {}, "rollout": {"progressDeadline": "30s"}});
        let controller = controller(vec![policy(&plugin)], &bare, vec![]);
        let name = policy_daemonset_name("p");
        let Some(DaemonSetWork::Create(mut daemonset)) =
            controller.with_index(|index, _, _| index.daemonset_work(&name))
        else {
            panic!("the DaemonSet is yet to be created");
        };
        daemonset.metadata.resource_version = Some("1".to_owned());
        daemonset.status = Some(DaemonSetStatus {
            current_number_scheduled: 2,
            ..DaemonSetStatus::default()
        });
        controller.lead().await;
        controller.with_index(|index, now, effects| index.take_daemonsets(Change::Set(*daemonset), now, effects));
        let (pace, start) = (Pace::default(), Instant::now());
        let late = async {
            while start.elapsed() < Duration::from_secs(29) {
                let key = controller.queue.next().await;
                if let Key::Status(name) = &key {
                    _ = status(&controller, &writer(403).0, &pace, name).await;
                }
                controller.queue.done(key, Done::Settled);
            }
        };
        timeout(Duration::from_mins(1), late)
            .await
            .expect("the status is looked at when its agents are late");
    }
}
