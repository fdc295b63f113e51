//! The bounded channel on which tasks hand over events.

use crate::{events::operator_event::OperatorEvent, metrics::OperatorMetrics};
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    sync::mpsc::{self, error::TrySendError},
    time::Instant,
};

/// Events that may wait: those of about a minute. More are dropped: they are for people, and status holds the present state.
const CAPACITY: usize = 512;
/// Minimum pause between two warnings about dropped events.
const WARN_PAUSE: Duration = Duration::from_mins(1);

/// The end of the channel that takes events.
#[derive(Clone)]
pub struct OperatorEventSender {
    events: mpsc::Sender<OperatorEvent>,
    metrics: Arc<OperatorMetrics>,
    /// Time of the last warning.
    warned: Arc<Mutex<Option<Instant>>>,
}

impl OperatorEventSender {
    /// Hands over an event, or drops and counts it when too many wait.
    pub fn send(&self, event: OperatorEvent) {
        let Err(TrySendError::Full(event)) = self.events.try_send(event) else {
            return;
        };
        self.metrics.writes.event_dropped();
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        if warned.is_none_or(|at| at.elapsed() >= WARN_PAUSE) {
            *warned = Some(Instant::now());
            let reason = event.reason;
            tracing::warn!(
                reason,
                "dropped an event: {CAPACITY} events wait already; gpunode_operator_events_dropped_total counts all"
            );
        }
    }
}

/// Makes the channel.
pub fn event_channel(metrics: Arc<OperatorMetrics>) -> (OperatorEventSender, mpsc::Receiver<OperatorEvent>) {
    let (events, receiver) = mpsc::channel(CAPACITY);
    let warned = Arc::default();
    (
        OperatorEventSender {
            events,
            metrics,
            warned,
        },
        receiver,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpunode_crds::Reason;

    #[tokio::test(start_paused = true)]
    async fn events_for_which_there_is_no_room_are_counted() {
        let metrics = Arc::new(OperatorMetrics::new());
        let (sender, receiver) = event_channel(metrics.clone());
        let send = || sender.send(OperatorEvent::of_gone_policy("p", Reason::InvalidSpec, String::new()));
        (0..CAPACITY + 3).for_each(|_| send());
        drop(receiver);
        // The operator stops.
        send();
        let text = metrics.render();
        assert!(text.contains("gpunode_operator_events_dropped_total 3\n"), "{text}");
    }
}
