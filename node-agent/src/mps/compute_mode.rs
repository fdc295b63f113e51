//! Compute mode of a GPU with an MPS daemon: saved before the change, and restored after the daemon. MIG devices have no
//! compute mode of their own.

use super::device_folder::DeviceFolder;
use crate::{
    driver::{
        library,
        nvml::{self, ComputeMode},
    },
    store::atomic_file,
};
use std::{fs, io, path::PathBuf};

/// Failure to change the compute mode.
#[derive(Debug, thiserror::Error)]
pub enum ComputeModeError {
    /// The driver's library is missing.
    #[error("set the compute mode of {device}: there is no libnvidia-ml.so.1 below the driver root")]
    NoDriver {
        /// UUID of the GPU.
        device: String,
    },
    /// NVML failed.
    #[error(transparent)]
    Nvml(#[from] nvml::DriverError),
    /// The mode cannot be saved, or the saved one not removed.
    #[error("save the compute mode of {device} in {path}: {source}")]
    Keep {
        /// UUID of the GPU.
        device: String,
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
}

/// Sets the compute mode for MPS; blocks. The former mode is saved first, so that an abort loses nothing.
pub fn set(place: &DeviceFolder, roots: &[PathBuf]) -> Result<(), ComputeModeError> {
    if place.is_mig() {
        return Ok(());
    }
    let library = library(place, roots)?;
    let mode = nvml::compute_mode(&library, place.uuid())?;
    if kept(place).is_none() {
        keep(place, mode).map_err(|source| not_kept(place, source))?;
    }
    if mode != ComputeMode::ExclusiveProcess {
        nvml::set_compute_mode(&library, place.uuid(), ComputeMode::ExclusiveProcess)?;
    }
    Ok(())
}

/// Restores the saved mode, if any; blocks.
pub fn restore(place: &DeviceFolder, roots: &[PathBuf]) -> Result<(), ComputeModeError> {
    let Some(mode) = kept(place) else { return Ok(()) };
    nvml::set_compute_mode(&library(place, roots)?, place.uuid(), mode)?;
    fs::remove_file(place.compute_mode()).map_err(|source| not_kept(place, source))
}

fn library(place: &DeviceFolder, roots: &[PathBuf]) -> Result<PathBuf, ComputeModeError> {
    library::find_library(roots).ok_or_else(|| ComputeModeError::NoDriver {
        device: place.uuid().to_owned(),
    })
}

fn not_kept(place: &DeviceFolder, source: io::Error) -> ComputeModeError {
    ComputeModeError::Keep {
        device: place.uuid().to_owned(),
        path: place.compute_mode(),
        source,
    }
}

/// Returns the saved mode. A file with other content counts as the default mode.
fn kept(place: &DeviceFolder) -> Option<ComputeMode> {
    let text = fs::read_to_string(place.compute_mode()).ok()?;
    Some(text.trim().parse().unwrap_or(ComputeMode::Default))
}

fn keep(place: &DeviceFolder, mode: ComputeMode) -> io::Result<()> {
    atomic_file::replace(&place.compute_mode(), mode.to_string().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn what_was_kept_is_known_again() {
        let folder = tempfile::tempdir().unwrap();
        let place = DeviceFolder::of(folder.path(), "GPU-1").unwrap();
        fs::create_dir(place.folder()).unwrap();
        assert_eq!(kept(&place), None);
        for mode in [ComputeMode::Prohibited, ComputeMode::Default] {
            keep(&place, mode).unwrap();
            assert_eq!(kept(&place), Some(mode));
        }
    }

    #[test]
    fn a_mig_device_needs_no_driver_for_this() {
        let place = DeviceFolder::of(Path::new("/nowhere"), "MIG-1").unwrap();
        set(&place, &[]).unwrap();
        restore(&place, &[]).unwrap();
    }
}
