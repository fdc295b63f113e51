//! Evicts holders of devices that are broken or change through the eviction API, which respects PodDisruptionBudgets.

use crate::{
    index::evictions::EvictionKey,
    leader_election::NotLeader,
    lenient::Lenient,
    metrics::{WorkKind, WriteOutcome},
    pods::context::PodContext,
    work_queue::{WorkQueue, WorkResult},
};
use futures::future::join_all;
use gpunode_crds::Reason;
use gpunode_plan::{EvictionCause, PodEviction};
use k8s_openapi::{
    api::{
        core::v1::{ObjectReference, Pod},
        policy::v1::Eviction as EvictionRequest,
    },
    apimachinery::pkg::apis::meta::v1::{DeleteOptions, Preconditions},
};
use kube::{Api, Resource, ResourceExt, api::PostParams, core::Status};
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

/// Pause until a node that changed is planned again.
const PLAN_PAUSE: Duration = Duration::from_millis(100);
/// Pause after a refused eviction of a drain; `kubectl drain` waits for 5 s.
const DRAIN_PAUSE: Duration = Duration::from_secs(10);
/// Evictions at a time, so that a slow answer about one pod does not hold up all others.
const WORKERS: usize = 2;

/// The task that evicts pods. Its queue holds the pending evictions of the index, and keys that turn out to need nothing.
pub struct PodEvictor {
    pub context: PodContext,
    pub queue: Arc<WorkQueue<EvictionKey>>,
}

impl PodEvictor {
    /// Evicts pods for as long as the process lives, while it leads.
    pub async fn run(self) {
        join_all((0..WORKERS).map(|_| self.work())).await;
    }

    async fn work(&self) {
        let mut leadership = self.context.leadership.clone();
        loop {
            leadership.acquired().await;
            let key = self.queue.next().await;
            let result = evict(&self.context, &key).await;
            if result == WorkResult::Done {
                self.context.refusals.remove(&key);
            }
            self.queue.done(key, result);
        }
    }
}

/// Evicts one pod, if there still is a reason to.
pub async fn evict(context: &PodContext, key: &EvictionKey) -> WorkResult {
    if context.index.is_plan_due(&key.node) {
        return WorkResult::RetryAt(Instant::now() + PLAN_PAUSE);
    }
    let Some(eviction) = context.index.eviction(key) else {
        return WorkResult::Done;
    };
    context.metrics.reconciled(WorkKind::Pod);
    let pods = Api::namespaced(context.guarded_client.clone(), &key.pod.namespace);
    let (node, pod) = (&key.node, &key.pod);
    let requests = Box::pin(request_eviction(context, &pods, key, &eviction));
    match context.attempt("evict a pod", node, pod, requests).await {
        Ok(EvictionResult::NotFound) => WorkResult::Done,
        Ok(EvictionResult::Conflict) => {
            context.metrics.writes.ended(WorkKind::Pod, WriteOutcome::Conflict);
            WorkResult::Conflict
        }
        Ok(EvictionResult::Evicted(reference)) => {
            context.metrics.wrote(WorkKind::Pod);
            tracing::debug!(%node, %pod, reason = %eviction.cause, "evicted a pod");
            context.count_pod(node, eviction.policy.clone(), eviction.cause.intervention(), pod);
            let message = evicted_text(node, &eviction);
            context.announce(reference, node, Reason::PodEvicted, message);
            WorkResult::Done
        }
        Ok(EvictionResult::Refused(reference, status)) => {
            context.metrics.writes.ended(WorkKind::Pod, WriteOutcome::Refused);
            tracing::debug!(%node, %pod, code = status.code, status.message, "the API server refused an eviction");
            let message = refused_text(node, &eviction, &status.message);
            if context.refusals.put(key, reference.uid.as_ref(), &message) {
                context.announce(reference, node, Reason::EvictionRefused, message);
            }
            after_refusal(&eviction.cause)
        }
        Err(result) => result,
    }
}

/// Returns when to try again after the API server refused an eviction.
pub fn after_refusal(cause: &EvictionCause) -> WorkResult {
    match cause {
        EvictionCause::Broken { .. } => WorkResult::TooEarly,
        // A drain has little time, and a budget lets one pod go after the other.
        EvictionCause::Change { .. } | EvictionCause::OpenHandle { .. } => {
            WorkResult::RetryAt(Instant::now() + DRAIN_PAUSE)
        }
    }
}

fn evicted_text(node: &str, eviction: &PodEviction) -> String {
    format!("evicted from node {node}: {}", eviction.cause)
}

fn refused_text(node: &str, eviction: &PodEviction, answer: &str) -> String {
    format!(
        "waits for eviction from node {node}: {}; the API server refuses so far: {answer}",
        eviction.cause
    )
}

/// Result of an eviction.
#[derive(Debug)]
enum EvictionResult {
    /// No pod of that name holds the device.
    NotFound,
    /// The pod changed meanwhile, or this process does not lead.
    Conflict,
    /// The pod terminates.
    Evicted(ObjectReference),
    /// The API server refuses it for now, mostly because of a budget.
    Refused(ObjectReference, Box<Status>),
}

async fn request_eviction(
    context: &PodContext,
    pods: &Api<Lenient<Pod>>,
    key: &EvictionKey,
    eviction: &PodEviction,
) -> kube::Result<EvictionResult> {
    let name = &key.pod.name;
    let pod = pods.get_opt(name).await?.and_then(Lenient::into_object);
    let Some(pod) = pod.filter(|pod| eviction.is_of(pod, &key.node)) else {
        return Ok(EvictionResult::NotFound);
    };
    // The API server may have held the first request back for minutes.
    if context.index.is_plan_due(&key.node) || context.index.eviction(key).is_none() {
        return Ok(EvictionResult::Conflict);
    }
    // Names this pod in this version, so that a late request of a replaced leader does nothing.
    let only_this = Preconditions {
        uid: pod.uid(),
        resource_version: pod.resource_version(),
    };
    // Not `Api::evict`: kube 5 writes the options under a name that no API server reads, and the preconditions would be lost.
    let request = EvictionRequest {
        metadata: kube::api::ObjectMeta {
            name: Some(name.clone()),
            namespace: pod.namespace(),
            ..Default::default()
        },
        delete_options: Some(DeleteOptions {
            grace_period_seconds: eviction.grace_seconds,
            preconditions: Some(only_this),
            ..DeleteOptions::default()
        }),
    };
    match pods
        .create_subresource::<_, Status>("eviction", name, &PostParams::default(), &request)
        .await
    {
        // For a pod with several budgets the API server answers 201 with a failure of 500 in the body.
        Ok(status) if status.is_failure() => Ok(EvictionResult::Refused(pod.object_ref(&()), Box::new(status))),
        Ok(_) => Ok(EvictionResult::Evicted(pod.object_ref(&()))),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(EvictionResult::NotFound),
        Err(kube::Error::Api(status)) if status.is_conflict() => Ok(EvictionResult::Conflict),
        Err(kube::Error::Service(error)) if error.is::<NotLeader>() => Ok(EvictionResult::Conflict),
        Err(kube::Error::Api(status)) if !matches!(status.code, 503 | 504) => {
            Ok(EvictionResult::Refused(pod.object_ref(&()), status))
        }
        Err(error) => Err(error),
    }
}
