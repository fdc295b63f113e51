//! Probes the hardware of the node once.

use crate::driver::{
    calls::{DriverCall, DriverCalls},
    hardware::{DriverState, Hardware},
    library::{self, FoundDriver},
    machine, nvml,
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

/// Roots of the host, of its driver and of its device nodes, and the calls to that driver.
#[derive(Clone, Debug)]
#[expect(clippy::struct_field_names, reason = "the field has the name of its flag")]
pub struct DriverRoots {
    /// Root of the host in this container.
    pub host_root: PathBuf,
    /// Roots below which the driver is searched, in this order; paths on the host.
    pub driver_roots: Vec<PathBuf>,
    /// First folder below which device nodes are searched; a path on the host.
    pub dev_root: PathBuf,
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

impl DriverRoots {
    /// Returns the default roots of the host at `host_root`.
    #[cfg(test)]
    pub fn of_host(host_root: &Path) -> Self {
        Self {
            host_root: host_root.to_owned(),
            driver_roots: gpunode_config::DriverRootList::default().roots(),
            dev_root: "/".into(),
            calls: DriverCalls::default(),
        }
    }

    /// Finds the driver. Blocks.
    pub fn find(&self) -> Option<FoundDriver> {
        library::find_driver(&self.host_root, &self.driver_roots)
    }

    /// Asks the driver about GPUs with its library. `ask` also gets a function that receives the UUID of each GPU before calls about it,
    /// and returns false to leave the GPU out: one that does not answer (`answers`), and every one while a call may hang, since another
    /// call about the same GPU would keep the driver from answering for the others. Returns none while the driver must not be called,
    /// or has no library. Blocks.
    pub fn ask<T>(
        &self,
        answers: impl Fn(&str) -> bool,
        ask: impl FnOnce(&Path, &dyn Fn(&str) -> bool) -> T,
    ) -> Option<T> {
        let (driver, call) = (self.find()?, self.calls.begin()?);
        if self.calls.may_hang() {
            return None;
        }
        let begin = |gpu: &str| {
            let may_begin = !self.calls.may_hang() && answers(gpu);
            if may_begin {
                call.begin_turn(Some(gpu));
            }
            may_begin
        };
        Some(ask(&driver.library, &begin))
    }

    /// Reads the current traces. Blocks.
    pub fn traces(&self) -> HardwareTraces {
        let driver = self.find();
        let is_validated = driver.as_ref().is_none_or(|driver| self.is_validated(driver));
        let library = driver.and_then(|driver| {
            let meta = fs::metadata(&driver.library).ok()?;
            Some((driver.library, meta.ino(), meta.mtime()))
        });
        HardwareTraces {
            pci: pci::functions(&self.host_root),
            is_validated,
            driver: DriverId {
                library,
                module: module(&self.host_root),
                functions: pci::driver_entries(&self.host_root),
            },
            instances: nvml::instances(&self.host_root),
        }
    }

    /// Returns false for the driver of a driver container that is not ready, where gpu-operator says so. Blocks.
    pub fn is_validated(&self, driver: &FoundDriver) -> bool {
        let folder = self.host_root.join(VALIDATIONS);
        driver.root != Path::new(library::DRIVER_CONTAINER)
            || !folder.is_dir()
            || VALIDATED.iter().any(|file| folder.join(file).exists())
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
    /// any more. `with_layouts` asks the driver for MIG profiles and instances, too. Notes the progress in `call`. Blocks.
    pub fn probe(
        &self,
        before: Option<&Hardware>,
        with_layouts: bool,
        call: &DriverCall,
    ) -> (HardwareTraces, Hardware) {
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
            (None, None) => DriverState::Missing(format!(
                "find libnvidia-ml.so.1 below {}: not found; install the NVIDIA driver on the node, run its driver \
                 container, or name the folder that has it in --driver-roots",
                library::join_roots(&self.driver_roots)
            )),
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
                let begin = |gpu: Option<&str>| call.begin_turn(gpu);
                match nvml::read(path, &self.host_root, gpus, with_layouts, function, begin) {
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
