//! Sending over watch channels.

use tokio::sync::watch;

/// Sends a value where it is a new one, so that receivers wake for changes alone.
pub fn send_if_new<T: PartialEq>(channel: &watch::Sender<T>, value: T) {
    channel.send_if_modified(|last| {
        let changes = *last != value;
        if changes {
            *last = value;
        }
        changes
    });
}
