//! Use of a GPU: memory, processes, load, power.

use std::time::{SystemTime, UNIX_EPOCH};

use gpunode_scenario::{Gpu, GpuInstance, GpuProcess, GpuState, ProcessKind, ReturnCode};
use nvml_wrapper_sys::bindings::{
    nvmlMemory_t, nvmlMemory_v2_t, nvmlProcessInfo_v1_t, nvmlProcessInfo_v2_t, nvmlProcessUtilizationSample_t,
    nvmlUtilization_t,
};

use crate::{
    library::{Answer, Device},
    node::GpuCall,
};

/// Instance ids of what does not run in a MIG instance.
pub(crate) const NO_INSTANCE: u32 = u32::MAX;
/// Temperature of an idle board, in degrees Celsius.
const IDLE_TEMPERATURE_C: u32 = 30;
/// The driver keeps this share of the memory for itself: 256 MiB of 32 GiB, about as on real boards.
const RESERVED_SHARE: u64 = 128;

/// Bytes that are used by processes, by nobody, by the driver, and all of them.
pub(crate) struct Memory {
    used: u64,
    free: u64,
    reserved: u64,
    total: u64,
}

fn memory(gpu: &Gpu, state: &GpuState) -> Memory {
    let total = gpu.memory_mib << 20;
    let reserved = (gpu.memory_mib / RESERVED_SHARE) << 20;
    let of_processes = state
        .processes
        .iter()
        .fold(0_u64, |sum, process| sum.saturating_add(process.memory_mib));
    let used_mib = of_processes.saturating_add(state.memory_used_mib).min(gpu.memory_mib);
    let used = (used_mib << 20).min(total - reserved);
    Memory {
        used,
        free: total - reserved - used,
        reserved,
        total,
    }
}

/// Compute instances share the memory of their GPU instance. What the driver keeps is not part of it.
fn instance_memory(instance: &GpuInstance, state: &GpuState) -> Memory {
    let total = instance.profile.memory_mib << 20;
    let inside = state.processes.iter().filter(|process| {
        let place = process.instance;
        place.is_some_and(|(gpu_instance, _)| gpu_instance == instance.id)
    });
    let used_mib = inside.fold(0_u64, |sum, process| sum.saturating_add(process.memory_mib));
    let used = used_mib.min(instance.profile.memory_mib) << 20;
    Memory {
        used,
        free: total - used,
        reserved: 0,
        total,
    }
}

/// The memory of a GPU or of a MIG device.
pub(crate) fn device_memory(device: &Device) -> Answer<Memory> {
    Ok(match device {
        Device::Gpu(gpu) => memory(gpu.hardware()?, gpu.state()),
        Device::Mig(mig) => instance_memory(mig.instances()?.0, mig.parent().state()),
    })
}

/// Load; drivers do not tell it while MIG is on.
pub(crate) fn utilization(gpu: &GpuCall) -> Answer<nvmlUtilization_t> {
    let hardware = gpu.hardware()?;
    if hardware.mig.is_some() {
        return Err(ReturnCode::NotSupported);
    }
    Ok(nvmlUtilization_t {
        gpu: gpu.state().utilization_percent.min(100),
        memory: memory_percent(hardware, gpu.state()),
    })
}

/// Version 1 counts what the driver keeps as used.
pub(crate) fn memory_v1(memory: &Memory) -> nvmlMemory_t {
    nvmlMemory_t {
        total: memory.total,
        free: memory.free,
        used: memory.used + memory.reserved,
    }
}

/// Version 2 tells it apart. The caller has set `version`.
pub(crate) fn memory_v2(memory: &Memory, version: u32) -> nvmlMemory_v2_t {
    nvmlMemory_v2_t {
        version,
        total: memory.total,
        reserved: memory.reserved,
        free: memory.free,
        used: memory.used,
    }
}

/// `NVML_VALUE_NOT_AVAILABLE` as a number of bytes.
const NOT_AVAILABLE: u64 = u64::MAX;
/// Samples for which a caller needs room, as drivers tell one that asks with no room. They write fewer.
pub(crate) const SAMPLES: u32 = 100;
/// Time from the sample of one process to that of the next, in microseconds.
const SAMPLE_DISTANCE_US: u64 = 10_000;

/// Samples of the use of the streaming multiprocessors after `last_seen`, in microseconds of the system's clock: one for each process
/// with use, each with a time of its own. Drivers do not tell them while MIG is on, and answer `NOT_FOUND` if there are none.
///
/// Drivers have added samples that mean nothing: of no process, of another time, with more than everything
/// (<https://github.com/Syllo/nvtop/issues/110>). So does this.
pub(crate) fn process_samples(gpu: &GpuCall, last_seen: u64) -> Answer<Vec<nvmlProcessUtilizationSample_t>> {
    if gpu.hardware()?.mig.is_some() {
        return Err(ReturnCode::NotSupported);
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = u64::try_from(now.as_micros()).unwrap_or(u64::MAX);
    let sample = |pid, time, percent| nvmlProcessUtilizationSample_t {
        pid,
        timeStamp: time,
        smUtil: percent,
        memUtil: percent / 2,
        encUtil: 0,
        decUtil: 0,
    };
    let busy = gpu.state().sm_percent.iter().filter(|(_, percent)| **percent > 0);
    let samples = busy.zip(0..).map(|((pid, percent), place)| {
        let time = now.saturating_sub(place * SAMPLE_DISTANCE_US);
        sample(*pid, time, (*percent).min(100))
    });
    let mut samples: Vec<_> = samples.filter(|sample| sample.timeStamp > last_seen).collect();
    let Some(pid) = samples.first().map(|sample| sample.pid) else {
        return Err(ReturnCode::NotFound);
    };
    samples.extend([sample(0, 0, 0), sample(pid, now, 1 << 31), sample(pid, 1, 100)]);
    samples.truncate(SAMPLES as usize);
    Ok(samples)
}

/// Bytes of memory that a process uses, as the lists of processes tell them.
fn process_memory(state: &GpuState, process: &GpuProcess) -> u64 {
    if state.hides_process_memory {
        NOT_AVAILABLE
    } else {
        process.memory_mib << 20
    }
}

/// Processes of one kind, in the form of versions 2 and 3: those of a GPU with its MIG devices, or of one MIG device.
pub(crate) fn processes(device: &Device, kind: ProcessKind) -> Answer<Vec<nvmlProcessInfo_v2_t>> {
    let state = device.gpu().state();
    let of_kind = of_kind(state, kind, device.instance_ids()?);
    Ok(of_kind
        .map(|process| {
            let (gpu_instance, compute_instance) = process.instance.unwrap_or((NO_INSTANCE, NO_INSTANCE));
            nvmlProcessInfo_v2_t {
                pid: process.pid,
                usedGpuMemory: process_memory(state, process),
                gpuInstanceId: gpu_instance,
                computeInstanceId: compute_instance,
            }
        })
        .collect())
}

/// Processes of one kind, in the form of version 1.
pub(crate) fn processes_v1(device: &Device, kind: ProcessKind) -> Answer<Vec<nvmlProcessInfo_v1_t>> {
    let state = device.gpu().state();
    let of_kind = of_kind(state, kind, device.instance_ids()?);
    Ok(of_kind
        .map(|process| nvmlProcessInfo_v1_t {
            pid: process.pid,
            usedGpuMemory: process_memory(state, process),
        })
        .collect())
}

/// Processes of one kind, in one MIG device or anywhere on the GPU.
fn of_kind(state: &GpuState, kind: ProcessKind, instance: Option<(u32, u32)>) -> impl Iterator<Item = &GpuProcess> {
    let processes = state.processes.iter();
    processes.filter(move |process| process.kind == kind && (instance.is_none() || process.instance == instance))
}

/// Degrees Celsius.
pub(crate) fn temperature(state: &GpuState) -> u32 {
    state.temperature_c.unwrap_or(IDLE_TEMPERATURE_C)
}

/// Share of the memory that is used, in percent: stands for the load of the memory bus.
fn memory_percent(gpu: &Gpu, state: &GpuState) -> u32 {
    let memory = memory(gpu, state);
    u32::try_from(memory.used * 100 / memory.total.max(1)).unwrap_or(100)
}

/// Limit of the board in milliwatts.
pub(crate) fn power_limit(gpu: &Gpu) -> u32 {
    gpu.board.power_limit_w * 1000
}

/// Milliwatts: a tenth of the limit when idle, and all of it at full load.
pub(crate) fn power(gpu: &Gpu, state: &GpuState) -> u32 {
    let idle = power_limit(gpu) / 10;
    idle + (power_limit(gpu) - idle) / 100 * state.utilization_percent.min(100)
}
