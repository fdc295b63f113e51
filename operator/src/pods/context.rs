//! Inputs and helpers of the tasks that evict and delete pods.

use crate::{
    events::{OperatorEvent, OperatorEventSender},
    leader_election::Leadership,
    metrics::{OperatorMetrics, WorkKind},
    reconcile::IndexReader,
    work_queue::WorkResult,
};
use gpunode_crds::Reason;
use gpunode_plan::PodName;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use std::{sync::Arc, time::Duration};
use tokio::time::timeout;

/// The longest that the requests about one pod may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Inputs of both tasks.
#[derive(Clone)]
pub struct PodContext {
    pub index: IndexReader,
    /// Client that holds every write back unless this process leads.
    pub guarded_client: Client,
    pub leadership: Leadership,
    pub metrics: Arc<OperatorMetrics>,
    pub events: OperatorEventSender,
}

impl PodContext {
    /// Awaits requests about a pod of a node. Counts and logs a failure; `action` names what was tried.
    pub async fn attempt<T>(
        &self,
        action: &str,
        node: &str,
        pod: &PodName,
        requests: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, WorkResult> {
        let error = match timeout(TIMEOUT, requests).await {
            Ok(Ok(result)) => return Ok(result),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {}s", TIMEOUT.as_secs()),
        };
        self.metrics.failed(WorkKind::Pod);
        tracing::warn!(node, %pod, error, "cannot {action}");
        Err(WorkResult::Failed)
    }

    /// Sends an event about a pod.
    pub fn announce(&self, pod: ObjectReference, node: &str, reason: Reason, message: String) {
        self.events.send(OperatorEvent {
            about: pod,
            node: Some(node.to_owned()),
            is_warning: reason != Reason::RejectedPodDeleted,
            reason: reason.as_str().to_owned(),
            message,
        });
    }
}
