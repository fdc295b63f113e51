//! Settings that programs make through the library; the driver keeps them until a reboot, and boards some MIG modes longer.

use std::{collections::BTreeMap, fs, io, mem, path::Path};

use serde::{Deserialize, Serialize};

use crate::{Gpu, GpuState, MigState, ReturnCode, Scenario, StateError, shared_file};

/// Name of the file, in the folder of the library. It is missing until something is set.
pub const DRIVER_FILE: &str = "gpunode-driver.yaml";

/// The modes and the MIG instances of every GPU, by index.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct DriverState {
    /// Modes by GPU index; a GPU that is not there has those of a boot.
    pub gpus: BTreeMap<u32, GpuModes>,
    /// MIG by GPU index; a GPU that is not there has that of the scenario.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub mig: BTreeMap<u32, MigState>,
}

/// Modes of one GPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct GpuModes {
    /// Compute mode.
    pub compute_mode: ComputeMode,
    /// The driver stays loaded without users.
    pub persistence: bool,
    /// nvidia-persistenced has let the GPU go.
    pub let_go: bool,
}

impl GpuModes {
    /// Returns true if the driver stays loaded without users, by its own mode or by nvidia-persistenced.
    pub fn keeps(self, state: &GpuState) -> bool {
        self.persistence || (state.persistenced.is_some() && !self.let_go)
    }
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

    /// A GPU of the scenario with the MIG instances that it has now.
    pub fn divided(&self, gpu: &Gpu) -> Gpu {
        let mut gpu = gpu.clone();
        if let Some(mig) = self.mig.get(&gpu.index) {
            gpu.mig = mig.on(gpu.board);
            gpu.minor = mig.minor.unwrap_or(gpu.minor);
        }
        gpu
    }

    /// Changes MIG on one GPU of the node whose library is in `dir`; `gpu` is as the scenario has it. A change that fails
    /// changes nothing.
    pub fn update_mig<T>(
        dir: &Path,
        gpu: &Gpu,
        change: impl FnOnce(&mut MigState) -> Result<T, ReturnCode>,
    ) -> Result<Result<T, ReturnCode>, StateError> {
        shared_file::update(&dir.join(DRIVER_FILE), |state: &mut Self| {
            let mut mig = state.mig_of(gpu);
            let done = change(&mut mig)?;
            state.mig.insert(gpu.index, mig);
            Ok(done)
        })
    }

    /// MIG of a GPU, which is as the scenario has it.
    pub fn mig_of(&self, gpu: &Gpu) -> MigState {
        self.mig.get(&gpu.index).cloned().unwrap_or_else(|| MigState::of(gpu))
    }

    /// Forgets what the driver forgets when it is loaded, as at a boot.
    pub(crate) fn reload(dir: &Path, scenario: &Scenario) -> Result<(), StateError> {
        let has_mig = !Self::load(dir)?.mig.is_empty();
        if !has_mig && (scenario.divided_at_boot || scenario.mig.is_empty()) {
            return Self::forget(dir);
        }
        let gpus = scenario.gpus()?;
        shared_file::update(&dir.join(DRIVER_FILE), |state: &mut Self| {
            let before = mem::take(state);
            for gpu in &gpus {
                let is_changed = before.mig.contains_key(&gpu.index);
                if is_changed || (gpu.mig.is_some() && !scenario.divided_at_boot) {
                    let mut mig = before.mig_of(gpu);
                    mig.reload(gpu.board);
                    state.mig.insert(gpu.index, mig);
                }
            }
        })
    }

    /// Clears the state.
    fn forget(dir: &Path) -> Result<(), StateError> {
        let path = dir.join(DRIVER_FILE);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(shared_file::file_error("remove", &path)(error))
            }
            _ => Ok(()),
        }
    }
}
