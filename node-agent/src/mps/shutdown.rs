//! Shutdown on SIGTERM: daemons without clients quit; the others serve until the grace period of the pod is nearly over. Then
//! the compute mode of every GPU is restored.

use super::{INTERVAL, SupervisedDaemon, Supervisor, daemon::DesiredDaemon, processes, set_desired};
use std::{collections::BTreeSet, time::Duration};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tracing::{info, warn};

/// Time for clients to end: shorter than the grace period of the pod (30 s), which leaves time to restore compute modes.
const CLIENT_GRACE: Duration = Duration::from_secs(24);
/// Time without fresh answers after which agents allocate no device any more, and the kubelet lists all earlier allocations.
const WITHDRAWN_AFTER: Duration = Duration::from_secs(3);
/// Timeout to restore the compute modes of all GPUs, in parallel.
const RESTORE_TIMEOUT: Duration = Duration::from_secs(4);

impl Supervisor {
    /// Ends the daemons, or restores the compute modes at the deadline.
    pub(super) async fn shut_down(mut self) {
        let start = Instant::now();
        let deadline = start + CLIENT_GRACE;
        for daemon in self.daemons.values() {
            set_desired(&daemon.desired, DesiredDaemon::Rest);
        }
        while Instant::now() < deadline {
            self.remove_ended();
            if self.daemons.is_empty() {
                return;
            }
            if start.elapsed() >= WITHDRAWN_AFTER {
                self.end_unheld(deadline).await;
            }
            sleep(INTERVAL / 4).await;
            processes::reap();
        }
        self.restore_compute_modes().await;
    }

    /// Ends the daemons of devices without holders.
    async fn end_unheld(&mut self, deadline: Instant) {
        let held = match timeout_at(deadline, self.holders.held_devices()).await {
            Ok(Ok(held)) => held,
            Ok(Err(error)) => return self.set_problem(error.to_string()),
            Err(_) => return,
        };
        let devices: BTreeSet<&String> = self.daemons.keys().filter(|device| held.contains(*device)).collect();
        let problem = format!("devices in use: {devices:?}");
        for (device, daemon) in &self.daemons {
            set_desired(
                &daemon.desired,
                if held.contains(device) {
                    DesiredDaemon::Rest
                } else {
                    DesiredDaemon::Gone
                },
            );
        }
        if !devices.is_empty() {
            self.set_problem(problem);
        }
    }

    async fn restore_compute_modes(self) {
        // With the tasks aborted, no task sets a compute mode again.
        for daemon in self.daemons.values() {
            daemon.task.abort();
        }
        let restore = self.daemons.values().map(|SupervisedDaemon { runner, .. }| async move {
            let device = runner.folder.uuid();
            match timeout(RESTORE_TIMEOUT, runner.restore_compute_mode()).await {
                Ok(Ok(())) => info!(device, "the MPS control daemon still runs; compute mode restored"),
                Ok(Err(error)) => warn!(device, reason = format!("{error:#}"), "cannot restore the compute mode"),
                Err(_) => warn!(device, "cannot restore the compute mode: NVML does not answer"),
            }
        });
        futures::future::join_all(restore).await;
    }
}
