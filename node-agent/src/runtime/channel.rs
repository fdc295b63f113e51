//! Sending and receiving over watch channels.

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

/// Returns the last value, and whether it was new to this receiver.
pub fn take<T: Clone>(channel: &mut watch::Receiver<T>) -> (T, bool) {
    let last = channel.borrow_and_update();
    (last.clone(), last.has_changed())
}
