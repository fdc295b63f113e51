//! Compute mode of a GPU with an MPS daemon: saved before the change, and restored after the daemon. MIG devices have no
//! compute mode of their own.

use super::device_folder::DeviceFolder;
use crate::{
    driver::{
        hardware_probe::DriverRoots,
        nvml::{self, ComputeMode, GpuAddress},
        pci,
    },
    store::atomic_file,
};
use std::{fs, io, path::PathBuf};

/// Failure to change the compute mode.
#[derive(Debug, thiserror::Error)]
pub enum ComputeModeError {
    /// The driver's library is missing.
    #[error("set the compute mode of {device}: there is no libnvidia-ml.so.1 below any driver root")]
    NoDriver {
        /// UUID of the GPU.
        device: String,
    },
    /// NVML failed.
    #[error(transparent)]
    Nvml(#[from] nvml::DriverError),
    /// The mode cannot be saved, or the saved one not removed.
    #[error("save the compute mode of {device} in {path}: {source}")]
    Save {
        /// UUID of the GPU.
        device: String,
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
}

/// Sets the compute mode for MPS; blocks. The former mode is saved first, so that an abort loses nothing.
pub fn set(folder: &DeviceFolder, roots: &DriverRoots) -> Result<(), ComputeModeError> {
    if folder.is_mig() {
        return Ok(());
    }
    let (library, gpu) = (library(folder, roots)?, gpu(folder, roots));
    let mode = nvml::compute_mode(&library, &gpu)?;
    if saved(folder).is_none() {
        save(folder, mode).map_err(|source| save_error(folder, source))?;
    }
    if mode != ComputeMode::ExclusiveProcess {
        nvml::set_compute_mode(&library, &gpu, ComputeMode::ExclusiveProcess)?;
    }
    Ok(())
}

/// Restores the saved mode, if any; blocks.
pub fn restore(folder: &DeviceFolder, roots: &DriverRoots) -> Result<(), ComputeModeError> {
    let Some(mode) = saved(folder) else { return Ok(()) };
    nvml::set_compute_mode(&library(folder, roots)?, &gpu(folder, roots), mode)?;
    fs::remove_file(folder.compute_mode()).map_err(|source| save_error(folder, source))
}

fn library(folder: &DeviceFolder, roots: &DriverRoots) -> Result<PathBuf, ComputeModeError> {
    let driver = roots.find().ok_or_else(|| ComputeModeError::NoDriver {
        device: folder.uuid().to_owned(),
    })?;
    Ok(driver.library)
}

/// Returns the GPU with its PCI address, by which NVML finds it without a look at the other GPUs.
fn gpu(folder: &DeviceFolder, roots: &DriverRoots) -> GpuAddress {
    GpuAddress {
        uuid: folder.uuid().to_owned(),
        pci_bus_id: pci::address_of(&roots.host_root, folder.uuid()),
    }
}

fn save_error(folder: &DeviceFolder, source: io::Error) -> ComputeModeError {
    ComputeModeError::Save {
        device: folder.uuid().to_owned(),
        path: folder.compute_mode(),
        source,
    }
}

/// Returns the saved mode. A file with other content counts as the default mode.
fn saved(folder: &DeviceFolder) -> Option<ComputeMode> {
    let text = fs::read_to_string(folder.compute_mode()).ok()?;
    Some(text.trim().parse().unwrap_or(ComputeMode::Default))
}

fn save(folder: &DeviceFolder, mode: ComputeMode) -> io::Result<()> {
    atomic_file::replace(&folder.compute_mode(), mode.to_string().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn a_saved_mode_is_read_again() {
        let root = tempfile::tempdir().unwrap();
        let folder = DeviceFolder::of(root.path(), "GPU-1").unwrap();
        fs::create_dir(folder.path()).unwrap();
        assert_eq!(saved(&folder), None);
        for mode in [ComputeMode::Prohibited, ComputeMode::Default] {
            save(&folder, mode).unwrap();
            assert_eq!(saved(&folder), Some(mode));
        }
    }

    #[test]
    fn a_mig_device_needs_no_driver_for_this() {
        let folder = DeviceFolder::of(Path::new("/nowhere"), "MIG-1").unwrap();
        let nowhere = DriverRoots::of_host(Path::new("/nowhere"));
        set(&folder, &nowhere).unwrap();
        restore(&folder, &nowhere).unwrap();
    }
}
