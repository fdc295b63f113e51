//! Processes on a GPU or on a MIG device: three lists, each in three versions that differ in the structure alone; and how busy
//! processes are.

use std::ffi::{c_uint, c_ulonglong};

use gpunode_scenario::{ProcessKind, ReturnCode, Virtualization};
use nvml_wrapper_sys::bindings::{
    nvmlProcessInfo_v1_t, nvmlProcessInfo_v2_t, nvmlProcessUtilizationSample_t, nvmlReturn_t,
};

use super::{
    on_device, on_gpu,
    pointer::{Out, OutArray},
};
use crate::{
    handle::DeviceHandle,
    library::{Answer, Device},
    usage,
};

/// First driver with the third version of the lists.
const V3_SINCE: u32 = 510;

/// Answers an error where the board or the driver lacks the list.
fn require_list(device: &Device, function: &str, kind: ProcessKind) -> Answer {
    let gpu = device.gpu();
    if function.ends_with("_v3") {
        gpu.node().require_driver(V3_SINCE)?;
    }
    let is_host = gpu.node().scenario().virtualization == Virtualization::HostVgpu;
    if is_host && matches!(device, Device::Mig(_)) {
        return Err(ReturnCode::NotSupported);
    }
    if kind == ProcessKind::Graphics && !gpu.hardware()?.board.has_graphics() {
        return Err(ReturnCode::NotSupported);
    }
    Ok(())
}

/// A list in the form of version 1.
fn list_v1(
    function: &str,
    kind: ProcessKind,
    device: DeviceHandle,
    count: &Out<c_uint>,
    processes: &OutArray<nvmlProcessInfo_v1_t>,
) -> nvmlReturn_t {
    on_device(function, device, |device| {
        require_list(device, function, kind)?;
        processes.set_counted(count, &usage::processes_v1(device, kind)?)
    })
}

/// A list in the form of versions 2 and 3.
fn list(
    function: &str,
    kind: ProcessKind,
    device: DeviceHandle,
    count: &Out<c_uint>,
    processes: &OutArray<nvmlProcessInfo_v2_t>,
) -> nvmlReturn_t {
    on_device(function, device, |device| {
        require_list(device, function, kind)?;
        processes.set_counted(count, &usage::processes(device, kind)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetComputeRunningProcesses(
    device: DeviceHandle,
    count: Out<c_uint>,
    processes: OutArray<nvmlProcessInfo_v1_t>,
) -> nvmlReturn_t {
    let name = "nvmlDeviceGetComputeRunningProcesses";
    list_v1(name, ProcessKind::Compute, device, &count, &processes)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetComputeRunningProcesses_v2(
    device: DeviceHandle,
    count: Out<c_uint>,
    processes: OutArray<nvmlProcessInfo_v2_t>,
) -> nvmlReturn_t {
    let name = "nvmlDeviceGetComputeRunningProcesses_v2";
    list(name, ProcessKind::Compute, device, &count, &processes)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    device: DeviceHandle,
    count: Out<c_uint>,
    processes: OutArray<nvmlProcessInfo_v2_t>,
) -> nvmlReturn_t {
    let name = "nvmlDeviceGetComputeRunningProcesses_v3";
    list(name, ProcessKind::Compute, device, &count, &processes)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetGraphicsRunningProcesses(
    device: DeviceHandle,
    count: Out<c_uint>,
    processes: OutArray<nvmlProcessInfo_v1_t>,
) -> nvmlReturn_t {
    let name = "nvmlDeviceGetGraphicsRunningProcesses";
    list_v1(name, ProcessKind::Graphics, device, &count, &processes)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetGraphicsRunningProcesses_v2(
    device: DeviceHandle,
    count: Out<c_uint>,
    processes: OutArray<nvmlProcessInfo_v2_t>,
) -> nvmlReturn_t {
    let name = "nvmlDeviceGetGraphicsRunningProcesses_v2";
    list(name, ProcessKind::Graphics, device, &count, &processes)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetGraphicsRunningProcesses_v3(
    device: DeviceHandle,
    count: Out<c_uint>,
    processes: OutArray<nvmlProcessInfo_v2_t>,
) -> nvmlReturn_t {
    let name = "nvmlDeviceGetGraphicsRunningProcesses_v3";
    list(name, ProcessKind::Graphics, device, &count, &processes)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMPSComputeRunningProcesses(
    device: DeviceHandle,
    count: Out<c_uint>,
    processes: OutArray<nvmlProcessInfo_v1_t>,
) -> nvmlReturn_t {
    let name = "nvmlDeviceGetMPSComputeRunningProcesses";
    list_v1(name, ProcessKind::Mps, device, &count, &processes)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMPSComputeRunningProcesses_v2(
    device: DeviceHandle,
    count: Out<c_uint>,
    processes: OutArray<nvmlProcessInfo_v2_t>,
) -> nvmlReturn_t {
    let name = "nvmlDeviceGetMPSComputeRunningProcesses_v2";
    list(name, ProcessKind::Mps, device, &count, &processes)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMPSComputeRunningProcesses_v3(
    device: DeviceHandle,
    count: Out<c_uint>,
    processes: OutArray<nvmlProcessInfo_v2_t>,
) -> nvmlReturn_t {
    let name = "nvmlDeviceGetMPSComputeRunningProcesses_v3";
    list(name, ProcessKind::Mps, device, &count, &processes)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetProcessUtilization(
    device: DeviceHandle,
    samples: OutArray<nvmlProcessUtilizationSample_t>,
    count: Out<c_uint>,
    last_seen: c_ulonglong,
) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetProcessUtilization", device, |gpu| {
        let found = usage::process_samples(gpu, last_seen)?;
        if samples.is_null() {
            count.set(usage::SAMPLES)?;
            return Err(ReturnCode::InsufficientSize);
        }
        samples.set_counted(&count, &found)
    })
}
