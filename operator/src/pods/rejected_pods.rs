//! Deletes pods that a node rejected, where a controller makes new ones. They are watched only while some policy wants that.

use super::{Parts, notice, tried};
use crate::{
    leader_election::NotLeader,
    lenient::Readable,
    metrics::Kind,
    work_queue::{Done, Queue},
};
use futures::StreamExt;
use gpunode_crds::Reason;
use gpunode_plan::{PodName, RejectedPod};
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, Preconditions},
    runtime::{
        WatchStreamExt,
        watcher::{Config, Event, watcher},
    },
};
use std::{
    collections::{HashMap, HashSet},
    pin::pin,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::{Instant, sleep};

/// What is watched.
const FAILED: &str = "status.phase=Failed";
/// Pods per request of a list.
const PAGE: u32 = 500;
/// Time between two deletions: more than a ReplicaSet without end makes in it (about 200 a minute were seen), and no burden
/// to the API server.
const PACE: Duration = Duration::from_millis(200);
/// When a pod that is not to go is looked at again, since policies and nodes change.
const AGAIN: Duration = Duration::from_mins(1);

/// Deletes rejected pods while a policy wants that and this process leads.
pub async fn delete_rejected_pods(parts: &Parts<'_>) {
    let mut wanted = parts.controller.wants_rejected_pods();
    // The sender lives as long as the controller.
    while wanted.wait_for(|wanted| *wanted).await.is_ok() {
        tracing::info!("a policy wants rejected pods to be deleted; watching failed pods");
        let rejected = Rejected::new();
        tokio::select! {
            () = rejected.watch(parts.client.clone()) => {}
            () = rejected.delete(parts) => {}
            _ = wanted.wait_for(|wanted| !*wanted) => {}
        }
    }
}

/// The rejected pods of the cluster: at most as many as its control plane leaves there (`--terminated-pod-gc-threshold`).
pub struct Rejected {
    pods: Mutex<HashMap<PodName, RejectedPod>>,
    queue: Queue<PodName>,
}

impl Rejected {
    pub fn new() -> Self {
        Self {
            pods: Mutex::new(HashMap::new()),
            queue: Queue::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<PodName, RejectedPod>> {
        // No code that could panic runs under the lock.
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn watch(&self, client: Client) {
        let config = Config::default().fields(FAILED).page_size(PAGE);
        let mut events = pin!(watcher(Api::<Readable<Pod>>::all(client), config).default_backoff());
        let mut listed = HashSet::new();
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => self.take(event, &mut listed),
                Err(error) => tracing::warn!(%error, "watch failed pods"),
            }
        }
    }

    /// Takes in what the watch says. `listed` are the pods of a list that comes in.
    pub fn take(&self, event: Event<Readable<Pod>>, listed: &mut HashSet<PodName>) {
        match event {
            Event::Apply(pod) => drop(self.put(pod)),
            Event::Delete(pod) => drop(self.lock().remove(&name(&pod))),
            Event::Init => listed.clear(),
            Event::InitApply(pod) => listed.extend(self.put(pod)),
            Event::InitDone => self.lock().retain(|name, _| listed.contains(name)),
        }
    }

    /// Keeps the pod, if it is a rejected one, and gives its name.
    fn put(&self, pod: Readable<Pod>) -> Option<PodName> {
        let name = name(&pod);
        let Some(pod) = pod.into_object().as_ref().and_then(RejectedPod::of) else {
            self.lock().remove(&name);
            return None;
        };
        self.lock().insert(name.clone(), pod);
        self.queue.wake(name.clone(), Instant::now());
        Some(name)
    }

    async fn delete(&self, parts: &Parts<'_>) {
        let mut claim = parts.claim.clone();
        loop {
            claim.current().await;
            let name = self.queue.next().await;
            let done = self.pass(parts, &name).await;
            self.queue.done(name, done);
            if !matches!(done, Done::Again(_)) {
                sleep(PACE).await;
            }
        }
    }

    pub async fn pass(&self, parts: &Parts<'_>, name: &PodName) -> Done {
        let Some(pod) = self.lock().get(name).cloned() else {
            return Done::Settled;
        };
        if !parts.controller.with_index(|index, now, _| index.is_to_go(&pod, now)) {
            return Done::Again(Instant::now() + AGAIN);
        }
        parts.metrics.reconciled(Kind::Pod);
        let work = delete(parts.guarded.clone(), &pod);
        match tried(parts, "delete a rejected pod", &pod.node, name, work).await {
            Ok(true) => {
                parts.metrics.wrote(Kind::Pod);
                tracing::info!(node = pod.node, pod = %name, "deleted a rejected pod");
                let message = format!(
                    "deleted, since node {} rejected it and its controller makes another",
                    pod.node
                );
                let notice = notice(reference(&pod), &pod.node, Reason::RejectedPodDeleted, message);
                parts.controller.notify(notice);
                Done::Settled
            }
            Ok(false) => Done::Raced,
            Err(done) => done,
        }
    }
}

/// Whether the pod was deleted; if not, it changed meanwhile, is gone, or this process does not lead. The watch tells how.
async fn delete(client: Client, pod: &RejectedPod) -> kube::Result<bool> {
    let pods = Api::<Readable<Pod>>::namespaced(client, &pod.name.namespace);
    let only = Preconditions {
        uid: Some(pod.uid.clone()),
        resource_version: Some(pod.resource_version.clone()),
    };
    match pods
        .delete(&pod.name.name, &DeleteParams::default().preconditions(only))
        .await
    {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(false),
        Err(kube::Error::Service(error)) if error.is::<NotLeader>() => Ok(false),
        Err(error) => Err(error),
    }
}

fn name(pod: &Readable<Pod>) -> PodName {
    let meta = pod.meta();
    PodName {
        namespace: meta.namespace.clone().unwrap_or_default(),
        name: meta.name.clone().unwrap_or_default(),
    }
}

fn reference(pod: &RejectedPod) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some(pod.name.namespace.clone()),
        name: Some(pod.name.name.clone()),
        uid: Some(pod.uid.clone()),
        ..ObjectReference::default()
    }
}
