//! Sending over watch channels.

use tokio::sync::watch;

/// Sends `value` if it differs from the last one, so that receivers wake only for changes.
pub fn send_if_new<T: PartialEq>(channel: &watch::Sender<T>, value: T) {
    channel.send_if_modified(|last| {
        let changes = *last != value;
        if changes {
            *last = value;
        }
        changes
    });
}
