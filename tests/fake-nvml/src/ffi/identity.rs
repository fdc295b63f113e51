//! What a GPU is: names, numbers, PCI, MIG.

use std::ffi::{c_int, c_uint};

use nvml_wrapper_sys::bindings::{nvmlPciInfo_t, nvmlPciInfoExt_v1_t, nvmlReturn_t};

use super::{
    on_gpu,
    pointer::{Out, OutText},
};
use crate::{
    handle::DeviceHandle,
    inventory::{self, PciInfoV1, PciInfoV2},
    mig,
};

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetIndex(device: DeviceHandle, index: Out<c_uint>) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetIndex", device, |gpu| index.set(gpu.hardware()?.index))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMinorNumber(device: DeviceHandle, minor: Out<c_uint>) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetMinorNumber", device, |gpu| minor.set(gpu.hardware()?.minor))
}

/// Place of the module on its base board, from 1.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetModuleId(device: DeviceHandle, module: Out<c_uint>) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetModuleId", device, |gpu| module.set(gpu.hardware()?.index + 1))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetName(device: DeviceHandle, name: OutText, length: c_uint) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetName", device, |gpu| name.set(length, &gpu.hardware()?.name))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetUUID(device: DeviceHandle, uuid: OutText, length: c_uint) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetUUID", device, |gpu| uuid.set(length, &gpu.hardware()?.uuid))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetSerial(device: DeviceHandle, serial: OutText, length: c_uint) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetSerial", device, |gpu| serial.set(length, &gpu.hardware()?.serial))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetBrand(device: DeviceHandle, brand: Out<c_uint>) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetBrand", device, |gpu| brand.set(gpu.hardware()?.board.brand() as u32))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetArchitecture(device: DeviceHandle, architecture: Out<c_uint>) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetArchitecture", device, |gpu| architecture.set(gpu.hardware()?.board.architecture as u32))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetCudaComputeCapability(
    device: DeviceHandle,
    major: Out<c_int>,
    minor: Out<c_int>,
) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetCudaComputeCapability", device, |gpu| {
        let capability = gpu.hardware()?.compute_capability;
        major.require()?;
        minor.set(capability.1.cast_signed())?;
        major.set(capability.0.cast_signed())
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetPciInfo(device: DeviceHandle, pci: Out<PciInfoV1>) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetPciInfo", device, |gpu| pci.set(inventory::gpu_pci_info(gpu.hardware()?)?.into()))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetPciInfo_v2(device: DeviceHandle, pci: Out<PciInfoV2>) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetPciInfo_v2", device, |gpu| pci.set(inventory::gpu_pci_info(gpu.hardware()?)?.into()))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetPciInfo_v3(device: DeviceHandle, pci: Out<nvmlPciInfo_t>) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetPciInfo_v3", device, |gpu| pci.set(inventory::gpu_pci_info(gpu.hardware()?)?))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetPciInfoExt(device: DeviceHandle, pci: Out<nvmlPciInfoExt_v1_t>) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetPciInfoExt", device, |gpu| {
        let version = pci.require_version(1)?;
        pci.set(inventory::gpu_pci_info_ext(gpu.hardware()?, version)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMigMode(device: DeviceHandle, current: Out<c_uint>, pending: Out<c_uint>) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetMigMode", device, |gpu| {
        let mode = mig::mode(gpu.hardware()?)?;
        current.require()?;
        pending.set(mode.1)?;
        current.set(mode.0)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMaxMigDeviceCount(device: DeviceHandle, count: Out<c_uint>) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetMaxMigDeviceCount", device, |gpu| count.set(mig::max_devices(gpu.hardware()?)))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceIsMigDeviceHandle(device: DeviceHandle, is_mig: Out<c_uint>) -> nvmlReturn_t {
    on_gpu("nvmlDeviceIsMigDeviceHandle", device, |_| is_mig.set(0))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMigDeviceHandleByIndex(
    device: DeviceHandle,
    index: c_uint,
    mig_device: Out<DeviceHandle>,
) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetMigDeviceHandleByIndex", device, |gpu| {
        mig_device.require()?;
        mig_device.set(mig::device(gpu.hardware()?, index)?)
    })
}
