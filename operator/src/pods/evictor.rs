//! Evictions through the API that respects PodDisruptionBudgets.

use super::{Parts, notice, tried};
use crate::{
    index::evictions::HolderKey, leader_election::NotLeader, lenient::Readable, metrics::Kind, work_queue::Done,
};
use futures::future::join_all;
use gpunode_crds::Reason;
use gpunode_plan::PodEviction;
use k8s_openapi::{
    api::{
        core::v1::{ObjectReference, Pod},
        policy::v1::Eviction as Request,
    },
    apimachinery::pkg::apis::meta::v1::{DeleteOptions, Preconditions},
};
use kube::{Api, Resource, ResourceExt, api::PostParams, core::Status};

/// Pods that are looked at at a time: a slow answer about one does not hold up all others.
const WORKERS: usize = 2;

/// Evicts pods as it becomes known that they are to go. The queue holds no more than [`crate::index::evictions::Wanted`] has, and keys of
/// which the next look shows that nothing is to be done any more.
pub async fn evict_pods(parts: &Parts<'_>) {
    let queue = parts.controller.evictions();
    join_all((0..WORKERS).map(|_| async {
        let mut claim = parts.claim.clone();
        loop {
            claim.current().await;
            let key = queue.next().await;
            let done = pass(parts, &key).await;
            queue.done(key, done);
        }
    }))
    .await;
}

pub async fn pass(parts: &Parts<'_>, key: &HolderKey) -> Done {
    let Some(eviction) = parts.controller.with_index(|index, _, _| index.eviction(key).cloned()) else {
        return Done::Settled;
    };
    parts.metrics.reconciled(Kind::Pod);
    let pods = Api::namespaced(parts.guarded.clone(), &key.pod.namespace);
    let (node, pod) = (&key.node, &key.pod);
    match tried(parts, "evict a pod", node, pod, evict(&pods, key, &eviction)).await {
        Ok(Outcome::NotThere) => Done::Settled,
        Ok(Outcome::Changed) => Done::Raced,
        Ok(Outcome::Evicted(reference)) => {
            parts.metrics.wrote(Kind::Pod);
            tracing::info!(%node, %pod, why = %eviction, "evicted a pod");
            let message = format!("evicted from node {node}, since {eviction}");
            parts
                .controller
                .notify(notice(reference, node, Reason::PodEvicted, message));
            Done::Settled
        }
        Ok(Outcome::Refused(reference, status)) => {
            tracing::debug!(%node, %pod, code = status.code, status.message, "evict a pod: refused");
            let message = format!(
                "to be evicted from node {node}, since {eviction}; refused so far: {}",
                status.message
            );
            parts
                .controller
                .notify(notice(reference, node, Reason::EvictionRefused, message));
            Done::Refused
        }
        Err(done) => done,
    }
}

/// What became of an eviction.
#[derive(Debug)]
enum Outcome {
    /// No pod is there that holds the device.
    NotThere,
    /// The pod changed meanwhile, or this process does not lead.
    Changed,
    /// The pod is on its way out.
    Evicted(ObjectReference),
    /// The API server does not want it now, for a budget first of all.
    Refused(ObjectReference, Box<Status>),
}

async fn evict(pods: &Api<Readable<Pod>>, key: &HolderKey, eviction: &PodEviction) -> kube::Result<Outcome> {
    let name = &key.pod.name;
    let pod = pods.get_opt(name).await?.and_then(Readable::into_object);
    let Some(pod) = pod.filter(|pod| eviction.is_of(pod, &key.node)) else {
        return Ok(Outcome::NotThere);
    };
    // This very pod as it was looked at, which a late request of a replaced leader is not about.
    let only = Preconditions {
        uid: pod.uid(),
        resource_version: pod.resource_version(),
    };
    // Not `Api::evict`: kube 5 names the options in a way that no API server reads, so the preconditions would be lost.
    let request = Request {
        metadata: kube::api::ObjectMeta {
            name: Some(name.clone()),
            namespace: pod.namespace(),
            ..Default::default()
        },
        delete_options: Some(DeleteOptions {
            preconditions: Some(only),
            ..DeleteOptions::default()
        }),
    };
    match pods
        .create_subresource::<_, Status>("eviction", name, &PostParams::default(), &request)
        .await
    {
        // With several budgets for one pod the API server answers 201, and means 500.
        Ok(status) if status.is_failure() => Ok(Outcome::Refused(pod.object_ref(&()), Box::new(status))),
        Ok(_) => Ok(Outcome::Evicted(pod.object_ref(&()))),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(Outcome::NotThere),
        Err(kube::Error::Api(status)) if status.is_conflict() => Ok(Outcome::Changed),
        Err(kube::Error::Service(error)) if error.is::<NotLeader>() => Ok(Outcome::Changed),
        Err(kube::Error::Api(status)) if !matches!(status.code, 503 | 504) => {
            Ok(Outcome::Refused(pod.object_ref(&()), status))
        }
        Err(error) => Err(error),
    }
}
