//! Lists the processes on the GPUs.

use super::{
    error::{DriverError, FailedCall, is_missing},
    lookup::{GpuAddress, find_gpu},
    session::open,
};
use nvml_wrapper::{Device, error::NvmlError, struct_wrappers::device::ProcessInfo};
use std::{collections::BTreeSet, path::Path};

/// A process on a GPU, as the driver lists it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DriverProcess {
    /// UUID of the GPU.
    pub gpu: String,
    /// Process id, in the PID namespace of this process. The driver leaves out the processes that this namespace does not have
    /// (`os_find_ns_pid` in NVIDIA's open kernel modules).
    pub pid: u32,
    /// Ids of GPU instance and compute instance; none without MIG.
    pub instance: Option<(u32, u32)>,
}

/// Lists the processes on these GPUs through the library at `path`. A GPU or a list that does not answer has none. `begin` receives
/// the UUID of each GPU before calls about it, and returns false to leave the GPU out. Blocks.
pub fn processes(
    path: &Path,
    gpus: &[GpuAddress],
    mut begin: impl FnMut(&str) -> bool,
) -> Result<BTreeSet<DriverProcess>, DriverError> {
    let nvml = open(path)?;
    let mut found = BTreeSet::new();
    for gpu in gpus {
        if !begin(&gpu.uuid) {
            continue;
        }
        let Ok(device) = find_gpu(&nvml, gpu) else { continue };
        found.extend(listed(&device).map(|process| DriverProcess {
            gpu: gpu.uuid.clone(),
            pid: process.pid,
            instance: process.gpu_instance_id.zip(process.compute_instance_id),
        }));
    }
    Ok(found)
}

fn listed(device: &Device<'_>) -> impl Iterator<Item = ProcessInfo> {
    lists(device).into_iter().filter_map(|(_, list)| list.ok()).flatten()
}

/// Returns the processes on a GPU or MIG device. A list that the driver or the board lacks is empty, and any other error ends the search.
pub fn every_process(device: &Device<'_>) -> Result<Vec<ProcessInfo>, FailedCall> {
    let mut found = Vec::new();
    for (call, list) in lists(device) {
        match list {
            Ok(list) => found.extend(list),
            Err(error) if is_missing(&error) || matches!(error, NvmlError::NotSupported) => {}
            Err(error) => return Err((call, error)),
        }
    }
    Ok(found)
}

/// Returns the answer of each list, with the C name of the call.
fn lists(device: &Device<'_>) -> [(&'static str, Result<Vec<ProcessInfo>, NvmlError>); 3] {
    let compute = device.running_compute_processes();
    let graphics = device.running_graphics_processes();
    [
        (
            "nvmlDeviceGetComputeRunningProcesses_v3",
            or_earlier(compute, || device.running_compute_processes_v2()),
        ),
        (
            "nvmlDeviceGetGraphicsRunningProcesses_v3",
            or_earlier(graphics, || device.running_graphics_processes_v2()),
        ),
        (
            "nvmlDeviceGetMPSComputeRunningProcesses_v3",
            device.mps_running_compute_processes(),
        ),
    ]
}

/// Returns the list of an earlier version of the call where the driver is older than the call.
fn or_earlier(
    list: Result<Vec<ProcessInfo>, NvmlError>,
    earlier: impl FnOnce() -> Result<Vec<ProcessInfo>, NvmlError>,
) -> Result<Vec<ProcessInfo>, NvmlError> {
    match list {
        Err(error) if is_missing(&error) => earlier(),
        list => list,
    }
}
