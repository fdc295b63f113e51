//! Reads the GPUs, and how busy they are.

use super::{
    capabilities::Capabilities,
    error::{DriverError, Unanswered},
    links,
    lookup::{GpuAddress, find_gpu, is_replaced},
    mig, mig_state, raw,
    session::open,
};
use crate::driver::pci::PciFunction;
use gpunode_gpu::{Gpu, Inventory, MigMode};
use nvml_wrapper::{Device, Nvml, error::NvmlError};
use nvml_wrapper_sys::bindings::NVML_DEVICE_MIG_ENABLE;
use std::{collections::BTreeMap, fmt, path::Path};

/// Names of boards that draw on the monitor of a DGX Station and compute nothing. NVIDIA's device plugin leaves the same
/// out (`WithSkippedDevices` in go-nvlib's `pkg/nvlib/device/api.go`).
const DISPLAYS: [&str; 2] = ["DGX Display", "NVIDIA DGX Display"];

/// Result of reading the GPUs in one session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriverReading {
    /// The GPUs that answer, and those that stopped answering, as they were before.
    pub inventory: Inventory,
    /// UUIDs of the GPUs that have fallen off the bus.
    pub lost: Vec<String>,
    /// One sentence for each GPU and each MIG device that does not answer.
    pub unreadable: Vec<String>,
    /// True if the MIG profiles and instances of each GPU were asked for, too.
    pub has_layouts: bool,
}

/// Reads the GPUs through the library at `path`. `function` looks up a PCI address. A GPU of `before` that does not answer,
/// or is lost, stays as it was; other GPUs without an answer are omitted. `begin` receives the UUID of each GPU before calls
/// about it, of which the first takes 1 to 5 s without persistence mode, and none before calls about no GPU or an unknown one.
/// `with_layouts` asks for the MIG profiles and instances of each GPU, too.
pub fn read(
    path: &Path,
    host_root: &Path,
    before: &[Gpu],
    with_layouts: bool,
    function: impl Fn(&str) -> PciFunction,
    begin: impl Fn(Option<&str>),
) -> Result<DriverReading, DriverError> {
    let nvml = open(path)?;
    let capabilities = Capabilities::of_host(host_root);
    let count = nvml.device_count().map_err(DriverError::Count)?;
    let mut reading = DriverReading {
        has_layouts: with_layouts,
        ..DriverReading::default()
    };
    let mut identified = Vec::new();
    for index in 0..count {
        begin(known_at(before, index, count));
        match identify(&nvml, index) {
            Ok((_, gpu)) if DISPLAYS.contains(&gpu.name.as_str()) => {}
            Ok((device, gpu)) => identified.push((device, gpu)),
            Err(error) => reading.unreadable.push(format!("read GPU {index}: {error}")),
        }
    }
    let mut silent = Vec::new();
    let (mut anonymous, mut has_shifted) = (reading.unreadable.len(), false);
    for gpu in before {
        if identified.iter().any(|(_, other)| other.uuid == gpu.uuid) {
            continue;
        }
        begin(Some(&gpu.uuid));
        let Some(absence) = Absence::of(&nvml, gpu, &function) else {
            continue;
        };
        // A GPU without an identity is one of the sentences above, a GPU that is not listed is not.
        if absence == Absence::Unlisted || anonymous == 0 {
            reading.unreadable.push(format!("find GPU {}: {absence}", gpu.index));
        } else {
            anonymous -= 1;
        }
        has_shifted |= absence == Absence::Unlisted;
        silent.push((gpu.clone(), absence != Absence::Silent));
    }
    if has_shifted {
        keep_indices(identified.iter_mut().map(|(_, gpu)| gpu), before);
    }
    let mut devices = Vec::new();
    for (device, gpu) in identified {
        let (uuid, index) = (gpu.uuid.clone(), gpu.index);
        begin(Some(&uuid));
        let described = match describe(&device, gpu, &capabilities, &function) {
            Ok((mut gpu, unreadable)) => {
                reading.unreadable.extend(unreadable);
                if with_layouts {
                    match mig_state::read(&device) {
                        Ok(state) => gpu.mig_state = state,
                        Err((call, error)) => {
                            let sentence = format!("read MIG of GPU {}: {call}: {error}", gpu.index);
                            reading.unreadable.push(sentence);
                            let known = before.iter().find(|known| known.uuid == gpu.uuid);
                            gpu.mig_state = known.and_then(|known| known.mig_state.clone());
                        }
                    }
                }
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
            devices.push(device);
        }
    }
    let links = links::between(&reading.inventory.gpus, &devices, &begin);
    for (gpu, links) in reading.inventory.gpus.iter_mut().zip(links) {
        gpu.links = links;
    }
    begin(None);
    for (kept, is_lost) in silent {
        reading.lost.extend(is_lost.then(|| kept.uuid.clone()));
        reading.inventory.gpus.push(kept);
    }
    reading.inventory.gpus.sort_by_key(|gpu| gpu.index);
    reading.inventory.driver_version = nvml.sys_driver_version().ok();
    reading.inventory.cuda_version = nvml
        .sys_cuda_driver_version()
        .ok()
        .map(|version| format!("{}.{}", version / 1000, version % 1000 / 10));
    Ok(reading)
}

/// Returns the utilisation of each of the GPUs in percent, by index. Omits GPUs without one, such as those with MIG on. `begin`
/// receives the UUID of each GPU before calls about it.
pub fn utilisation(path: &Path, gpus: &[Gpu], begin: impl Fn(Option<&str>)) -> Result<BTreeMap<u32, u32>, DriverError> {
    let nvml = open(path)?;
    let busy = |gpu: &Gpu| {
        begin(Some(&gpu.uuid));
        let device = find_gpu(&nvml, &GpuAddress::of(gpu)).ok()?;
        Some((gpu.index, device.utilization_rates().ok()?.gpu))
    };
    Ok(gpus.iter().filter_map(busy).collect())
}

/// Reason why no index names a GPU of the last reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Absence {
    /// It does not tell its UUID.
    Silent,
    /// It has fallen off the bus.
    Lost,
    /// The driver has it, and NVML does not list it: it was lost before the first of the open sessions.
    Unlisted,
}

impl fmt::Display for Absence {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Silent => "the driver does not answer for it",
            Self::Lost => "it has fallen off the bus",
            Self::Unlisted => "the driver no longer lists it",
        })
    }
}

impl Absence {
    /// Looks a GPU up at its address. Returns none if it is no longer in the machine, or no longer the driver's.
    fn of(nvml: &Nvml, gpu: &Gpu, function: impl Fn(&str) -> PciFunction) -> Option<Self> {
        let address = gpu.pci_bus_id.as_deref()?;
        match find_gpu(nvml, &GpuAddress::of(gpu)) {
            Err((_, NvmlError::GpuLost)) => Some(Self::Lost),
            Err(error) if is_replaced(&error) => None,
            Err((_, NvmlError::NotFound)) => function(address).is_attached.then_some(Self::Unlisted),
            Ok(_) | Err(_) => Some(Self::Silent),
        }
    }
}

/// Keeps the indices of known GPUs while one of them is not listed: NVML counts without it, and indices behind it have
/// shifted. Other GPUs get the indices that follow.
fn keep_indices<'a>(gpus: impl Iterator<Item = &'a mut Gpu>, before: &[Gpu]) {
    let mut next = before.iter().map(|gpu| gpu.index + 1).max().unwrap_or_default()..;
    for gpu in gpus {
        let known = before.iter().find(|known| known.uuid == gpu.uuid);
        if let Some(index) = known.map(|known| known.index).or_else(|| next.next()) {
            gpu.index = index;
        }
    }
}

/// Returns the UUID of the GPU that a reading before had at an index, unless indices may have shifted since.
fn known_at(before: &[Gpu], index: u32, count: u32) -> Option<&str> {
    let has_all = before.iter().all(|gpu| gpu.index < count);
    let gpu = before.iter().find(|gpu| has_all && gpu.index == index)?;
    Some(&gpu.uuid)
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
    let memory = if_supported(raw::total_memory(device)).map_err(unanswered("read the memory"))?;
    let capability =
        if_supported(device.cuda_compute_capability()).map_err(unanswered("read the CUDA compute capability"))?;
    let mig_mode = if_supported(device.mig_mode()).map_err(unanswered("read the MIG mode"))?;
    let minor = if_supported(device.minor_number()).map_err(unanswered("read the minor number"))?;
    let fabric = raw::fabric(device).map_err(unanswered("read the NVLink fabric"))?;
    // These may stay empty: they do not decide how the GPU is advertised.
    let pci = device.pci_info().ok();
    let pci_device_id = pci.as_ref().map(|pci| pci.pci_device_id);
    let pci_bus_id = pci.map(|pci| format!("{:04x}:{:02x}:{:02x}.0", pci.domain, pci.bus, pci.device));
    let function = pci_bus_id.as_deref().map(function).unwrap_or_default();
    let mut gpu = Gpu {
        memory_mib: memory.unwrap_or_default() / (1024 * 1024),
        compute_capability: capability
            .and_then(|cc| Some((u32::try_from(cc.major).ok()?, u32::try_from(cc.minor).ok()?))),
        // `nvmlDeviceGetNumaNodeId` is no substitute: on Grace it names the node of the GPU's memory, which has no CPUs
        // (nvml.h: it "only applies to platforms where the GPUs are NUMA nodes").
        numa_node: function.numa_node,
        mode: function.mode,
        fabric,
        pci_bus_id,
        pci_device_id,
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
fn if_supported<T>(answer: Result<T, NvmlError>) -> Result<Option<T>, NvmlError> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(NvmlError::NotSupported | NvmlError::FunctionNotFound | NvmlError::FailedToLoadSymbol(_)) => Ok(None),
        Err(error) => Err(error),
    }
}
