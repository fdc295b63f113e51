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
use tokio::{sync::mpsc, time::sleep};

/// An event that cannot be sent within this time is dropped. Times at which the client holds it back do not count.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Pause between two events: a fault of many nodes must not be a burst for the API server.
const PAUSE: Duration = Duration::from_millis(100);

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
            sleep(PAUSE).await;
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
    use crate::events::event_channel;
    use gpunode_crds::Reason;
    use http::{Request, Response};
    use kube::client::Body;
    use std::{convert::Infallible, sync::Mutex};
    use tokio::time::{Instant, timeout};

    #[tokio::test(start_paused = true)]
    async fn events_that_come_together_are_sent_one_after_the_other() {
        let sent = Arc::new(Mutex::new(Vec::new()));
        let times = sent.clone();
        let service = tower::service_fn(move |_: Request<Body>| {
            times.lock().unwrap().push(Instant::now());
            let event =
                r#"{"kind": "Event", "apiVersion": "events.k8s.io/v1", "eventTime": null, "metadata": {"name": "e"}}"#;
            let response = Response::new(Body::from(event.as_bytes().to_vec()));
            async { Ok::<_, Infallible>(response) }
        });
        let metrics = Arc::new(OperatorMetrics::new());
        let (sender, events) = event_channel(metrics.clone());
        for node in 0..20 {
            let message = format!("node {node} is not ready");
            sender.send(OperatorEvent::of_gone_policy("p", Reason::InvalidSpec, message));
        }
        let recorder = EventRecorder {
            client: Client::new(service, "ns"),
            identity: "me".to_owned(),
            leadership: Leadership::until(Instant::now() + TIMEOUT),
            metrics,
            events,
        };
        assert!(timeout(TIMEOUT, recorder.run()).await.is_err(), "more may come");
        let sent = sent.lock().unwrap();
        let pauses: Vec<Duration> = sent.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(pauses, [PAUSE; 19]);
    }

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
