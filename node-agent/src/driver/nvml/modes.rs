//! Reads and sets the compute mode of a GPU.

use super::{compute_mode::ComputeMode, error::DriverError, session::open};
use nvml_wrapper::Nvml;
use std::path::Path;

/// Reads the compute mode of the GPU with that UUID through the library at `path`.
pub fn compute_mode(path: &Path, uuid: &str) -> Result<ComputeMode, DriverError> {
    let ask = |nvml: &Nvml| nvml.device_by_uuid(uuid)?.compute_mode();
    let mode = ask(&open(path)?).map_err(|source| DriverError::ReadComputeMode {
        uuid: uuid.to_owned(),
        source,
    })?;
    Ok(mode.into())
}

/// Sets the compute mode of the GPU with that UUID. Needs root; a GPU with MIG on has no mode.
pub fn set_compute_mode(path: &Path, uuid: &str, mode: ComputeMode) -> Result<(), DriverError> {
    let set = |nvml: &Nvml| nvml.device_by_uuid(uuid)?.set_compute_mode(mode.into());
    set(&open(path)?).map_err(|source| DriverError::SetComputeMode {
        uuid: uuid.to_owned(),
        mode,
        source,
    })
}
