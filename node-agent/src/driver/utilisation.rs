//! How busy the GPUs are, asked only where it decides between devices that are otherwise equal.

use crate::driver::{hardware::DriverRoots, nvml};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::{sync::Semaphore, task::spawn_blocking, time::timeout};
use tracing::debug;

/// A pod waits for the answer.
const TIMEOUT: Duration = Duration::from_millis(300);

/// Asks NVML, one question at a time: a driver that hangs must not take one thread after the other.
#[derive(Debug)]
pub struct Utilisation {
    place: DriverRoots,
    free: Arc<Semaphore>,
}

impl Utilisation {
    /// Nothing is asked yet.
    pub fn new(place: DriverRoots) -> Self {
        Self {
            place,
            free: Arc::new(Semaphore::new(1)),
        }
    }

    /// Percent of the last sample period in which each GPU was busy, by index. GPUs that do not answer in time are left
    /// out.
    pub async fn ask(&self) -> BTreeMap<u32, u32> {
        let Ok(turn) = self.free.clone().try_acquire_owned() else {
            return BTreeMap::new();
        };
        let place = self.place.clone();
        let answer = spawn_blocking(move || {
            let _turn = turn;
            nvml::utilisation(&place.library()?)
                .inspect_err(|error| debug!(%error, "ask for the utilisation"))
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
