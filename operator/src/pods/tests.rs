//! Requests to the API server, and what its answers lead to.

mod drains;
mod evictions;
mod rejections;

use super::*;
use crate::{
    audit::AuditTrail,
    events::{OperatorEvent, event_channel},
    index::{ClusterIndex, cache::WatchUpdate, evictions::EvictionKey, message::IndexMessage},
    leader_election::{LEASE_DURATION, Leadership},
    metrics::OperatorMetrics,
    reconcile::{IndexOwner, Reconciler, ReconcilerOutputs},
    work_queue::{WorkQueue, WorkResult},
};
use gpunode_crds::{GpuNode, GpuNodePolicy};
use gpunode_plan::{AgentImages, AgentPodSettings, GpuNodeFacts, HostPaths, NodeFacts, PodName};
use http::{Method, Request, Response};
use http_body::Body as _;
use k8s_openapi::api::core::v1::Node;
use kube::{Client, client::Body};
use serde_json::{Value, json};
use std::{
    convert::Infallible,
    future::poll_fn,
    pin::Pin,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, timeout},
};
use tower::service_fn;

/// Method, path and body of a request.
type SentRequest = (Method, String, Value);

/// An operator that leads, and an API server with given answers.
struct Scene {
    reconciler: Reconciler,
    context: PodContext,
    events: mpsc::Receiver<OperatorEvent>,
    evictions: Arc<WorkQueue<EvictionKey>>,
    drains: Arc<WorkQueue<String>>,
    is_deletion_wanted: watch::Receiver<bool>,
    client: Client,
    requests: Arc<Mutex<Vec<SentRequest>>>,
}

impl Scene {
    /// The policy and the status of the `GpuNode` are YAML; `answer` is the code and body for a method.
    fn new(policy: &str, status: &str, answer: impl Fn(&Method) -> (u16, Value) + Clone + Send + 'static) -> Self {
        let requests: Arc<Mutex<Vec<SentRequest>>> = Arc::default();
        let sent_requests = requests.clone();
        let service = service_fn(move |request: Request<Body>| {
            let (requests, answer) = (sent_requests.clone(), answer.clone());
            async move {
                let (parts, mut body) = request.into_parts();
                let frame = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await;
                let bytes = frame
                    .map(|frame| frame.unwrap().into_data().unwrap())
                    .unwrap_or_default();
                let sent = serde_json::from_slice(&bytes).unwrap_or_default();
                let (code, body) = answer(&parts.method);
                let path = parts.uri.path().to_owned();
                requests.lock().unwrap().push((parts.method, path, sent));
                let response = Response::builder()
                    .status(code)
                    .body(Body::from(body.to_string().into_bytes()));
                Ok::<_, Infallible>(response.unwrap())
            }
        });
        let pods = AgentPodSettings {
            namespace: "ns".to_owned(),
            image: "image".to_owned(),
            allowed: AgentImages::of_agent("image"),
            paths: HostPaths::default(),
        };
        let (owned_index, index) = IndexOwner::new(ClusterIndex::new(pods, true));
        let metrics = Arc::new(OperatorMetrics::new());
        let (event_sender, events) = event_channel(metrics.clone());
        let (deletes_rejected_pods, is_deletion_wanted) = watch::channel(false);
        let (evictions, drains) = (Arc::new(WorkQueue::new()), Arc::new(WorkQueue::new()));
        let outputs = ReconcilerOutputs {
            writes: mpsc::channel(1).0,
            events: event_sender.clone(),
            evictions: evictions.clone(),
            drains: drains.clone(),
            deletes_rejected_pods,
        };
        let mut reconciler = Reconciler::new(owned_index, outputs, metrics.clone());
        let node = json!({"metadata": {"name": "n", "uid": "u", "resourceVersion": "1"},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        let node = NodeFacts::of(&serde_json::from_value::<Node>(node).unwrap());
        let mut gpu_node = GpuNode::new("n", serde_yaml::from_str("{}").unwrap());
        gpu_node.status = serde_yaml::from_str(status).unwrap();
        gpu_node.metadata.resource_version = Some("2".to_owned());
        let policy = GpuNodePolicy::new("p", serde_yaml::from_str(policy).unwrap());
        for message in [
            IndexMessage::list(IndexMessage::Policies, vec![policy.into()]),
            IndexMessage::list(IndexMessage::Nodes, vec![node]),
            IndexMessage::list(IndexMessage::GpuNodes, vec![GpuNodeFacts::of(gpu_node)]),
            IndexMessage::list(IndexMessage::DaemonSets, vec![]),
        ]
        .into_iter()
        .flatten()
        {
            reconciler.handle(message);
        }
        reconciler.lead();
        reconciler.take_due();
        let client = Client::new(service, "ns");
        let context = PodContext {
            index,
            guarded_client: client.clone(),
            leadership: Leadership::until(Instant::now() + LEASE_DURATION),
            metrics,
            events: event_sender,
            audit: AuditTrail::new(Box::new(|_| None)),
            refusals: AnnouncedRefusals::default(),
        };
        Self {
            reconciler,
            context,
            events,
            evictions,
            drains,
            is_deletion_wanted,
            client,
            requests,
        }
    }

    /// Lets the reconciler know, and make the plans that are due then.
    fn handle(&mut self, message: IndexMessage) {
        self.reconciler.handle(message);
        self.reconciler.take_due();
    }

    fn requests(&self) -> Vec<SentRequest> {
        std::mem::take(&mut *self.requests.lock().unwrap())
    }

    /// Policy and text of the one summary of the audit.
    async fn audited(&self) -> (Option<String>, String) {
        let summaries = self.context.audit.ended().await;
        assert_eq!(summaries.len(), 1, "{summaries:?}");
        (summaries[0].policy.clone(), summaries[0].to_string())
    }

    /// Reasons and messages of the events of pods.
    fn pod_events(&mut self) -> Vec<(String, String)> {
        let events = std::iter::from_fn(|| self.events.try_recv().ok());
        let of_pods = events.filter(|event| event.about.kind.as_deref() == Some("Pod"));
        of_pods.map(|event| (event.reason, event.message)).collect()
    }
}

fn status(code: u16, reason: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": if code < 300 { "Success" } else { "Failure" },
        "code": code, "reason": reason, "message": "Cannot evict"})
}
