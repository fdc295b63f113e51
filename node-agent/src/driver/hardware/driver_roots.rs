//! One look at the hardware of the node.

use super::{DriverState, Hardware};
use crate::driver::{
    driver_root, machine, nvml,
    pci::{self, nvidia_functions},
};
use std::{collections::BTreeSet, fs, os::unix::fs::MetadataExt as _, path::PathBuf};

/// The driver's kernel module below the host's root.
const MODULE: &str = "sys/module/nvidia";

/// Where to look.
#[derive(Clone, Debug)]
pub struct DriverRoots {
    /// Root of the host.
    pub host_root: PathBuf,
    /// Root of the driver, when it was named.
    pub driver_root: Option<PathBuf>,
}

/// Path, inode and time of the driver's library.
pub type LibraryId = Option<(PathBuf, u64, i64)>;

/// What changes when it is worth asking the driver again: reading it costs little, asking the driver much.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HardwareTraces {
    /// Names of all PCI functions: to read what they are costs more.
    pci: Vec<String>,
    pub library: LibraryId,
    /// The driver's module; it is another one after it was loaded anew.
    module: Option<u64>,
    /// MIG instances, which others make and destroy.
    pub instances: Option<BTreeSet<String>>,
}

impl HardwareTraces {
    /// What tells one driver from the next.
    pub fn driver(&self) -> (LibraryId, Option<u64>) {
        (self.library.clone(), self.module)
    }
}

impl DriverRoots {
    /// The driver's library, if there is one; blocks.
    pub fn library(&self) -> Option<PathBuf> {
        driver_root::find_library(&driver_root::roots(&self.host_root, self.driver_root.as_deref()))
    }

    /// What there is now; blocks.
    pub fn traces(&self) -> HardwareTraces {
        HardwareTraces {
            pci: pci::functions(&self.host_root),
            module: fs::metadata(self.host_root.join(MODULE))
                .ok()
                .map(|module| module.ino()),
            library: self.library().and_then(|path| {
                let meta = fs::metadata(&path).ok()?;
                Some((path, meta.ino(), meta.mtime()))
            }),
            instances: nvml::instances(&self.host_root),
        }
    }

    /// Blocks: asks sysfs alone.
    pub fn without_driver(&self) -> Hardware {
        let functions = nvidia_functions(&self.host_root);
        let machine = machine::read(&self.host_root, &functions);
        Hardware {
            functions: functions.len(),
            machine,
            ..Hardware::default()
        }
    }

    /// Blocks: asks sysfs and the driver. `before` is what was found last.
    pub fn look(&self, before: Option<&Hardware>) -> (HardwareTraces, Hardware) {
        let traces = self.traces();
        let Hardware { functions, machine, .. } = self.without_driver();
        let (mut reading, mut failed) = (None, None);
        let driver = match &traces.library {
            None if functions == 0 => DriverState::NotNeeded,
            None => {
                let roots = driver_root::roots(&self.host_root, self.driver_root.as_deref());
                DriverState::Missing(format!(
                    "find libnvidia-ml.so.1 below {}: there is none; install the NVIDIA driver, or name its root with \
                     --driver-root",
                    driver_root::in_words(&roots)
                ))
            }
            Some((path, ..)) => {
                let gpus = before
                    .and_then(Hardware::inventory)
                    .map_or(&[][..], |before| &before.gpus);
                match nvml::read(path, &self.host_root, gpus, |address| {
                    pci::function(&self.host_root, address)
                }) {
                    Ok(found) => {
                        let is_silent = found.inventory.gpus.is_empty() && !found.unreadable.is_empty();
                        let problem = found.unreadable.join("; ");
                        reading = Some(found);
                        // A driver that answers for no GPU does not work.
                        if is_silent {
                            DriverState::Failed(problem)
                        } else {
                            DriverState::Answers
                        }
                    }
                    // A driver that was installed ahead of its hardware.
                    Err(_) if functions == 0 => DriverState::NotNeeded,
                    Err(error) => {
                        failed = error.call();
                        DriverState::Failed(error.to_string())
                    }
                }
            }
        };
        let version = reading
            .as_ref()
            .and_then(|reading| reading.inventory.driver_version.as_deref());
        let run = machine::run(&self.host_root, traces.module, version);
        (
            traces,
            Hardware {
                functions,
                machine,
                run,
                driver,
                failed,
                reading,
            },
        )
    }
}
