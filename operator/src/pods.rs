//! Pods that are to go: those that hold a broken device are evicted, those that a node rejected are deleted. Which they are is
//! decided by `gpunode-plan`; here is how. Nothing else of the operator waits for it.

mod evictor;
mod rejected_pods;

use crate::{
    events::Notice,
    leader_election::Claim,
    metrics::{Kind, Metrics},
    reconcile::Controller,
    work_queue::Done,
};
use gpunode_crds::Reason;
use gpunode_plan::PodName;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use std::time::Duration;
use tokio::time::timeout;

/// The longest that one pod may take.
const PASS_TIMEOUT: Duration = Duration::from_secs(10);

/// What the work needs.
pub struct Parts<'a> {
    /// What is known.
    pub controller: &'a Controller,
    /// Client for watches.
    pub client: Client,
    /// Client for everything else, which writes only while this process leads.
    pub guarded: Client,
    /// Counts.
    pub metrics: &'a Metrics,
    /// Whether this process leads.
    pub claim: Claim,
}

/// Does it from the moment on that this process leads. Does not end.
pub async fn remove_pods(parts: &Parts<'_>) {
    tokio::join!(evictor::evict_pods(parts), rejected_pods::delete_rejected_pods(parts));
}

/// What became of work on a pod of a node; counted and logged where it failed.
async fn tried<T>(
    parts: &Parts<'_>,
    what: &str,
    node: &str,
    pod: &PodName,
    work: impl Future<Output = kube::Result<T>>,
) -> Result<T, Done> {
    let error = match timeout(PASS_TIMEOUT, work).await {
        Ok(Ok(outcome)) => return Ok(outcome),
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("no answer within {}s", PASS_TIMEOUT.as_secs()),
    };
    parts.metrics.failed(Kind::Pod);
    tracing::warn!(node, %pod, error, "{what}");
    Err(Done::Failed)
}

/// Something about a pod, for people.
fn notice(pod: ObjectReference, node: &str, reason: Reason, message: String) -> Notice {
    let is_warning = reason != Reason::RejectedPodDeleted;
    Notice {
        about: pod,
        node: Some(node.to_owned()),
        is_warning,
        reason: reason.as_str().to_owned(),
        message,
    }
}

#[cfg(test)]
mod tests;
