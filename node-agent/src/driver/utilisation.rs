//! Reads how busy the GPUs are, only to choose between devices that are otherwise equal.

use crate::driver::{hardware::Hardware, hardware_probe::DriverRoots, nvml};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::{
    sync::{Semaphore, watch},
    task::spawn_blocking,
    time::timeout,
};
use tracing::debug;

/// Time limit: a pod is waiting for its devices.
const TIMEOUT: Duration = Duration::from_millis(300);

/// Reads utilisation through NVML, one call at a time, so that a hanging driver blocks one thread at most.
#[derive(Debug)]
pub struct Utilisation {
    roots: DriverRoots,
    hardware: watch::Receiver<Option<Arc<Hardware>>>,
    free: Arc<Semaphore>,
}

impl Utilisation {
    /// Creates a reader for the driver below `roots` and the GPUs of the last hardware probe.
    pub fn new(roots: DriverRoots, hardware: watch::Receiver<Option<Arc<Hardware>>>) -> Self {
        Self {
            roots,
            hardware,
            free: Arc::new(Semaphore::new(1)),
        }
    }

    /// Returns the percentage of the last sample period in which each GPU was busy, by index. Omits GPUs that do not
    /// answer in time.
    pub async fn read(&self) -> BTreeMap<u32, u32> {
        let Ok(permit) = self.free.clone().try_acquire_owned() else {
            return BTreeMap::new();
        };
        let (roots, hardware) = (self.roots.clone(), self.hardware.borrow().clone());
        let answer = spawn_blocking(move || {
            let _permit = permit;
            let inventory = hardware.as_deref().and_then(Hardware::answering)?;
            let call = roots.calls.begin()?;
            let library = roots.find()?.library;
            nvml::utilisation(&library, &inventory.gpus, |gpu| call.begin_turn(gpu))
                .inspect_err(|error| debug!(%error, "cannot read the utilisation"))
                .ok()
        });
        timeout(TIMEOUT, answer)
            .await
            .ok()
            .and_then(Result::ok)
            .flatten()
            .unwrap_or_default()
    }
}
