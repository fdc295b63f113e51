//! Wiring: watches fill the index, the index wakes keys of the queue, workers carry them out while this process leads.

use crate::{
    events::Notice,
    index::{
        Index,
        evictions::HolderKey,
        work::{Effects, Key},
    },
    metrics::MAX_POLICIES,
    work_queue::Queue,
};
use gpunode_crds::ConditionType;
use gpunode_plan::AgentPodSettings;
use jiff::Timestamp;
use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};

/// Events that wait to be sent. More than these are dropped: they are told to people, and status has it all.
const MAX_NOTICES: usize = 64;

/// What all tasks share.
pub struct Controller {
    namespace: String,
    index: Mutex<Index>,
    pub queue: Queue<Key>,
    notices: mpsc::Sender<Notice>,
    is_warm: watch::Sender<bool>,
    /// Whether effects are carried out. A standby only keeps its index.
    leads: watch::Sender<bool>,
    /// Pods that are to be evicted.
    evictions: Queue<HolderKey>,
    /// Whether rejected pods are to be deleted.
    wants_rejected_pods: watch::Sender<bool>,
}

impl Controller {
    /// Nothing known yet; the receiver gets what people are to be told. Nodes get labels with facts about their GPUs if
    /// `gpu_labels` says so.
    pub fn new(pods: AgentPodSettings, gpu_labels: bool) -> (Self, mpsc::Receiver<Notice>) {
        let (notices, receiver) = mpsc::channel(MAX_NOTICES);
        let controller = Self {
            namespace: pods.namespace.clone(),
            index: Mutex::new(Index::new(pods, gpu_labels)),
            queue: Queue::new(),
            notices,
            is_warm: watch::Sender::new(false),
            leads: watch::Sender::new(false),
            evictions: Queue::new(),
            wants_rejected_pods: watch::Sender::new(false),
        };
        (controller, receiver)
    }

    /// Namespace of the DaemonSets.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Whether every cache is filled.
    pub fn is_warm(&self) -> bool {
        *self.is_warm.borrow()
    }

    /// Begins to lead: waits for warm caches, then wakes everything. From here on effects are carried out.
    pub async fn lead(&self) {
        // The sender lives as long as `self`.
        let _ = self.is_warm.subscribe().wait_for(|is_warm| *is_warm).await;
        self.leads.send_replace(true);
        self.with_index(Index::wake_everything);
    }

    /// The numbers of nodes by policy and state, for metrics.
    pub fn node_numbers(&self) -> Vec<(String, &'static str, i32)> {
        let counts = self.index.lock().unwrap_or_else(PoisonError::into_inner).counts();
        let by_state = |(policy, counts): (String, gpunode_crds::NodeCounts)| {
            [
                (policy.clone(), "matched", counts.matched),
                (policy.clone(), "ready", counts.ready),
                (policy.clone(), "updating", counts.updating),
                (policy.clone(), "failed", counts.failed),
                (policy, "conflicted", counts.conflicted),
            ]
        };
        counts.into_iter().take(MAX_POLICIES).flat_map(by_state).collect()
    }

    /// The conditions of policies and whether they are True, for metrics.
    pub fn conditions(&self) -> Vec<(String, ConditionType, bool)> {
        self.index
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .conditions(MAX_POLICIES)
    }

    /// Pods that are to be evicted, while this process leads.
    pub fn evictions(&self) -> &Queue<HolderKey> {
        &self.evictions
    }

    /// Whether this process leads and a policy wants rejected pods to be deleted.
    pub fn wants_rejected_pods(&self) -> watch::Receiver<bool> {
        self.wants_rejected_pods.subscribe()
    }

    /// Tells people something.
    pub fn notify(&self, notice: Notice) {
        if self.notices.try_send(notice).is_err() {
            tracing::debug!("drop an event: {MAX_NOTICES} wait already");
        }
    }

    /// Works with the index and sees to what follows.
    pub fn with_index<R>(&self, work: impl FnOnce(&mut Index, Timestamp, &mut Effects) -> R) -> R {
        let (now, mut effects) = (Timestamp::now(), Effects::default());
        let (result, wants_rejected_pods) = {
            let mut index = self.index.lock().unwrap_or_else(PoisonError::into_inner);
            let result = work(&mut index, now, &mut effects);
            self.is_warm
                .send_if_modified(|is_warm| index.is_warm() && !std::mem::replace(is_warm, true));
            (result, index.wants_rejected_pods())
        };
        if *self.leads.borrow() {
            let start = Instant::now();
            for wake in effects.wakes {
                let after = wake
                    .at
                    .map(|at| Duration::try_from(at.duration_since(now)).unwrap_or_default());
                self.queue.wake(wake.key, start + after.unwrap_or_default());
            }
            effects.notices.into_iter().for_each(|notice| self.notify(notice));
            effects
                .evictions
                .into_iter()
                .for_each(|holder| self.evictions.wake(holder, start));
            let is_other = |known: &mut bool| std::mem::replace(known, wants_rejected_pods) != wants_rejected_pods;
            self.wants_rejected_pods.send_if_modified(is_other);
        }
        result
    }
}
