//! Reads and sets the compute mode of a GPU.

use super::{compute_mode::ComputeMode, error::DriverError, lookup::find_gpu_by_index, session::open};
use std::path::Path;

/// Reads the compute mode of the GPU with that UUID through the library at `path`.
pub fn compute_mode(path: &Path, uuid: &str) -> Result<ComputeMode, DriverError> {
    let nvml = open(path)?;
    let mode = find_gpu_by_index(&nvml, uuid)
        .map_err(|(_, error)| error)
        .and_then(|device| device.compute_mode());
    mode.map(Into::into).map_err(|source| DriverError::ReadComputeMode {
        uuid: uuid.to_owned(),
        source,
    })
}

/// Sets the compute mode of the GPU with that UUID. Needs root; a GPU with MIG on has no mode.
pub fn set_compute_mode(path: &Path, uuid: &str, mode: ComputeMode) -> Result<(), DriverError> {
    let nvml = open(path)?;
    let set = find_gpu_by_index(&nvml, uuid)
        .map_err(|(_, error)| error)
        .and_then(|mut device| device.set_compute_mode(mode.into()));
    set.map_err(|source| DriverError::SetComputeMode {
        uuid: uuid.to_owned(),
        mode,
        source,
    })
}
