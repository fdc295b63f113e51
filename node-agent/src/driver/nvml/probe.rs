//! Probes GPUs for faults.

use super::{
    error::{DriverError, FailedCall, failed_in, is_missing},
    lookup::{GpuAddress, find_gpu, find_mig_device, is_replaced},
    raw::{self, RemoteDevice},
    session::open,
};
use gpunode_gpu::{FabricRegistration, GpuProbe, MigProbe, ProbeResult};
use nvml_wrapper::{
    Device, Nvml,
    enum_wrappers::device::{EccCounter, MemoryError},
    enums::device::SampleValue,
    error::NvmlError,
    structs::device::FieldId,
};
use nvml_wrapper_sys::bindings::{
    NVML_DEVICE_MIG_ENABLE,
    field_id::{
        NVML_FI_DEV_GET_GPU_RECOVERY_ACTION as RECOVERY_ACTION, NVML_FI_DEV_REMAPPED_FAILURE as REMAPPED_FAILURE,
        NVML_FI_DEV_REMAPPED_PENDING as REMAPPED_PENDING, NVML_FI_DEV_RETIRED_PENDING as RETIRED_PENDING,
        NVML_FI_DEV_RETIRED_PENDING_DBE as DOUBLE_BIT_PENDING,
    },
};
use std::{ops::ControlFlow, path::Path};

/// Maximum number of NVLinks of a GPU (`NVML_NVLINK_MAX_LINKS` of NVML 13).
const MAX_NVLINKS: u32 = 36;

/// NVLinks that lead to another GPU: number, and PCI bus id of that GPU.
pub type LinkEnds = Vec<(u32, String)>;

/// GPU to probe.
#[derive(Clone, Debug, Default)]
pub struct ProbeTarget {
    /// UUID of the GPU.
    pub gpu: String,
    /// Its PCI address, if known.
    pub pci_bus_id: Option<String>,
    /// `DeviceFaults::ticket` from before the probe.
    pub ticket: u64,
    /// Indices and UUIDs of its MIG devices.
    pub instances: Vec<(u32, String)>,
    /// The NVLinks that were up; none to probe all.
    pub links: Option<Vec<u32>>,
    /// Ends of its NVLinks, as far as they are known.
    pub link_ends: LinkEnds,
    /// Registration of the GPU in its NVLink fabric, by the last reading.
    pub fabric: Option<FabricRegistration>,
    /// True when the processes on the GPU are counted.
    pub processes: bool,
}

/// Result of a probe, with its NVLinks and failed calls.
#[derive(Debug)]
pub struct ProbeReport {
    /// The result.
    pub probe: GpuProbe,
    /// The probed NVLinks that are up, or down because of the GPU at their other end; none when MIG is on here, and before the
    /// GPU has joined its fabric.
    pub links: Option<Vec<u32>>,
    /// Registration of the GPU in its NVLink fabric; that of the target if the call fails.
    pub fabric: Option<FabricRegistration>,
    /// Ends of the links that are up, when all were probed.
    pub link_ends: LinkEnds,
    /// The calls that failed, each with the UUID of the GPU or MIG device.
    pub failed: Vec<(String, FailedCall)>,
}

/// Probes each target through the library at `path`, one after the other, until `on_report` breaks. Leaves out a target if its
/// slot has another GPU. `begin` receives the UUID of each GPU before calls about it, and none before calls about one that is no
/// target. Blocks.
pub fn probe(
    path: &Path,
    targets: &[ProbeTarget],
    mut begin: impl FnMut(Option<&str>),
    mut on_report: impl FnMut(ProbeReport) -> ControlFlow<()>,
) -> Result<(), DriverError> {
    let nvml = open(path)?;
    for target in targets {
        begin(Some(&target.gpu));
        let mut report = ProbeReport {
            probe: unanswered(target),
            links: None,
            fabric: target.fabric.clone(),
            link_ends: LinkEnds::new(),
            failed: Vec::new(),
        };
        if let Err(failed) = fill_report(&nvml, target, targets, &mut report, &mut begin) {
            if is_replaced(&failed) {
                continue;
            }
            // A GPU that NVML does not list was lost before the first of the open sessions.
            let is_lost = matches!(failed.1, NvmlError::GpuLost | NvmlError::NotFound);
            report.probe.result = if is_lost { ProbeResult::Lost } else { ProbeResult::Fails };
            report.failed.push((target.gpu.clone(), failed));
        }
        if on_report(report).is_break() {
            break;
        }
    }
    Ok(())
}

/// Returns the result for a GPU that does not answer at all.
pub fn unanswered(target: &ProbeTarget) -> GpuProbe {
    GpuProbe {
        gpu: target.gpu.clone(),
        ticket: target.ticket,
        result: ProbeResult::Fails,
        recovery_action: None,
        uncorrected_ecc: None,
        remap_pending: None,
        remap_failed: None,
        retirement_pending: None,
        double_bit_pending: None,
        link_down: None,
        processes: None,
        instances: Vec::new(),
    }
}

/// Fills in the report, up to the first call that fails.
fn fill_report(
    nvml: &Nvml,
    target: &ProbeTarget,
    targets: &[ProbeTarget],
    report: &mut ProbeReport,
    begin: &mut impl FnMut(Option<&str>),
) -> Result<(), FailedCall> {
    let address = GpuAddress {
        uuid: target.gpu.clone(),
        pci_bus_id: target.pci_bus_id.clone(),
    };
    let device = find_gpu(nvml, &address)?;
    if_supported(raw::total_memory(&device)).map_err(failed_in("nvmlDeviceGetMemoryInfo_v2"))?;
    fields(&device, &mut report.probe).map_err(failed_in("nvmlDeviceGetFieldValues"))?;
    report.probe.uncorrected_ecc =
        if_supported(device.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile))
            .map_err(failed_in("nvmlDeviceGetTotalEccErrors"))?;
    let mig = if_supported(device.mig_mode()).map_err(failed_in("nvmlDeviceGetMigMode"))?;
    // A call that fails does not tell whether the links count. What it says of the GPU itself, the others do.
    let has_joined = match raw::fabric(&device) {
        Ok(fabric) => {
            report.fabric = fabric;
            report.fabric.as_ref().is_none_or(|fabric| fabric.is_complete)
        }
        Err(error) => {
            let failed = ("nvmlDeviceGetGpuFabricInfo", error);
            report.failed.push((target.gpu.clone(), failed));
            false
        }
    };
    if mig.is_some_and(|mode| mode.current == NVML_DEVICE_MIG_ENABLE) {
        report.probe.link_down = Some(false);
    } else if has_joined {
        let up = links(&device, target, targets, begin).map_err(failed_in("nvmlDeviceGetNvLinkState"))?;
        report.probe.link_down = target.links.as_ref().map(|before| before.len() > up.len());
        if target.links.is_none() {
            report.link_ends = up.iter().filter_map(|link| link_end(&device, *link)).collect();
        }
        report.links = Some(up);
    }
    if target.processes {
        report.probe.processes = processes(&device);
    }
    for (index, uuid) in &target.instances {
        let answer = probe_instance(&device, *index, uuid, target.processes);
        let (answers, processes) = (answer.is_ok(), answer.as_ref().ok().copied().flatten());
        report.probe.instances.push(MigProbe {
            uuid: uuid.clone(),
            answers,
            processes,
        });
        report.failed.extend(answer.err().map(|failed| (uuid.clone(), failed)));
    }
    report.probe.result = ProbeResult::Responds;
    Ok(())
}

/// Probes a MIG device of a GPU and counts its processes if `count` is set.
fn probe_instance(gpu: &Device<'_>, index: u32, uuid: &str, count: bool) -> Result<Option<usize>, FailedCall> {
    let device = find_mig_device(gpu, index, uuid)?;
    if_supported(raw::total_memory(&device)).map_err(failed_in("nvmlDeviceGetMemoryInfo_v2"))?;
    Ok(count.then(|| processes(&device)).flatten())
}

fn fields(device: &Device<'_>, probe: &mut GpuProbe) -> Result<(), NvmlError> {
    let ids = [
        RECOVERY_ACTION,
        REMAPPED_PENDING,
        REMAPPED_FAILURE,
        RETIRED_PENDING,
        DOUBLE_BIT_PENDING,
    ];
    let Some(answers) = if_supported(device.field_values_for(&ids.map(FieldId)))? else {
        return Ok(());
    };
    let mut values = answers
        .into_iter()
        .map(|answer| match answer.and_then(|sample| sample.value) {
            // NVML does not document its answer for a field that is newer than the driver.
            Err(NvmlError::InvalidArg) => Ok(None),
            answer => if_supported(answer),
        });
    let mut next = || {
        values
            .next()
            .transpose()
            .map(|value| value.flatten().and_then(|value| number(&value)))
    };
    probe.recovery_action = next()?.map(|value| u32::try_from(value).unwrap_or(u32::MAX));
    probe.remap_pending = next()?.map(|value| value != 0);
    probe.remap_failed = next()?.map(|value| value != 0);
    probe.retirement_pending = next()?.map(|value| value != 0);
    probe.double_bit_pending = next()?.map(|value| value != 0);
    Ok(())
}

fn number(value: &SampleValue) -> Option<u64> {
    match value {
        SampleValue::U32(value) => Some((*value).into()),
        SampleValue::U64(value) => Some(*value),
        SampleValue::I64(value) => u64::try_from(*value).ok(),
        SampleValue::F64(_) => None,
    }
}

/// Returns those of the target's NVLinks, or of all, that are up or have a reason to be down: MIG takes the links of a GPU
/// down, and so does its loss, which is no fault of the GPU at their other end.
fn links(
    device: &Device<'_>,
    target: &ProbeTarget,
    targets: &[ProbeTarget],
    begin: &mut impl FnMut(Option<&str>),
) -> Result<Vec<u32>, NvmlError> {
    let of = target.links.as_deref();
    let all: Vec<u32> = (0..MAX_NVLINKS).collect();
    let mut up = Vec::new();
    for link in of.unwrap_or(&all) {
        let is_up = match device.link_wrapper_for(*link).is_active() {
            // The numbers of a board's NVLinks may have gaps.
            Err(error) if matches!(error, NvmlError::InvalidArg) || is_unsupported(&error) => false,
            state => state?,
        };
        if is_up || has_reason_to_be_down(device.nvml(), target, targets, *link, begin) {
            up.push(*link);
        }
    }
    Ok(up)
}

/// Returns true if the GPU at the other end of a link has MIG on or does not answer. If that GPU hangs, the target is not to
/// blame.
fn has_reason_to_be_down(
    nvml: &Nvml,
    target: &ProbeTarget,
    targets: &[ProbeTarget],
    link: u32,
    begin: &mut impl FnMut(Option<&str>),
) -> bool {
    let mut ends = target.link_ends.iter();
    let Some((_, bus_id)) = ends.find(|(number, _)| *number == link) else {
        return false;
    };
    // The other end may be a switch: drivers before 465 do not say so.
    let is_here = |address: &String| slot(address).is_some() && slot(address) == slot(bus_id);
    let peer = targets
        .iter()
        .find(|peer| peer.pci_bus_id.as_ref().is_some_and(is_here));
    begin(peer.map(|peer| peer.gpu.as_str()));
    let has_reason = nvml.device_by_pci_bus_id(bus_id.as_str()).and_then(|device| {
        let mode = if_supported(device.mig_mode())?;
        if_supported(raw::total_memory(&device))?;
        Ok(mode.is_some_and(|mode| mode.current == NVML_DEVICE_MIG_ENABLE))
    });
    begin(Some(&target.gpu));
    has_reason.unwrap_or_else(|error| peer.is_some() || matches!(error, NvmlError::GpuLost))
}

/// Returns the numbers of a PCI address. NVML writes the domain with more digits than the kernel.
fn slot(address: &str) -> Option<Vec<u32>> {
    let numbers = address.split([':', '.']);
    numbers.map(|number| u32::from_str_radix(number, 16).ok()).collect()
}

/// Returns number and other end of a link, unless it leads to a switch.
fn link_end(device: &Device<'_>, link: u32) -> Option<(u32, String)> {
    if raw::remote_device_type(device, link) == Some(RemoteDevice::Switch) {
        return None;
    }
    let remote = device.link_wrapper_for(link).remote_pci_info().ok()?;
    Some((link, remote.bus_id))
}

/// Returns the number of processes on a device, if the driver reports it. Drivers before 510 have the second version of the
/// calls. A board without graphics has no graphics processes.
fn processes(device: &Device<'_>) -> Option<usize> {
    let compute = match device.running_compute_processes_count() {
        Err(error) if is_missing(&error) => device.running_compute_processes_count_v2(),
        count => count,
    };
    let graphics = match device.running_graphics_processes_count() {
        Err(error) if is_missing(&error) => device.running_graphics_processes_count_v2(),
        count => count,
    };
    let graphics = match graphics {
        Err(NvmlError::NotSupported) => 0,
        count => count.ok()?,
    };
    Some(compute.ok()? as usize + graphics as usize)
}

/// Returns none when the GPU or the driver does not support the query, or denies it here.
fn if_supported<T>(answer: Result<T, NvmlError>) -> Result<Option<T>, NvmlError> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if is_unsupported(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_unsupported(error: &NvmlError) -> bool {
    matches!(
        error,
        NvmlError::NotSupported
            | NvmlError::FunctionNotFound
            | NvmlError::FailedToLoadSymbol(_)
            | NvmlError::NoPermission
            | NvmlError::IncorrectBits(_)
            | NvmlError::UnexpectedVariant(_)
    )
}
