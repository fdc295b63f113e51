//! Calls NVML; no other module does. Each function except [`events::watch`] opens a session and closes it. Every call here
//! blocks.
//!
//! | module | what it does |
//! |---|---|
//! | `probe` | probes GPUs for faults |
//! | `events` | waits for driver events |
//! | `modes` | reads and sets the compute mode |
//! | `mig` | reads MIG devices |
//! | `profile` | names MIG profiles |
//! | `instances` | lists MIG instances without the driver |
//! | `links` | reads the links between GPUs |
//! | `capabilities` | finds the device nodes of MIG instances |
//! | `elf` | checks that a library's file is complete |
//! | `raw` | calls that nvml-wrapper lacks, the only unsafe code |

mod capabilities;
mod elf;
pub mod events;
mod instances;
mod links;
mod mig;
mod modes;
pub mod probe;
mod profile;
mod raw;
#[cfg(test)]
pub mod tests;

pub use instances::instances;
pub use modes::{ComputeMode, compute_mode, set_compute_mode};

use crate::driver::pci::PciFunction;
use capabilities::Capabilities;
use gpunode_gpu::{Gpu, Inventory, MigMode};
use nvml_wrapper::{Device, Nvml, error::NvmlError};
use nvml_wrapper_sys::bindings::NVML_DEVICE_MIG_ENABLE;
use object::{ReadCache, ReadRef as _};
use std::{
    collections::BTreeMap,
    fs::File,
    io,
    path::{Path, PathBuf},
};

/// Error of a driver call.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// The library's file cannot be opened.
    #[error("open {path}: {source}")]
    Open {
        /// The library.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file is not a library.
    #[error("load NVML from {path}: {source}; is this the driver's library?")]
    NotElf {
        /// The library.
        path: PathBuf,
        /// The parser's error.
        source: object::Error,
    },
    /// The end of the file is missing.
    #[error(
        "load NVML from {path}: the library is incomplete ({length} of {needed} bytes): a driver installation may be under way"
    )]
    Incomplete {
        /// The library.
        path: PathBuf,
        /// Bytes in the file.
        length: u64,
        /// Bytes that its headers require.
        needed: u64,
    },
    /// The library cannot be loaded or started.
    #[error("initialise NVML from {path}: {source}; is the driver loaded, and are its device nodes in this container?")]
    Initialise {
        /// The library.
        path: PathBuf,
        /// NVML's answer.
        source: NvmlError,
    },
    /// The file is not NVML.
    #[error("load NVML from {path}: nvmlShutdown is missing; is this the driver's library?")]
    NotNvml {
        /// The library.
        path: PathBuf,
    },
    /// Waiting for driver events failed.
    #[error("wait for driver events: {0}")]
    Events(NvmlError),
    /// Counting the GPUs failed.
    #[error("count the GPUs: {0}")]
    Count(NvmlError),
    /// Reading the compute mode failed.
    #[error("read the compute mode of {uuid}: {source}")]
    ReadComputeMode {
        /// The GPU.
        uuid: String,
        /// NVML's answer.
        source: NvmlError,
    },
    /// Changing the compute mode failed.
    #[error("set the compute mode of {uuid} to {mode}: {source}")]
    SetComputeMode {
        /// The GPU.
        uuid: String,
        /// The desired mode.
        mode: ComputeMode,
        /// NVML's answer.
        source: NvmlError,
    },
}

impl DriverError {
    /// Returns the C name of the NVML call that failed, if there was one.
    pub fn call(&self) -> Option<&'static str> {
        match self {
            Self::Initialise { .. } => Some("nvmlInit_v2"),
            Self::Events(_) => Some("nvmlEventSetWait_v2"),
            Self::Count(_) => Some("nvmlDeviceGetCount_v2"),
            Self::ReadComputeMode { .. } => Some("nvmlDeviceGetComputeMode"),
            Self::SetComputeMode { .. } => Some("nvmlDeviceSetComputeMode"),
            Self::Open { .. } | Self::NotElf { .. } | Self::Incomplete { .. } | Self::NotNvml { .. } => None,
        }
    }
}

/// Result of reading the GPUs in one session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriverReading {
    /// The GPUs that answer, and those that stopped answering, as they were before.
    pub inventory: Inventory,
    /// UUIDs of the GPUs that have fallen off the bus.
    pub lost: Vec<String>,
    /// One sentence for each GPU and each MIG device that does not answer.
    pub unreadable: Vec<String>,
}

/// Failure of a query that decides how a GPU is advertised. Reading it as "the GPU has no such feature" would make
/// another device of it.
#[derive(Debug, thiserror::Error)]
#[error("{question} of GPU {gpu}: {source}")]
struct Unanswered {
    question: &'static str,
    gpu: u32,
    source: NvmlError,
}

/// Reads the GPUs through the library at `path`. `function` looks up a PCI address, and wins over NVML for facts that both
/// have. A GPU of `before` that does not answer, or is lost, stays as it was; other GPUs without an answer are omitted.
pub fn read(
    path: &Path,
    host_root: &Path,
    before: &[Gpu],
    function: impl Fn(&str) -> PciFunction,
) -> Result<DriverReading, DriverError> {
    let nvml = open(path)?;
    let capabilities = Capabilities::of_host(host_root);
    let count = nvml.device_count().map_err(DriverError::Count)?;
    let mut reading = DriverReading::default();
    // GPUs without an identity now, each as it was before, and whether it is lost.
    let (mut devices, mut silent) = (Vec::new(), Vec::new());
    for index in 0..count {
        let (device, gpu) = match identify(&nvml, index) {
            Ok(identified) => identified,
            Err(error) => {
                reading.unreadable.push(format!("read GPU {index}: {error}"));
                // Without a UUID only the index identifies the GPU.
                let kept = before.iter().find(|gpu| gpu.index == index).cloned();
                silent.extend(kept.map(|gpu| (gpu, matches!(error, NvmlError::GpuLost))));
                continue;
            }
        };
        let uuid = gpu.uuid.clone();
        let described = match describe(&device, gpu, &capabilities, &function) {
            Ok((gpu, unreadable)) => {
                reading.unreadable.extend(unreadable);
                Some(gpu)
            }
            Err(error) => {
                reading.unreadable.push(error.to_string());
                let kept = before
                    .iter()
                    .find(|gpu| gpu.uuid == uuid)
                    .map(|gpu| Gpu { index, ..gpu.clone() });
                if matches!(error.source, NvmlError::GpuLost) {
                    silent.extend(kept.map(|gpu| (gpu, true)));
                    continue;
                }
                kept
            }
        };
        if let Some(gpu) = described {
            reading.inventory.gpus.push(gpu);
            devices.push((index, device));
        }
    }
    for (gpu, links) in reading.inventory.gpus.iter_mut().zip(links::between(&devices)) {
        gpu.links = links;
    }
    for (kept, is_lost) in silent {
        if reading.inventory.gpus.iter().all(|other| other.uuid != kept.uuid) {
            reading.lost.extend(is_lost.then(|| kept.uuid.clone()));
            reading.inventory.gpus.push(kept);
        }
    }
    reading.inventory.gpus.sort_by_key(|gpu| gpu.index);
    reading.inventory.driver_version = nvml.sys_driver_version().ok();
    reading.inventory.cuda_version = nvml
        .sys_cuda_driver_version()
        .ok()
        .map(|version| format!("{}.{}", version / 1000, version % 1000 / 10));
    Ok(reading)
}

/// Returns the utilisation of each GPU in percent, by index. Omits GPUs without one, such as those with MIG on.
pub fn utilisation(path: &Path) -> Result<BTreeMap<u32, u32>, DriverError> {
    let nvml = open(path)?;
    let count = nvml.device_count().map_err(DriverError::Count)?;
    let busy = |index| nvml.device_by_index(index)?.utilization_rates();
    Ok((0..count)
        .filter_map(|index| Some((index, busy(index).ok()?.gpu)))
        .collect())
}

/// Opens a session, which ends when the value is dropped.
fn open(path: &Path) -> Result<Nvml, DriverError> {
    check(path)?;
    let nvml = Nvml::builder()
        .lib_path(path.as_os_str())
        .init()
        .map_err(|source| DriverError::Initialise {
            path: path.to_owned(),
            source,
        })?;
    if nvml.lib().nvmlShutdown.is_err() {
        // Dropping the session would call nvmlShutdown and panic.
        std::mem::forget(nvml);
        return Err(DriverError::NotNvml { path: path.to_owned() });
    }
    Ok(nvml)
}

/// Checks that the library is safe to load.
fn check(path: &Path) -> Result<(), DriverError> {
    let file = File::open(path).map_err(|source| DriverError::Open {
        path: path.to_owned(),
        source,
    })?;
    let file = ReadCache::new(file);
    let needed = elf::needed(&file).map_err(|source| DriverError::NotElf {
        path: path.to_owned(),
        source,
    })?;
    match (&file).len() {
        Ok(length) if length < needed => Err(DriverError::Incomplete {
            path: path.to_owned(),
            length,
            needed,
        }),
        _ => Ok(()),
    }
}

/// Reads the identity of a GPU, without which it cannot be advertised.
fn identify(nvml: &Nvml, index: u32) -> Result<(Device<'_>, Gpu), NvmlError> {
    let device = nvml.device_by_index(index)?;
    let gpu = Gpu {
        index,
        uuid: device.uuid()?,
        name: device.name()?,
        ..Gpu::default()
    };
    Ok((device, gpu))
}

/// Reads the rest of a GPU. Also returns a sentence for each MIG device that does not answer.
fn describe(
    device: &Device<'_>,
    gpu: Gpu,
    capabilities: &Capabilities,
    function: impl Fn(&str) -> PciFunction,
) -> Result<(Gpu, Vec<String>), Unanswered> {
    let index = gpu.index;
    let unanswered = |question| {
        move |source| Unanswered {
            question,
            gpu: index,
            source,
        }
    };
    let memory = if_any(device.memory_info())
        .map_err(unanswered("read the memory"))?
        .map(|memory| memory.total);
    let capability =
        if_any(device.cuda_compute_capability()).map_err(unanswered("read the CUDA compute capability"))?;
    let mig_mode = if_any(device.mig_mode()).map_err(unanswered("read the MIG mode"))?;
    let minor = if_any(device.minor_number()).map_err(unanswered("read the minor number"))?;
    // These may stay empty: they do not decide how the GPU is advertised.
    let pci_bus_id = device
        .pci_info()
        .ok()
        .map(|pci| format!("{:04x}:{:02x}:{:02x}.0", pci.domain, pci.bus, pci.device));
    let function = pci_bus_id.as_deref().map(function).unwrap_or_default();
    let mut gpu = Gpu {
        memory_mib: memory.unwrap_or_default() / (1024 * 1024),
        compute_capability: capability
            .and_then(|cc| Some((u32::try_from(cc.major).ok()?, u32::try_from(cc.minor).ok()?))),
        numa_node: function
            .numa_node
            // NVML writes an unknown node as -1 into an unsigned number.
            .or_else(|| device.numa_node_id().ok().filter(|node| *node < u32::from(u16::MAX))),
        mode: function.mode,
        fabric: raw::fabric(device),
        pci_bus_id,
        minor,
        mig_mode: mig_mode.map(|mode| match mode.current {
            NVML_DEVICE_MIG_ENABLE => MigMode::Enabled,
            _ => MigMode::Disabled,
        }),
        ..gpu
    };
    let mut unreadable = Vec::new();
    if gpu.mig_mode == Some(MigMode::Enabled) {
        (gpu.mig_devices, unreadable) = mig::devices(device, &gpu, memory.unwrap_or_default(), capabilities)?;
    }
    Ok((gpu, unreadable))
}

/// Returns none when the GPU or the driver does not support the query.
fn if_any<T>(answer: Result<T, NvmlError>) -> Result<Option<T>, NvmlError> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(NvmlError::NotSupported | NvmlError::FunctionNotFound | NvmlError::FailedToLoadSymbol(_)) => Ok(None),
        Err(error) => Err(error),
    }
}
