//! Reads the container runtime's settings at the start and again when they may have changed: every few minutes, when a
//! socket is made again as by a restart, and when the hardware changed.

use crate::{
    container_runtime::{cri_client::socket_ids, node_runtime},
    driver::{hardware::Hardware, hardware_probe::DriverRoots},
    runtime::{blocking_thread::BlockingThread, channel::send_if_new},
    store::file_id::FileId,
};
use gpunode_crds::RuntimeStatus;
use gpunode_process::OnChange;
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout, timeout_at},
};
use tracing::{info, warn};

/// Interval of readings without a sign of change: a runtime may reload its configuration.
const INTERVAL: Duration = Duration::from_mins(5);
/// Interval of readings while the runtime does not answer.
const RETRY: Duration = Duration::from_secs(30);
/// Interval of looks at the sockets.
const LOOK: Duration = Duration::from_secs(10);
/// Least time between two readings.
const PAUSE: Duration = Duration::from_secs(5);

/// Task that keeps the settings of the container runtime up to date.
pub struct RuntimeWatch {
    /// Roots of the host and of its driver.
    pub roots: DriverRoots,
    /// Result of the last hardware probe, which shows that a driver came or went.
    pub hardware: watch::Receiver<Option<Arc<Hardware>>>,
    /// Last reading; `None` before the first.
    pub runtime: watch::Sender<Option<Arc<RuntimeStatus>>>,
}

impl RuntimeWatch {
    /// Reads and publishes. Does not end.
    pub async fn run(mut self) {
        let files = BlockingThread::default();
        let mut errors = OnChange::default();
        let mut before = None;
        loop {
            let sockets = self.sockets(&files).await;
            let status = node_runtime::read(&self.roots, &files, before.as_ref()).await;
            if let Some(problem) = errors.set(status.problem.clone()) {
                warn!(problem, "the settings of the container runtime are unknown");
            }
            if before.as_ref() != Some(&status) {
                let (name, version) = (status.name.as_deref(), status.version.as_deref());
                let handler = status.default_handler.as_deref();
                info!(name, version, handler, cdi = ?status.cdi, selinux = ?status.selinux, "container runtime");
            }
            send_if_new(&self.runtime, Some(Arc::new(status.clone())));
            let wait = if status.problem.is_some() { RETRY } else { INTERVAL };
            before = Some(status);
            self.changed_within(wait, &sockets, &files).await;
        }
    }

    /// Waits for a sign of change, at most for `wait`.
    async fn changed_within(&mut self, wait: Duration, sockets: &Sockets, files: &BlockingThread) {
        let end = Instant::now() + wait;
        sleep(PAUSE).await;
        while Instant::now() < end {
            let look = end.min(Instant::now() + LOOK);
            if let Ok(changed) = timeout_at(look, self.hardware.changed()).await {
                if changed.is_err() {
                    // The agent stops.
                    std::future::pending::<()>().await;
                }
                return;
            }
            if self.sockets(files).await != *sockets {
                return;
            }
        }
    }

    async fn sockets(&self, files: &BlockingThread) -> Sockets {
        let host_root = self.roots.host_root.clone();
        let looked = timeout(PAUSE, files.run(move || socket_ids(&host_root).to_vec()));
        looked.await.ok().and_then(Result::ok).unwrap_or_default()
    }
}

/// Identity of each known socket.
type Sockets = Vec<Option<FileId>>;
