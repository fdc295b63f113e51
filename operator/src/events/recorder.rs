//! Sends events while this process leads.

use crate::{
    events::operator_event::OperatorEvent,
    leader_election::Leadership,
    metrics::{OperatorMetrics, WorkKind, WriteOutcome},
};
use gpunode_crds::OPERATOR_FIELD_MANAGER;
use gpunode_process::{EventContent, EventSeries, within};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use std::{sync::Arc, time::Duration};
use tokio::sync::mpsc;

/// An event that cannot be sent within this time is dropped. Times at which the client holds it back do not count.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The task that sends events.
pub struct EventRecorder {
    /// Client for writes.
    pub client: Client,
    /// Name of this pod, the reporting instance.
    pub identity: String,
    pub leadership: Leadership,
    pub metrics: Arc<OperatorMetrics>,
    pub events: mpsc::Receiver<OperatorEvent>,
}

impl EventRecorder {
    /// Sends events as they come. Ends when no task is left that could send one.
    pub async fn run(mut self) {
        let mut series = EventSeries::new(self.client, OPERATOR_FIELD_MANAGER, &self.identity);
        while let Some(event) = self.events.recv().await {
            if !self.leadership.is_current() {
                continue;
            }
            match within(TIMEOUT, series.publish(content(event), Timestamp::now())).await {
                Some(Ok(())) => self.metrics.wrote(WorkKind::Event),
                Some(Err(error)) => {
                    count_failure(&self.metrics);
                    tracing::warn!(%error, "cannot send an event");
                }
                None => count_failure(&self.metrics),
            }
        }
    }
}

fn count_failure(metrics: &OperatorMetrics) {
    metrics.failed(WorkKind::Event);
    metrics.writes.ended(WorkKind::Event, WriteOutcome::Failed);
}

fn content(event: OperatorEvent) -> EventContent {
    let related = event.node.map(|node| ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Node".to_owned()),
        name: Some(node),
        ..ObjectReference::default()
    });
    EventContent {
        regarding: event.about,
        related,
        is_warning: event.is_warning,
        reason: event.reason,
        action: "Reconcile".to_owned(),
        // One series for each policy, reason, node and message.
        series: event.message.clone(),
        note: event.message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpunode_crds::Reason;

    #[test]
    fn events_with_other_messages_are_other_series() {
        let series = |message: &str| {
            let event = OperatorEvent::of_gone_policy("p", Reason::InvalidSpec, message.to_owned());
            content(event).series
        };
        assert_eq!(series("yesterday is no time"), series("yesterday is no time"));
        assert_ne!(series("yesterday is no time"), series("soon is no time"));
    }
}
