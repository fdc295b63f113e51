//! Events of the Node. Nothing waits for them: an event that cannot be sent soon is dropped, and the log has it, too.

use gpunode_process::{EventContent, EventSeries, within};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use std::time::Duration;
use tokio::{sync::mpsc, time::sleep};
use tracing::warn;

/// Bound of the queue of events.
const QUEUE: usize = 64;
/// Pause between two events: a fault of all GPUs of a node must not be a burst for the API server.
const PAUSE: Duration = Duration::from_millis(100);
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
const CONTROLLER: &str = "gpunode-agent";

/// Reason of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventReason {
    /// A GPU or MIG device became faulty.
    GpuUnhealthy,
    /// A GPU or MIG device has a fault that affects no work.
    GpuDegraded,
    /// A GPU or MIG device recovered.
    GpuHealthy,
    /// The driver reported an XID that makes no device unhealthy.
    GpuXid,
    /// A file of a companion is gone.
    CompanionGone,
    /// A file of a companion has come.
    CompanionFound,
    /// A state file could not be parsed and was set aside.
    StateFileCorrupt,
    /// A GPU is used by a process that no container accounts for.
    UnaccountedProcess,
    /// A GPU has got its MIG layout.
    MigLayoutApplied,
    /// Something other than a pod keeps a GPU from its MIG layout.
    MigLayoutBlocked,
    /// The driver refused a MIG layout.
    MigLayoutFailed,
    /// A MIG layout comes into force with a reboot of the node.
    MigRebootRequired,
}

/// An event that waits to be sent.
#[derive(Debug)]
pub struct PendingEvent {
    reason: EventReason,
    series: String,
    note: String,
}

/// Queue of events. Cheap to clone.
#[derive(Clone, Debug)]
pub struct NodeEventSender(mpsc::Sender<PendingEvent>);

/// Task that sends the queued events to the API server.
pub struct EventPublisher {
    pub client: Client,
    pub node_name: String,
    /// Name of this pod; empty without a pod.
    pub pod_name: String,
    pub events: mpsc::Receiver<PendingEvent>,
}

impl NodeEventSender {
    /// Returns a queue, and the events in it.
    pub fn new() -> (Self, mpsc::Receiver<PendingEvent>) {
        let (sender, events) = mpsc::channel(QUEUE);
        (Self(sender), events)
    }

    /// Queues an event about `series`, such as a device and its fault: one that comes again is counted. Drops it if nobody sends
    /// the queued events, as without API server.
    pub fn send(&self, reason: EventReason, series: String, note: String) {
        // The queue is full only while the API server does not answer.
        _ = self.0.try_send(PendingEvent { reason, series, note });
    }
}

impl EventPublisher {
    /// Sends the queued events. Does not end.
    pub async fn run(mut self) {
        let mut series = EventSeries::new(self.client, CONTROLLER, &self.pod_name);
        // As kubelets do: `kubectl describe node` looks for events under the name.
        let node = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(self.node_name.clone()),
            uid: Some(self.node_name),
            ..ObjectReference::default()
        };
        let mut failing = false;
        while let Some(pending) = self.events.recv().await {
            let content = content(pending, node.clone());
            let error = match within(CALL_TIMEOUT, series.publish(content, Timestamp::now())).await {
                Some(Ok(())) => None,
                Some(Err(error)) => Some(error.to_string()),
                None => Some(format!("no answer within {CALL_TIMEOUT:?}")),
            };
            if let Some(error) = &error
                && !failing
            {
                warn!(error, "cannot send an event of the Node; dropped it");
            }
            failing = error.is_some();
            sleep(PAUSE).await;
        }
        std::future::pending::<()>().await;
    }
}

fn content(pending: PendingEvent, node: ObjectReference) -> EventContent {
    let (is_warning, reason, action) = match pending.reason {
        EventReason::GpuUnhealthy => (true, "GpuUnhealthy", "WithholdDevice"),
        EventReason::GpuDegraded => (true, "GpuDegraded", "OfferDevice"),
        EventReason::GpuHealthy => (false, "GpuHealthy", "OfferDevice"),
        EventReason::GpuXid => (false, "GpuXid", "OfferDevice"),
        EventReason::CompanionGone => (true, "CompanionGone", "WithholdDevice"),
        EventReason::CompanionFound => (false, "CompanionFound", "OfferDevice"),
        EventReason::StateFileCorrupt => (true, "StateFileCorrupt", "SetAside"),
        EventReason::UnaccountedProcess => (true, "UnaccountedProcess", "OfferDevice"),
        EventReason::MigLayoutApplied => (false, "MigLayoutApplied", "ChangeMig"),
        EventReason::MigLayoutBlocked => (true, "MigLayoutBlocked", "ChangeMig"),
        EventReason::MigLayoutFailed => (true, "MigLayoutFailed", "ChangeMig"),
        EventReason::MigRebootRequired => (true, "MigRebootRequired", "ChangeMig"),
    };
    EventContent {
        regarding: node,
        related: None,
        is_warning,
        reason: reason.to_owned(),
        action: action.to_owned(),
        series: pending.series,
        note: pending.note,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_api_server_that_is_away_holds_nobody_up() {
        let (sender, mut events) = NodeEventSender::new();
        for number in 0..QUEUE * 2 {
            sender.send(EventReason::GpuUnhealthy, String::new(), number.to_string());
        }
        let mut count = 0;
        while let Ok(event) = events.try_recv() {
            assert_eq!(event.note, count.to_string());
            count += 1;
        }
        assert_eq!(count, QUEUE, "the first ones are kept");
        drop(events);
        sender.send(EventReason::GpuHealthy, String::new(), "nobody to tell".to_owned());
    }
}
