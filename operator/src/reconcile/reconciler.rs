//! Changes the index, sees to the consequences, and computes writes while this process leads.

use crate::{
    events::OperatorEventSender,
    index::{
        ClusterIndex,
        effects::Effects,
        evictions::EvictionKey,
        message::{FinishedWrite, IndexMessage, WriteResult},
        summary::ClusterSummary,
        work::WorkKey,
    },
    leader_election::Leadership,
    metrics::{OperatorMetrics, QueueNumbers, WorkClass},
    reconcile::{shared_index::IndexOwner, status_pace::StatusPace, summary_publisher::SummaryPublisher},
    work_queue::{WorkQueue, WorkResult},
    write::{WriteCounts, WriteRequest, class_with_room},
};
use jiff::Timestamp;
use std::{collections::HashMap, sync::Arc, time::Duration};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep_until},
};

/// Channels that take the consequences of changes.
pub struct ReconcilerOutputs {
    pub writes: mpsc::Sender<WriteRequest>,
    pub events: OperatorEventSender,
    pub evictions: Arc<WorkQueue<EvictionKey>>,
    /// Nodes from which taints evict pods.
    pub drains: Arc<WorkQueue<String>>,
    /// True while a policy wants rejected pods to be deleted.
    pub deletes_rejected_pods: watch::Sender<bool>,
}

/// The one task that changes the index. It makes the plans too, one at a time between messages. A standby only keeps
/// its index up to date.
pub struct Reconciler {
    index: IndexOwner,
    outputs: ReconcilerOutputs,
    metrics: Arc<OperatorMetrics>,
    queue: Arc<WorkQueue<WorkKey>>,
    status_pace: StatusPace,
    summary: SummaryPublisher,
    is_leading: bool,
    /// Writes that are planned or under way.
    writes_in_flight: HashMap<WorkKey, WorkClass>,
}

impl Reconciler {
    /// A standby.
    pub fn new(index: IndexOwner, outputs: ReconcilerOutputs, metrics: Arc<OperatorMetrics>) -> Self {
        Self {
            index,
            outputs,
            queue: Arc::new(WorkQueue::measured(metrics.queue.clone())),
            metrics,
            status_pace: StatusPace::default(),
            summary: SummaryPublisher::default(),
            is_leading: false,
            writes_in_flight: HashMap::new(),
        }
    }

    /// Follows the index in numbers, at most 100 ms behind it.
    pub fn summary(&self) -> watch::Receiver<Arc<ClusterSummary>> {
        self.summary.follow()
    }

    /// Returns the queue, of which others read the numbers.
    pub fn queue(&self) -> Arc<WorkQueue<WorkKey>> {
        self.queue.clone()
    }

    /// Works until no task is left that could send a message.
    pub async fn run(mut self, mut messages: mpsc::Receiver<IndexMessage>, mut leadership: Leadership) {
        loop {
            let may_lead = !self.is_leading && self.index.lock().has_synced();
            let least = class_with_room(self.write_counts()).filter(|_| self.is_leading);
            let summary_due = self.summary.due();
            let mut leadership_of_writes = leadership.clone();
            let next_key = async {
                leadership_of_writes.acquired().await;
                self.queue.next_of(least.unwrap_or(WorkClass::Urgent)).await
            };
            tokio::select! {
                message = messages.recv() => match message {
                    Some(message) => self.handle(message),
                    None => return,
                },
                () = leadership.acquired(), if may_lead => self.lead(),
                (key, class) = next_key, if least.is_some() => self.reconcile(key, class),
                () = sleep_until(summary_due.unwrap_or_else(Instant::now)), if summary_due.is_some() => {
                    self.summary.publish(&self.index.lock());
                }
            }
        }
    }

    /// Begins to lead: plans every node in a sweep. From here on consequences are seen to.
    pub fn lead(&mut self) {
        self.is_leading = true;
        self.change(ClusterIndex::lead);
        tracing::info!("caches are synced; reconciling");
    }

    /// Applies a message to the index. A key is done after all results of its write are in the index, so that the next plan
    /// of the same object never misses one.
    pub fn handle(&mut self, message: IndexMessage) {
        let finished = match &message {
            IndexMessage::Finished(FinishedWrite { key, result }) => Some((key.clone(), work_result(result))),
            _ => None,
        };
        self.change(|index, now, effects| index.apply(message, now, effects));
        if let Some((key, result)) = finished {
            self.writes_in_flight.remove(&key);
            self.finish(key, result);
        }
    }

    /// Computes the write of a key and hands it to the workers, some writes ahead of them: no connection waits for a
    /// plan.
    fn reconcile(&mut self, key: WorkKey, class: WorkClass) {
        if let WorkKey::PolicyStatus(policy) = &key
            && let Some(at) = self.status_pace.not_before(policy)
        {
            self.queue.done(key, WorkResult::RetryAt(at));
            return;
        }
        if key == WorkKey::Sweep {
            let QueueNumbers {
                urgent,
                ordinary,
                oldest,
                ..
            } = self.queue.numbers();
            tracing::debug!(urgent, ordinary, ?oldest, "the next nodes of a sweep join the queue");
        }
        let start = Instant::now();
        let write = self.change(|index, now, effects| index.planned_write(&key, now, effects));
        self.metrics.writes.planned(key.kind(), start.elapsed());
        let Some(write) = write else {
            self.metrics.reconciled(key.kind());
            return self.finish(key, WorkResult::Done);
        };
        if let WorkKey::PolicyStatus(policy) = &key {
            self.status_pace.written(policy);
        }
        self.writes_in_flight.insert(key.clone(), class);
        // The channel holds as many requests as there are writes at a time, so it fails only while the process is stopping.
        let _ = self.outputs.writes.try_send(WriteRequest { key, class, write });
    }

    fn write_counts(&self) -> WriteCounts {
        let mut counts = WriteCounts::default();
        for class in self.writes_in_flight.values() {
            *counts.of(*class) += 1;
        }
        counts
    }

    /// Ends the reconcile of a key.
    fn finish(&self, key: WorkKey, result: WorkResult) {
        let kind = key.kind();
        let took = self.queue.done(key, result);
        self.metrics.writes.finished(kind, took);
    }

    /// Changes the index and, on the leader, sees to the consequences.
    fn change<R>(&mut self, change: impl FnOnce(&mut ClusterIndex, Timestamp, &mut Effects) -> R) -> R {
        let (now, mut effects) = (Timestamp::now(), Effects::default());
        let (result, deletes_rejected_pods) = {
            let mut index = self.index.lock();
            let result = change(&mut index, now, &mut effects);
            self.summary.changed(&index);
            (result, index.deletes_rejected_pods())
        };
        if self.is_leading {
            self.see_to(effects, now);
            let differs = |known: &mut bool| std::mem::replace(known, deletes_rejected_pods) != deletes_rejected_pods;
            self.outputs.deletes_rejected_pods.send_if_modified(differs);
        }
        result
    }

    fn see_to(&self, effects: Effects, now: Timestamp) {
        let start = Instant::now();
        for key in effects.forgotten {
            self.queue.forget(&key);
        }
        for queued in effects.queued {
            let after = queued
                .at
                .map(|at| Duration::try_from(at.duration_since(now)).unwrap_or_default());
            self.queue
                .add_as(queued.class, queued.key, start + after.unwrap_or_default());
        }
        for event in effects.events {
            self.outputs.events.send(event);
        }
        for eviction in effects.evictions {
            self.outputs.evictions.add(eviction, start);
        }
        for node in effects.drains {
            self.outputs.drains.add(node, start);
        }
    }
}

#[cfg(test)]
impl Reconciler {
    /// Takes every key that is due, as [`Reconciler::run`] would. Nobody carries the writes out.
    pub fn take_due(&mut self) {
        while let Some(key) = futures::FutureExt::now_or_never(self.queue.next()) {
            self.reconcile(key.clone(), key.class());
            self.queue.done(key, WorkResult::Done);
        }
    }
}

fn work_result(result: &WriteResult) -> WorkResult {
    match result {
        WriteResult::Accepted => WorkResult::Done,
        WriteResult::Conflict => WorkResult::Conflict,
        WriteResult::Refused(_) | WriteResult::Failed => WorkResult::Failed,
    }
}

#[cfg(test)]
mod tests;
