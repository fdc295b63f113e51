//! The rejected pods of the cluster, as their watch last told.

use crate::{
    lenient::Lenient,
    work_queue::{WorkQueue, WorkResult},
};
use futures::StreamExt;
use gpunode_plan::{PodName, RejectedPod};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, Resource,
    runtime::{
        WatchStreamExt,
        watcher::{Config, Event, watcher},
    },
};
use std::{
    collections::{HashMap, HashSet},
    pin::pin,
    sync::{Mutex, MutexGuard, PoisonError},
};
use tokio::time::Instant;

/// Field selector of the watch.
const FAILED: &str = "status.phase=Failed";
/// Pods per page of a list.
const PAGE: u32 = 500;

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
    pub async fn watch(&self, client: Client) {
        let config = Config::default().fields(FAILED).page_size(PAGE);
        let mut events = pin!(watcher(Api::<Lenient<Pod>>::all(client), config).default_backoff());
        let mut listed = HashSet::new();
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => self.apply(event, &mut listed),
                Err(error) => tracing::warn!(%error, "cannot watch failed pods; retrying"),
            }
        }
    }

    /// Applies an event of the watch. `listed` collects the pods of a list that is coming in.
    pub fn apply(&self, event: Event<Lenient<Pod>>, listed: &mut HashSet<PodName>) {
        match event {
            Event::Apply(pod) => drop(self.put(pod)),
            Event::Delete(pod) => drop(self.lock().remove(&name(&pod))),
            Event::Init => listed.clear(),
            Event::InitApply(pod) => listed.extend(self.put(pod)),
            Event::InitDone => self.lock().retain(|name, _| listed.contains(name)),
        }
    }

    /// Keeps the pod if a node rejected it, and returns its name then.
    fn put(&self, pod: Lenient<Pod>) -> Option<PodName> {
        let name = name(&pod);
        let Some(pod) = pod.into_object().as_ref().and_then(RejectedPod::of) else {
            self.lock().remove(&name);
            return None;
        };
        self.lock().insert(name.clone(), pod);
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

fn name(pod: &Lenient<Pod>) -> PodName {
    let meta = pod.meta();
    PodName {
        namespace: meta.namespace.clone().unwrap_or_default(),
        name: meta.name.clone().unwrap_or_default(),
    }
}
