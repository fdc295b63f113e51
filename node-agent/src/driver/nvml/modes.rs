//! Reads and sets the compute mode of a GPU.

use super::{
    compute_mode::ComputeMode,
    error::DriverError,
    lookup::{GpuAddress, find_gpu},
    session::open,
};
use std::path::Path;

/// Reads the compute mode of a GPU through the library at `path`.
pub fn compute_mode(path: &Path, gpu: &GpuAddress) -> Result<ComputeMode, DriverError> {
    let nvml = open(path)?;
    let mode = find_gpu(&nvml, gpu)
        .map_err(|(_, error)| error)
        .and_then(|device| device.compute_mode());
    mode.map(Into::into).map_err(|source| DriverError::ReadComputeMode {
        uuid: gpu.uuid.clone(),
        source,
    })
}

/// Sets the compute mode of a GPU. Needs root; a GPU with MIG on has no mode.
pub fn set_compute_mode(path: &Path, gpu: &GpuAddress, mode: ComputeMode) -> Result<(), DriverError> {
    let nvml = open(path)?;
    let set = find_gpu(&nvml, gpu)
        .map_err(|(_, error)| error)
        .and_then(|mut device| device.set_compute_mode(mode.into()));
    set.map_err(|source| DriverError::SetComputeMode {
        uuid: gpu.uuid.clone(),
        mode,
        source,
    })
}
