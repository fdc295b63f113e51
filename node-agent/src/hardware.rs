//! The hardware of the node, looked at again when it may have changed.

use crate::{
    cli::NodeArgs,
    driver_root,
    machine::{self, Machine},
    nvml,
    pci::{self, nvidia_functions},
};
use gpunode_gpu::{Inventory, MigMode};
use std::{collections::BTreeSet, fs, os::unix::fs::MetadataExt as _, path::PathBuf, sync::Arc, time::Duration};
use tokio::{
    sync::{Notify, watch},
    time::{sleep, timeout},
};
use tracing::{info, warn};

/// First pause after a look that found no driver; it doubles up to [`MAX_RETRY`].
const MIN_RETRY: Duration = Duration::from_millis(250);
/// A driver takes minutes to build, and a GPU that came back should not wait much longer.
const MAX_RETRY: Duration = Duration::from_secs(30);
/// How often sysfs and the driver's file are compared with what was found last.
const RECHECK: Duration = Duration::from_mins(1);
/// A driver call or a file of the host that hangs must not keep the rest of the agent from working.
const LOOK_TIMEOUT: Duration = Duration::from_secs(30);

/// What a look found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hardware {
    /// NVIDIA PCI functions in sysfs.
    pub functions: usize,
    /// The machine.
    pub machine: Machine,
    /// The driver's answer.
    pub driver: Driver,
    /// The GPUs; the ones found last while the driver does not answer, and none where it answers for no GPU.
    pub reading: Option<nvml::Reading>,
}

/// The driver's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Driver {
    /// No GPU, and no driver either.
    NotNeeded,
    /// There is a GPU, but no driver library.
    Missing(String),
    /// The driver library reports an error.
    Failed(String),
    /// The driver answers.
    Answers,
}

/// Where to look.
#[derive(Clone, Debug)]
pub struct Place {
    /// Root of the host.
    pub host_root: PathBuf,
    /// Root of the driver, when it was named.
    pub driver_root: Option<PathBuf>,
}

/// What changes when it is worth asking the driver again: reading it costs little, asking the driver much.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Traces {
    functions: Vec<String>,
    library: Option<(PathBuf, u64, i64)>,
    /// MIG instances, which others make and destroy.
    instances: Option<BTreeSet<String>>,
}

impl Hardware {
    /// The inventory, once the driver has answered.
    pub fn inventory(&self) -> Option<&Inventory> {
        self.reading.as_ref().map(|reading| &reading.inventory)
    }

    /// Whether it is known which GPUs there are, if any.
    pub fn is_known(&self) -> bool {
        self.reading.is_some() || self.driver == Driver::NotNeeded
    }

    /// How many GPUs answer, and how many GPUs and MIG devices do not.
    pub fn counts(&self) -> (usize, usize) {
        self.reading.as_ref().map(|found| (found.inventory.gpus.len(), found.unreadable.len())).unwrap_or_default()
    }

    /// Whether there is a GPU, with or without a driver.
    pub fn has_gpus(&self) -> bool {
        let listed = |reading: &nvml::Reading| !reading.inventory.gpus.is_empty() || !reading.unreadable.is_empty();
        self.functions > 0 || self.reading.as_ref().is_some_and(listed)
    }

    /// Whether a GPU is divided by MIG, or can be at any time.
    fn is_divided(&self) -> bool {
        self.inventory().is_some_and(|found| found.gpus.iter().any(|gpu| gpu.mig_mode == Some(MigMode::Enabled)))
    }

    /// What is wrong with the driver, or with a GPU.
    pub fn problem(&self) -> Option<String> {
        match (&self.driver, &self.reading) {
            (Driver::Answers, Some(reading)) if !reading.unreadable.is_empty() => Some(reading.unreadable.join("; ")),
            (driver, _) => driver.problem().map(str::to_owned),
        }
    }
}

impl Driver {
    /// Why no GPU can be asked.
    pub fn problem(&self) -> Option<&str> {
        match self {
            Self::Missing(message) | Self::Failed(message) => Some(message),
            Self::NotNeeded | Self::Answers => None,
        }
    }
}

impl Place {
    /// Where this agent looks.
    pub fn of(args: &NodeArgs) -> Self {
        Self { host_root: args.host.host_root.clone(), driver_root: args.host.driver_root.clone() }
    }

    /// The driver's library, if there is one; blocks.
    pub fn library(&self) -> Option<PathBuf> {
        driver_root::find_library(&driver_root::roots(&self.host_root, self.driver_root.as_deref()))
    }

    fn traces(&self) -> Traces {
        Traces {
            functions: nvidia_functions(&self.host_root),
            library: self.library().and_then(|path| {
                let meta = fs::metadata(&path).ok()?;
                Some((path, meta.ino(), meta.mtime()))
            }),
            instances: nvml::instances(&self.host_root),
        }
    }

    /// Blocks: asks sysfs and the driver. `before` is what was found last.
    fn look(&self, before: Option<&Hardware>) -> (Traces, Hardware) {
        let traces = self.traces();
        let functions = traces.functions.len();
        let machine = machine::read(&self.host_root, &traces.functions);
        let mut reading = None;
        let driver = match &traces.library {
            None if functions == 0 => Driver::NotNeeded,
            None => {
                let roots = driver_root::roots(&self.host_root, self.driver_root.as_deref());
                Driver::Missing(format!(
                    "find libnvidia-ml.so.1 below {}: there is none; install the NVIDIA driver, or name its root with \
                     --driver-root",
                    driver_root::in_words(&roots)
                ))
            }
            Some((path, ..)) => {
                let gpus = before.and_then(Hardware::inventory).map_or(&[][..], |before| &before.gpus);
                match nvml::read(path, &self.host_root, gpus, |address| pci::function(&self.host_root, address)) {
                    Ok(found) => {
                        let is_silent = found.inventory.gpus.is_empty() && !found.unreadable.is_empty();
                        let problem = found.unreadable.join("; ");
                        reading = Some(found);
                        // A driver that answers for no GPU does not work.
                        if is_silent { Driver::Failed(problem) } else { Driver::Answers }
                    }
                    // A driver that was installed ahead of its hardware.
                    Err(_) if functions == 0 => Driver::NotNeeded,
                    Err(error) => Driver::Failed(error.to_string()),
                }
            }
        };
        (traces, Hardware { functions, machine, driver, reading })
    }
}

/// Looks, publishes what it found, and looks again when `look_again` is notified, when something changed, or soon after
/// something was missing. Does not end.
pub async fn watch_hardware(place: Place, found: watch::Sender<Option<Arc<Hardware>>>, look_again: Arc<Notify>) {
    let place = Arc::new(place);
    let mut retry = MIN_RETRY;
    loop {
        let (traces, hardware) = look(&place, &found).await;
        let settled = hardware.problem().is_none();
        // Nothing but the driver tells of MIG instances that come and go.
        let blind = traces.instances.is_none() && hardware.is_divided();
        publish(&found, hardware);
        retry = if settled { MIN_RETRY } else { (retry * 2).min(MAX_RETRY) };
        loop {
            let asked = timeout(if settled { RECHECK } else { retry }, look_again.notified()).await.is_ok();
            if asked || !settled || blind {
                break;
            }
            let looking = place.clone();
            // Traces that cannot be read are worth a look, which says what hangs.
            if answer(move || looking.traces()).await.is_none_or(|now| now != traces) {
                break;
            }
        }
    }
}

/// One look; while it hangs, the driver counts as failed.
async fn look(place: &Arc<Place>, found: &watch::Sender<Option<Arc<Hardware>>>) -> (Traces, Hardware) {
    loop {
        let looking = place.clone();
        let before = found.borrow().clone();
        let mut task = tokio::task::spawn_blocking(move || looking.look(before.as_deref()));
        let result = if let Ok(result) = timeout(LOOK_TIMEOUT, &mut task).await {
            result
        } else {
            let message = format!("ask the driver: no answer within {LOOK_TIMEOUT:?}; see the host's kernel log");
            let looking = place.clone();
            let functions = answer(move || nvidia_functions(&looking.host_root).len()).await;
            let functions = functions.unwrap_or_else(|| found.borrow().as_ref().map_or(0, |last| last.functions));
            let machine = found.borrow().as_ref().map(|last| last.machine.clone()).unwrap_or_default();
            publish(found, Hardware { functions, machine, driver: Driver::Failed(message), reading: None });
            // Asking a second time beside a call that hangs would only take another thread.
            task.await
        };
        match result {
            Ok(looked) => return looked,
            Err(error) => {
                warn!(%error, "look at the hardware");
                sleep(MAX_RETRY).await;
            }
        }
    }
}

/// What the host answers, if it does in time; the runtime has one thread, which must not wait for a file.
async fn answer<T: Send + 'static>(ask: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    timeout(LOOK_TIMEOUT, tokio::task::spawn_blocking(ask)).await.ok()?.ok()
}

fn publish(found: &watch::Sender<Option<Arc<Hardware>>>, mut hardware: Hardware) {
    found.send_if_modified(|last| {
        if hardware.driver.problem().is_some() && hardware.reading.is_none() {
            // A driver that is being replaced has not taken the GPUs away.
            hardware.reading = last.as_ref().and_then(|last| last.reading.clone());
        }
        if last.as_deref() == Some(&hardware) {
            return false;
        }
        let found = hardware.inventory().map(Inventory::summary).unwrap_or_default();
        if let Some(problem) = hardware.problem() {
            warn!(problem, hardware = found, functions = hardware.functions, "hardware has a problem");
        } else {
            info!(hardware = found, functions = hardware.functions, "hardware found");
        }
        *last = Some(Arc::new(hardware));
        true
    });
}

#[cfg(test)]
mod tests;
