//! Probes the hardware of the node once.

use crate::driver::{
    calls::{DriverCall, DriverCalls},
    hardware::{DriverState, Hardware},
    library, machine, nvml,
    pci::{self, nvidia_functions},
    platform,
};
use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

/// The driver's kernel module below the host's root.
const MODULE: &str = "sys/module/nvidia";

/// Folder below the host's root in which gpu-operator notes the drivers that work.
const VALIDATIONS: &str = "run/nvidia/validations";

/// Files of that folder, of which one exists while the driver of a driver container can be used. The container's startup probe
/// writes the first one when the module is loaded and its daemons are ready (gpu-operator,
/// `assets/state-driver/0400_configmap.yaml`), the validator writes the other one (`cmd/nvidia-validator/main.go`). A session
/// before that makes the driver refuse a reset.
const VALIDATED: [&str; 2] = [".driver-ctr-ready", "driver-ready"];

/// Roots of the host and of its driver, and the calls to that driver.
#[derive(Clone, Debug)]
pub struct DriverRoots {
    /// Root of the host.
    pub host_root: PathBuf,
    /// Root of the driver, when set by `--driver-root`.
    pub driver_root: Option<PathBuf>,
    /// Calls of this process to the driver.
    pub calls: DriverCalls,
}

/// Identity of a driver and its GPUs. A session with NVML that is older than a part of it shows another driver or other GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriverId {
    /// Path, inode and modification time of the library.
    pub library: Option<(PathBuf, u64, i64)>,
    /// Inode of the kernel module, which changes when the module is loaded again.
    module: Option<u64>,
    /// The driver's PCI functions, each with an inode.
    functions: Vec<(String, u64)>,
}

/// Cheap facts that change whenever the driver, which is slow, must be queried again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HardwareTraces {
    /// Addresses of all PCI functions. Reading their classes would cost more.
    pci: Vec<String>,
    pub driver: DriverId,
    /// MIG instances, which other programs create and destroy.
    pub instances: Option<BTreeSet<String>>,
    /// False while the driver's container is not ready.
    is_validated: bool,
}

/// Returns the inode of the driver's kernel module, which changes when the module is loaded again. Blocks.
pub fn module(host_root: &Path) -> Option<u64> {
    let module = fs::metadata(host_root.join(MODULE)).ok()?;
    Some(module.ino())
}

/// Returns false for the library of a driver container that is not ready, where gpu-operator says so. Blocks.
pub fn is_validated(host_root: &Path, library: &Path) -> bool {
    let folder = host_root.join(VALIDATIONS);
    !library.starts_with(host_root.join(library::DRIVER_CONTAINER))
        || !folder.is_dir()
        || VALIDATED.iter().any(|file| folder.join(file).exists())
}

impl DriverRoots {
    /// Finds the driver's library. Blocks.
    pub fn library(&self) -> Option<PathBuf> {
        library::find_library(&library::roots(&self.host_root, self.driver_root.as_deref()))
    }

    /// Reads the current traces. Blocks.
    pub fn traces(&self) -> HardwareTraces {
        let library = self.library().and_then(|path| {
            let meta = fs::metadata(&path).ok()?;
            Some((path, meta.ino(), meta.mtime()))
        });
        HardwareTraces {
            pci: pci::functions(&self.host_root),
            is_validated: library
                .as_ref()
                .is_none_or(|(path, ..)| is_validated(&self.host_root, path)),
            driver: DriverId {
                library,
                module: module(&self.host_root),
                functions: pci::driver_entries(&self.host_root),
            },
            instances: nvml::instances(&self.host_root),
        }
    }

    /// Reads sysfs only. Blocks.
    pub fn read_sysfs(&self) -> Hardware {
        let functions = nvidia_functions(&self.host_root);
        let machine = machine::read(&self.host_root, &functions);
        Hardware {
            functions: functions.len(),
            machine,
            ..Hardware::default()
        }
    }

    /// Reads sysfs and the driver. `before` is the last probe. A driver in use is not given up when its container is not ready
    /// any more. Notes the progress in `call`. Blocks.
    pub fn probe(&self, before: Option<&Hardware>, call: &DriverCall) -> (HardwareTraces, Hardware) {
        let traces = self.traces();
        let is_in_use = before.is_some_and(|before| before.driver == DriverState::Answers);
        let Hardware { functions, machine, .. } = self.read_sysfs();
        let (mut reading, mut failed) = (None, None);
        let unsupported = (functions == 0)
            .then(|| platform::unsupported(&self.host_root))
            .flatten();
        let driver = match (&traces.driver.library, unsupported) {
            (_, Some(reason)) => DriverState::Missing(reason.to_owned()),
            (None, None) if functions == 0 => DriverState::NotNeeded,
            (None, None) => {
                let roots = library::roots(&self.host_root, self.driver_root.as_deref());
                DriverState::Missing(format!(
                    "find libnvidia-ml.so.1 below {}: not found; install the NVIDIA driver on the node, or run its \
                     driver container",
                    library::join_roots(&roots)
                ))
            }
            (Some(_), None) if !traces.is_validated && !is_in_use => DriverState::Waiting(format!(
                "the driver's container is not ready: /{VALIDATIONS} of the node has neither {}; see the log of \
                 gpu-operator's driver pod; if no driver container runs on the node, delete the directory",
                VALIDATED.join(" nor ")
            )),
            (Some((path, ..)), None) => {
                let gpus = before
                    .and_then(Hardware::inventory)
                    .map_or(&[][..], |before| &before.gpus);
                let function = |address: &str| pci::function(&self.host_root, address);
                match nvml::read(path, &self.host_root, gpus, function, |gpu| call.begin_turn(gpu)) {
                    Ok(found) => {
                        let is_silent = found.inventory.gpus.is_empty() && !found.unreadable.is_empty();
                        let problem = found.unreadable.join("; ");
                        reading = Some(found);
                        // A driver that answers for no GPU has failed.
                        if is_silent {
                            DriverState::Failed(problem)
                        } else {
                            DriverState::Answers
                        }
                    }
                    // The driver was installed before its hardware.
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
        let run = machine::run(&self.host_root, traces.driver.module, version);
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
