//! Lists the processes on the GPUs, and what they use.

use super::{
    error::{DriverError, FailedCall, is_missing},
    lookup::{GpuAddress, find_gpu},
    session::open,
};
use gpunode_gpu::{ListedProcess, NotTold, ProcessesOnGpu, SmSample};
use nvml_wrapper::{
    Device,
    enums::device::UsedGpuMemory,
    error::NvmlError,
    struct_wrappers::device::{ProcessInfo, ProcessUtilizationSample},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

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

/// Time by which a sample may be ahead of the system's clock, in microseconds.
const AHEAD: u64 = 1_000_000;

/// Times of the last samples of SM use, by UUID of the GPU: microseconds of the system's clock.
pub type SampleTimes = BTreeMap<String, u64>;

/// Reads what the processes on these GPUs use, through the library at `path`: memory, and use of the SMs since the samples of the last
/// read, whose times it moves on. `begin` is as for [`processes`]. Blocks.
pub fn process_use(
    path: &Path,
    gpus: &[GpuAddress],
    times: &mut SampleTimes,
    mut begin: impl FnMut(&str) -> bool,
) -> Result<Vec<ProcessesOnGpu>, DriverError> {
    let nvml = open(path)?;
    let mut found = Vec::new();
    for gpu in gpus {
        if !begin(&gpu.uuid) {
            continue;
        }
        let Ok(device) = find_gpu(&nvml, gpu) else { continue };
        let time = times.entry(gpu.uuid.clone()).or_default();
        found.push(ProcessesOnGpu {
            gpu: gpu.uuid.clone(),
            processes: compute_and_others(&device).map_err(|(call, error)| NotTold(format!("{call}: {error}"))),
            samples: samples(&device, time).map_err(|error| NotTold(error.to_string())),
        });
    }
    Ok(found)
}

/// Returns the processes on a GPU. A driver that lacks the list of CUDA processes tells nothing.
fn compute_and_others(device: &Device<'_>) -> Result<Vec<ListedProcess>, FailedCall> {
    let mut found = Vec::new();
    for (place, (call, list)) in lists(device).into_iter().enumerate() {
        match list {
            Ok(list) => found.extend(list),
            Err(NvmlError::NotSupported) if place > 0 => {}
            Err(error) if place > 0 && is_missing(&error) => {}
            Err(error) => return Err((call, error)),
        }
    }
    let listed = |process: ProcessInfo| ListedProcess {
        pid: process.pid,
        instance: process.gpu_instance_id.zip(process.compute_instance_id),
        memory_bytes: match process.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(bytes),
            UsedGpuMemory::Unavailable => None,
        },
    };
    Ok(found.into_iter().map(listed).collect())
}

/// Returns the samples of SM use after `time`, which becomes that of the newest. Drivers have added samples that mean nothing
/// (<https://github.com/Syllo/nvtop/issues/110>): of another time, or with more than everything.
fn samples(device: &Device<'_>, time: &mut u64) -> Result<Vec<SmSample>, NvmlError> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = u64::try_from(now.as_micros()).unwrap_or(u64::MAX);
    if *time > now {
        // The clock was set back: no sample would come after the last one.
        *time = 0;
    }
    let since = *time;
    let mut answer = device.process_utilization_stats(since);
    if matches!(answer, Err(NvmlError::InsufficientSize(_))) {
        // Between its two calls, more processes have begun to work.
        answer = device.process_utilization_stats(since);
    }
    let answer = match answer {
        Err(NvmlError::NotFound) => Vec::new(),
        answer => answer?,
    };
    Ok(newest_samples(answer, time, now))
}

/// Returns the newest sample of each process after `time`, which becomes that of the newest, and until `now`.
fn newest_samples(answer: Vec<ProcessUtilizationSample>, time: &mut u64, now: u64) -> Vec<SmSample> {
    let times = time.saturating_add(1)..=now.saturating_add(AHEAD);
    let means_something =
        |of: &ProcessUtilizationSample| of.pid > 0 && times.contains(&of.timestamp) && of.sm_util <= 100;
    let mut found: BTreeMap<u32, (u64, u32)> = BTreeMap::new();
    for of in answer.into_iter().filter(means_something) {
        let newest = found.entry(of.pid).or_default();
        *newest = (*newest).max((of.timestamp, of.sm_util));
        *time = (*time).max(of.timestamp);
    }
    let sample = |(pid, (_, percent)): (u32, (u64, u32))| SmSample { pid, percent };
    found.into_iter().map(sample).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_a_time_to_come_mean_nothing() {
        let sample = |pid, timestamp| ProcessUtilizationSample {
            pid,
            timestamp,
            sm_util: 40,
            mem_util: 0,
            enc_util: 0,
            dec_util: 0,
        };
        let (mut time, now) = (5, 9_000_000);
        let answer = vec![
            sample(1, 5),
            sample(2, 6),
            sample(3, now + AHEAD),
            sample(4, now + AHEAD + 1),
            sample(5, u64::MAX),
        ];
        let found = newest_samples(answer, &mut time, now);
        assert_eq!(found.iter().map(|of| of.pid).collect::<Vec<_>>(), [2, 3]);
        assert_eq!(time, now + AHEAD);
    }
}
