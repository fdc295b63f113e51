//! The bounded channel on which tasks hand over events.

use crate::events::operator_event::OperatorEvent;
use tokio::sync::mpsc;

/// Events that may wait: those of about a minute. More are dropped: they are for people, and status holds the present state.
const CAPACITY: usize = 512;

/// The end of the channel that takes events.
#[derive(Clone)]
pub struct OperatorEventSender(mpsc::Sender<OperatorEvent>);

impl OperatorEventSender {
    /// Hands over an event, or drops it when too many wait.
    pub fn send(&self, event: OperatorEvent) {
        if self.0.try_send(event).is_err() {
            tracing::debug!("dropped an event: {CAPACITY} events wait already");
        }
    }
}

/// Makes the channel.
pub fn event_channel() -> (OperatorEventSender, mpsc::Receiver<OperatorEvent>) {
    let (sender, receiver) = mpsc::channel(CAPACITY);
    (OperatorEventSender(sender), receiver)
}
