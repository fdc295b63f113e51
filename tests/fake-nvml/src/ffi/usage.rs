//! Memory, load, power, and the modes that programs set.

use std::ffi::c_uint;

use gpunode_scenario::ReturnCode;
use nvml_wrapper_sys::bindings::{
    nvmlComputeMode_enum_NVML_COMPUTEMODE_COUNT as COMPUTE_MODES, nvmlMemory_t, nvmlMemory_v2_t, nvmlReturn_t,
    nvmlUtilization_t,
};

use super::{on_gpu, pointer::Out};
use crate::{handle::DeviceHandle, usage};

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMemoryInfo(device: DeviceHandle, memory: Out<nvmlMemory_t>) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetMemoryInfo", device, |gpu| memory.set(usage::memory_v1(gpu.hardware()?, gpu.state())))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMemoryInfo_v2(device: DeviceHandle, memory: Out<nvmlMemory_v2_t>) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetMemoryInfo_v2", device, |gpu| {
        let version = memory.require_version(2)?;
        memory.set(usage::memory_v2(gpu.hardware()?, gpu.state(), version))
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetUtilizationRates(device: DeviceHandle, rates: Out<nvmlUtilization_t>) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetUtilizationRates", device, |gpu| {
        rates.set(nvmlUtilization_t {
            gpu: gpu.state().utilization_percent.min(100),
            memory: usage::memory_percent(gpu.hardware()?, gpu.state()),
        })
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
    on_gpu("nvmlDeviceGetPowerUsage", device, |gpu| power.set(usage::power(gpu.hardware()?, gpu.state())))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetPowerManagementLimit(device: DeviceHandle, limit: Out<c_uint>) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetPowerManagementLimit", device, |gpu| limit.set(usage::power_limit(gpu.hardware()?)))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetEnforcedPowerLimit(device: DeviceHandle, limit: Out<c_uint>) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetEnforcedPowerLimit", device, |gpu| limit.set(usage::power_limit(gpu.hardware()?)))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetComputeMode(device: DeviceHandle, mode: Out<c_uint>) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetComputeMode", device, |gpu| mode.set(gpu.modes()?.compute()))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceSetComputeMode(device: DeviceHandle, mode: c_uint) -> nvmlReturn_t {
    on_gpu("nvmlDeviceSetComputeMode", device, |gpu| {
        if mode >= COMPUTE_MODES {
            return Err(ReturnCode::InvalidArgument);
        }
        gpu.modes()?.set_compute(mode);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetPersistenceMode(device: DeviceHandle, mode: Out<c_uint>) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetPersistenceMode", device, |gpu| mode.set(gpu.modes()?.persistence()))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceSetPersistenceMode(device: DeviceHandle, mode: c_uint) -> nvmlReturn_t {
    on_gpu("nvmlDeviceSetPersistenceMode", device, |gpu| {
        // nvmlEnableState_t.
        if mode > 1 {
            return Err(ReturnCode::InvalidArgument);
        }
        gpu.modes()?.set_persistence(mode);
        Ok(())
    })
}
