//! Settings that programs make through the library; the driver keeps them until a reboot.

use std::{collections::BTreeMap, fs, io, path::Path};

use serde::{Deserialize, Serialize};

use crate::{StateError, shared_file};

/// Name of the file, in the folder of the library. It is missing until something is set.
pub const DRIVER_FILE: &str = "gpunode-driver.yaml";

/// The modes of every GPU, by index.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct DriverState {
    /// Modes by GPU index; a GPU that is not there has those of a boot.
    pub gpus: BTreeMap<u32, GpuModes>,
}

/// Modes of one GPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct GpuModes {
    /// Compute mode.
    pub compute_mode: ComputeMode,
    /// The driver stays loaded without users.
    pub persistence: bool,
}

/// `nvmlComputeMode_t`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u32)]
pub enum ComputeMode {
    /// Any number of programs.
    #[default]
    Default = 0,
    /// One thread; long out of use.
    ExclusiveThread = 1,
    /// Nobody.
    Prohibited = 2,
    /// One process, such as an MPS server.
    ExclusiveProcess = 3,
}

impl ComputeMode {
    /// The mode with that number.
    pub fn from_number(number: u32) -> Option<Self> {
        [
            Self::Default,
            Self::ExclusiveThread,
            Self::Prohibited,
            Self::ExclusiveProcess,
        ]
        .into_iter()
        .find(|mode| *mode as u32 == number)
    }
}

impl DriverState {
    /// Reads the state beside the library in `dir`.
    pub fn load(dir: &Path) -> Result<Self, StateError> {
        shared_file::load(&dir.join(DRIVER_FILE))
    }

    /// The modes of one GPU.
    pub fn gpu(&self, index: u32) -> GpuModes {
        self.gpus.get(&index).copied().unwrap_or_default()
    }

    /// Changes the modes of one GPU of the node whose library is in `dir`.
    pub fn update_gpu(dir: &Path, index: u32, change: impl FnOnce(&mut GpuModes)) -> Result<(), StateError> {
        shared_file::update(&dir.join(DRIVER_FILE), |state: &mut Self| {
            change(state.gpus.entry(index).or_default());
        })
    }

    /// Clears the state, as a reboot does.
    pub(crate) fn forget(dir: &Path) -> Result<(), StateError> {
        let path = dir.join(DRIVER_FILE);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(shared_file::file_error("remove", &path)(error))
            }
            _ => Ok(()),
        }
    }
}
