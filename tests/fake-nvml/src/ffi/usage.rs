//! Memory, load, power, and the modes that programs set.

use std::ffi::c_uint;

use gpunode_scenario::ReturnCode;
use nvml_wrapper_sys::bindings::{nvmlMemory_t, nvmlMemory_v2_t, nvmlReturn_t, nvmlUtilization_t};

use super::{on_device, on_gpu, pointer::Out};
use crate::{handle::DeviceHandle, library::Device, modes, usage};

/// First driver with the second version of memory.
const MEMORY_V2_SINCE: u32 = 510;

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMemoryInfo(device: DeviceHandle, memory: Out<nvmlMemory_t>) -> nvmlReturn_t {
    on_device("nvmlDeviceGetMemoryInfo", device, |device| {
        memory.set(usage::memory_v1(&usage::device_memory(device)?))
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMemoryInfo_v2(device: DeviceHandle, memory: Out<nvmlMemory_v2_t>) -> nvmlReturn_t {
    on_device("nvmlDeviceGetMemoryInfo_v2", device, |device| {
        device.gpu().node().require_driver(MEMORY_V2_SINCE)?;
        let version = memory.require_version(2)?;
        memory.set(usage::memory_v2(&usage::device_memory(device)?, version))
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetUtilizationRates(device: DeviceHandle, rates: Out<nvmlUtilization_t>) -> nvmlReturn_t {
    on_device("nvmlDeviceGetUtilizationRates", device, |device| match device {
        Device::Gpu(gpu) => rates.set(usage::utilization(gpu)?),
        Device::Mig(_) => Err(ReturnCode::NotSupported),
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetTemperature(device: DeviceHandle, sensor: c_uint, temperature: Out<c_uint>) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetTemperature", device, |gpu| {
        // NVML_TEMPERATURE_GPU is the only sensor.
        if sensor != 0 {
            return Err(ReturnCode::InvalidArgument);
        }
        temperature.set(usage::temperature(gpu.state()))
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetPowerUsage(device: DeviceHandle, power: Out<c_uint>) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetPowerUsage", device, |gpu| {
        power.set(usage::power(gpu.hardware()?, gpu.state()))
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetPowerManagementLimit(device: DeviceHandle, limit: Out<c_uint>) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetPowerManagementLimit", device, |gpu| {
        limit.set(usage::power_limit(gpu.hardware()?))
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetEnforcedPowerLimit(device: DeviceHandle, limit: Out<c_uint>) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetEnforcedPowerLimit", device, |gpu| {
        limit.set(usage::power_limit(gpu.hardware()?))
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetComputeMode(device: DeviceHandle, mode: Out<c_uint>) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetComputeMode", device, |gpu| {
        mode.set(modes::compute(gpu)? as u32)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceSetComputeMode(device: DeviceHandle, mode: c_uint) -> nvmlReturn_t {
    on_gpu("nvmlDeviceSetComputeMode", device, |gpu| modes::set_compute(gpu, mode))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetPersistenceMode(device: DeviceHandle, mode: Out<c_uint>) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetPersistenceMode", device, |gpu| {
        mode.set(modes::persistence(gpu)?.into())
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceSetPersistenceMode(device: DeviceHandle, mode: c_uint) -> nvmlReturn_t {
    on_gpu("nvmlDeviceSetPersistenceMode", device, |gpu| {
        modes::set_persistence(gpu, mode)
    })
}
