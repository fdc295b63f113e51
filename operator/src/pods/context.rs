//! Inputs and helpers of the tasks about pods.

use crate::{
    audit::AuditTrail,
    events::{OperatorEvent, OperatorEventSender},
    leader_election::Leadership,
    metrics::{OperatorMetrics, WorkKind, WriteOutcome},
    pods::refusals::AnnouncedRefusals,
    reconcile::IndexReader,
    work_queue::WorkResult,
};
use gpunode_crds::Reason;
use gpunode_plan::{Intervention, InterventionCause, PodName};
use gpunode_process::within;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use std::{sync::Arc, time::Duration};

/// The longest that the requests about one pod may take, without the times at which the client holds them back.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Failure of requests about pods.
#[derive(Debug, thiserror::Error)]
enum PodRequestError {
    #[error(transparent)]
    Kube(#[from] kube::Error),
    #[error("no answer within {}s", TIMEOUT.as_secs())]
    NoAnswer,
}

async fn within_limit<T>(requests: impl Future<Output = kube::Result<T>>) -> Result<T, PodRequestError> {
    let answer = within(TIMEOUT, requests).await;
    Ok(answer.ok_or(PodRequestError::NoAnswer)??)
}

/// Inputs of these tasks.
#[derive(Clone)]
pub struct PodContext {
    pub index: IndexReader,
    /// Client that holds every write back unless this process leads.
    pub guarded_client: Client,
    pub leadership: Leadership,
    pub metrics: Arc<OperatorMetrics>,
    pub events: OperatorEventSender,
    pub audit: AuditTrail,
    pub refusals: AnnouncedRefusals,
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
        within_limit(requests).await.map_err(|error| {
            self.metrics.failed(WorkKind::Pod);
            self.metrics.writes.ended(WorkKind::Pod, WriteOutcome::Failed);
            tracing::warn!(node, %pod, %error, "cannot {action}");
            WorkResult::Failed
        })
    }

    /// Awaits a request about all pods of a node. Counts and logs a failure; `action` names what was tried.
    pub async fn attempt_on_node<T>(
        &self,
        action: &str,
        node: &str,
        request: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, WorkResult> {
        within_limit(request).await.map_err(|error| {
            self.metrics.failed(WorkKind::Pod);
            tracing::warn!(node, %error, "cannot {action}");
            WorkResult::Failed
        })
    }

    /// Counts a pod that a policy took from a node.
    pub fn count_pod(&self, node: &str, policy: String, cause: InterventionCause, pod: &PodName) {
        let intervention = Intervention {
            policy: Some(policy),
            cause,
            subject: format!("pod {pod}"),
        };
        self.audit.add(node, [intervention]);
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
