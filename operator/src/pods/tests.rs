//! What is asked of the API server, and what its answers come to.

mod evictions;
mod rejections;

use super::{evictor, rejected_pods, *};
use crate::{
    index::{cache::Change, evictions::HolderKey},
    leader_election::LEASE_DURATION,
    work_queue::Done,
};
use gpunode_crds::{GpuNode, GpuNodePolicy};
use gpunode_plan::{AgentPodSettings, NodeFacts, PodName};
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
                let bytes = frame
                    .map(|frame| frame.unwrap().into_data().unwrap())
                    .unwrap_or_default();
                let sent = serde_json::from_slice(&bytes).unwrap_or_default();
                let (code, body) = answer(&parts.method);
                seen.lock()
                    .unwrap()
                    .push((parts.method, parts.uri.path().to_owned(), sent));
                let response = Response::builder()
                    .status(code)
                    .body(Body::from(body.to_string().into_bytes()));
                Ok::<_, Infallible>(response.unwrap())
            }
        });
        let pods = AgentPodSettings {
            namespace: "ns".to_owned(),
            image: "image".to_owned(),
        };
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
        Self {
            controller,
            notices,
            metrics: Metrics::new(),
            client: Client::new(service, "ns"),
            asked,
        }
    }

    fn parts(&self) -> Parts<'_> {
        let (client, guarded) = (self.client.clone(), self.client.clone());
        let claim = Claim::until(Instant::now() + LEASE_DURATION);
        Parts {
            controller: &self.controller,
            client,
            guarded,
            metrics: &self.metrics,
            claim,
        }
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
