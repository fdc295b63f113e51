//! The rejected pods of the cluster, as their watch last told.

use crate::{
    index::cache::WatchUpdate,
    lenient::Lenient,
    watch::{ListWatch, WatchHealth, WatchOutputs},
    work_queue::{WorkQueue, WorkResult},
};
use gpunode_plan::{PodName, RejectedPod};
use k8s_openapi::api::core::v1::Pod;
use kube::{Client, Resource};
use std::{
    collections::{HashMap, HashSet},
    convert::identity,
    sync::{Mutex, MutexGuard, PoisonError},
};
use tokio::{sync::mpsc, time::Instant};

/// Field selector of the watch.
const FAILED: &str = "status.phase=Failed";

/// A pod that failed.
#[derive(Debug)]
pub struct FailedPod {
    name: PodName,
    /// Details, if a node rejected it.
    rejected: Option<RejectedPod>,
}

impl FailedPod {
    /// Reads a pod.
    pub fn of(pod: Lenient<Pod>) -> Self {
        let meta = pod.meta();
        Self {
            name: PodName {
                namespace: meta.namespace.clone().unwrap_or_default(),
                name: meta.name.clone().unwrap_or_default(),
            },
            rejected: pod.into_object().as_ref().and_then(RejectedPod::of),
        }
    }
}

/// The rejected pods: at most as many as the control plane keeps (`--terminated-pod-gc-threshold`).
pub struct RejectedPods {
    pods: Mutex<HashMap<PodName, RejectedPod>>,
    queue: WorkQueue<PodName>,
}

impl RejectedPods {
    /// No pods.
    pub fn new() -> Self {
        Self {
            pods: Mutex::new(HashMap::new()),
            queue: WorkQueue::new(),
        }
    }

    /// Watches failed pods for as long as it is polled.
    pub async fn watch(&self, client: Client, health: &WatchHealth) {
        let (messages, mut updates) = mpsc::channel(1);
        let watch = ListWatch::new::<Lenient<Pod>>(client, &(), None).fields(FAILED);
        let outputs = WatchOutputs {
            messages: &messages,
            message: identity,
            health,
        };
        let mut listed = HashSet::new();
        let apply = async {
            while let Some(update) = updates.recv().await {
                self.apply(update, &mut listed);
            }
        };
        tokio::join!(watch.run(|pod| Some(FailedPod::of(pod)), outputs), apply);
    }

    /// Applies an update of the watch. `listed` collects the pods of a list that is coming in.
    pub fn apply(&self, update: WatchUpdate<FailedPod>, listed: &mut HashSet<PodName>) {
        match update {
            WatchUpdate::Applied(pod) => drop(self.put(*pod)),
            WatchUpdate::Deleted(deleted) => {
                if let Some((namespace, name)) = deleted.name.split_once('/') {
                    let (namespace, name) = (namespace.to_owned(), name.to_owned());
                    self.lock().remove(&PodName { namespace, name });
                }
            }
            WatchUpdate::ListStarted => listed.clear(),
            WatchUpdate::ListPage(pods) => listed.extend(pods.into_iter().filter_map(|pod| self.put(pod))),
            // Something is read of each pod.
            WatchUpdate::ListKept(_) => {}
            WatchUpdate::ListCompleted(_) => self.lock().retain(|name, _| listed.contains(name)),
        }
    }

    /// Keeps the pod if a node rejected it, and returns its name then.
    fn put(&self, pod: FailedPod) -> Option<PodName> {
        let FailedPod { name, rejected } = pod;
        let Some(rejected) = rejected else {
            self.lock().remove(&name);
            return None;
        };
        self.lock().insert(name.clone(), rejected);
        self.queue.add(name.clone(), Instant::now());
        Some(name)
    }

    /// Returns the rejected pod of a name.
    pub fn get(&self, name: &PodName) -> Option<RejectedPod> {
        self.lock().get(name).cloned()
    }

    /// Waits for the next pod to look at.
    pub async fn next(&self) -> PodName {
        self.queue.next().await
    }

    /// Ends the work on a pod.
    pub fn done(&self, name: PodName, result: WorkResult) {
        self.queue.done(name, result);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<PodName, RejectedPod>> {
        // No code that could panic runs under the lock.
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
