//! Watches the sockets of other plugins: one that comes may take a resource over, and one that goes may leave it to nobody.

use crate::{
    devices::manager::DeviceManager,
    plugin::{directory::PluginDirectory, socket::other_sockets},
};
use std::{sync::Arc, time::Duration};
use tokio::time::sleep;

/// Time in which a plugin with a new socket registers, and in which the kubelet notices the end of one.
const SETTLE: Duration = Duration::from_millis(200);

/// Makes the manager doubt the registrations when another plugin's socket comes or goes. Never returns.
pub async fn watch_other_sockets(directory: PluginDirectory, manager: Arc<DeviceManager>) {
    let mut changes = directory.changes();
    let mut known = other_sockets(directory.path());
    // The folder has the sender of its changes.
    while changes.changed().await.is_ok() {
        let sockets = other_sockets(directory.path());
        if sockets != known {
            known = sockets;
            manager.doubt_registrations();
            sleep(SETTLE).await;
            manager.observe_now();
        }
    }
}
