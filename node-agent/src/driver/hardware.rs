//! The hardware of the node and the state of its driver, as the last probe found them.

use crate::driver::{machine::MachineInfo, nvml::DriverReading};
use gpunode_gpu::{Gpu, Inventory, MigMode, RunId};

/// Result of a hardware probe.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hardware {
    /// Number of NVIDIA GPUs in sysfs.
    pub functions: usize,
    /// Product name and vGPU host driver of the machine.
    pub machine: MachineInfo,
    /// Boot of the machine and load of the driver that were probed.
    pub run: RunId,
    /// State of the driver.
    pub driver: DriverState,
    /// C name of the NVML call that failed, when no GPU could be read.
    pub failed: Option<&'static str>,
    /// The GPUs. While the driver does not answer, the last known ones; none when it answers for no GPU.
    pub reading: Option<DriverReading>,
}

/// State of the driver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DriverState {
    /// The driver is not used, because the GPUs are released.
    #[default]
    Released,
    /// The node has no GPU that needs a driver.
    NotNeeded,
    /// The node has a GPU but no driver library that gpunode can use.
    Missing(String),
    /// The driver library reports an error.
    Failed(String),
    /// The agent waits for the driver: a call has no answer yet, or the driver's container is not ready.
    Waiting(String),
    /// The driver answers.
    Answers,
}

impl Hardware {
    /// Returns the last known inventory.
    pub fn inventory(&self) -> Option<&Inventory> {
        self.reading.as_ref().map(|reading| &reading.inventory)
    }

    /// Returns the inventory while the driver answers.
    pub fn answering(&self) -> Option<&Inventory> {
        self.inventory().filter(|_| self.driver == DriverState::Answers)
    }

    /// True when the set of GPUs is known, also when it is empty.
    pub fn is_known(&self) -> bool {
        self.reading.is_some() || self.driver == DriverState::NotNeeded
    }

    /// Returns the number of GPUs that answer, and of GPUs and MIG devices that do not.
    pub fn counts(&self) -> (usize, usize) {
        self.reading
            .as_ref()
            .map(|found| (found.inventory.gpus.len(), found.unreadable.len()))
            .unwrap_or_default()
    }

    /// True when the node has a GPU, with or without a driver.
    pub fn has_gpus(&self) -> bool {
        let listed = |reading: &DriverReading| !reading.inventory.gpus.is_empty() || !reading.unreadable.is_empty();
        let is_missing = matches!(self.driver, DriverState::Missing(_));
        self.functions > 0 || is_missing || self.reading.as_ref().is_some_and(listed)
    }

    /// True when MIG is on for a GPU, divided or not.
    pub fn is_divided(&self) -> bool {
        self.inventory()
            .is_some_and(|found| found.gpus.iter().any(|gpu| gpu.mig_mode == Some(MigMode::Enabled)))
    }

    /// True while a GPU has not joined its NVLink fabric.
    pub fn waits_for_fabric(&self) -> bool {
        self.inventory()
            .is_some_and(|found| found.gpus.iter().any(Gpu::waits_for_fabric))
    }

    /// Returns the problem of the driver, or of its GPUs.
    pub fn problem(&self) -> Option<String> {
        match (&self.driver, &self.reading) {
            (DriverState::Answers, Some(reading)) if !reading.unreadable.is_empty() => {
                Some(reading.unreadable.join("; "))
            }
            (driver, _) => driver.problem().map(str::to_owned),
        }
    }
}

impl DriverState {
    /// Returns the reason why no GPU can be read.
    pub fn problem(&self) -> Option<&str> {
        match self {
            Self::Missing(message) | Self::Failed(message) | Self::Waiting(message) => Some(message),
            Self::Released | Self::NotNeeded | Self::Answers => None,
        }
    }
}
