//! Identity of a GPU: names, numbers, PCI.

use std::ffi::{c_int, c_uint};

use nvml_wrapper_sys::bindings::{nvmlPciInfo_t, nvmlPciInfoExt_v1_t, nvmlReturn_t};

use super::{
    on_device, on_gpu,
    pointer::{Out, OutText},
};
use crate::{
    handle::DeviceHandle,
    inventory::{self, PciInfoV1, PciInfoV2},
    library::{Answer, Device},
    mig,
};
use gpunode_scenario::ReturnCode;

/// The index of a MIG device is that within its GPU.
fn index(device: &Device) -> Answer<c_uint> {
    match device {
        Device::Gpu(gpu) => gpu.node().nvml_index(gpu.index()),
        Device::Mig(mig) => Some(mig.place()),
    }
    .and_then(|index| c_uint::try_from(index).ok())
    .ok_or(ReturnCode::Unknown)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetIndex(device: DeviceHandle, index: Out<c_uint>) -> nvmlReturn_t {
    on_device("nvmlDeviceGetIndex", device, |device| index.set(self::index(device)?))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMinorNumber(device: DeviceHandle, minor: Out<c_uint>) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetMinorNumber", device, |gpu| {
        minor.set(gpu.hardware()?.minor)
    })
}

/// Place of the module on its base board, from 1.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetModuleId(device: DeviceHandle, module: Out<c_uint>) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetModuleId", device, |gpu| {
        module.set(gpu.hardware()?.index + 1)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetName(device: DeviceHandle, name: OutText, length: c_uint) -> nvmlReturn_t {
    on_device("nvmlDeviceGetName", device, |device| match device {
        Device::Gpu(gpu) => name.set(length, &gpu.hardware()?.name),
        Device::Mig(mig) => name.set(length, &mig::name(mig)?),
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetUUID(device: DeviceHandle, uuid: OutText, length: c_uint) -> nvmlReturn_t {
    on_device("nvmlDeviceGetUUID", device, |device| match device {
        Device::Gpu(gpu) => uuid.set(length, &gpu.hardware()?.uuid),
        Device::Mig(mig) => uuid.set(length, &mig.instances()?.1.uuid),
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetSerial(device: DeviceHandle, serial: OutText, length: c_uint) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetSerial", device, |gpu| {
        serial.set(length, &gpu.hardware()?.serial)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetVirtualizationMode(device: DeviceHandle, mode: Out<c_uint>) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetVirtualizationMode", device, |gpu| {
        mode.set(gpu.node().scenario().virtualization as u32)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetBrand(device: DeviceHandle, brand: Out<c_uint>) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetBrand", device, |gpu| {
        brand.set(gpu.hardware()?.board.brand() as u32)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetArchitecture(device: DeviceHandle, architecture: Out<c_uint>) -> nvmlReturn_t {
    on_device("nvmlDeviceGetArchitecture", device, |device| {
        architecture.set(device.gpu().hardware()?.board.architecture as u32)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetCudaComputeCapability(
    device: DeviceHandle,
    major: Out<c_int>,
    minor: Out<c_int>,
) -> nvmlReturn_t {
    on_device("nvmlDeviceGetCudaComputeCapability", device, |device| {
        let capability = device.gpu().hardware()?.compute_capability;
        major.require()?;
        minor.set(capability.1.cast_signed())?;
        major.set(capability.0.cast_signed())
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetPciInfo(device: DeviceHandle, pci: Out<PciInfoV1>) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetPciInfo", device, |gpu| {
        pci.set(inventory::gpu_pci_info(gpu.hardware()?)?.into())
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetPciInfo_v2(device: DeviceHandle, pci: Out<PciInfoV2>) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetPciInfo_v2", device, |gpu| {
        pci.set(inventory::gpu_pci_info(gpu.hardware()?)?.into())
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetPciInfo_v3(device: DeviceHandle, pci: Out<nvmlPciInfo_t>) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetPciInfo_v3", device, |gpu| {
        pci.set(inventory::gpu_pci_info(gpu.hardware()?)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetPciInfoExt(device: DeviceHandle, pci: Out<nvmlPciInfoExt_v1_t>) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetPciInfoExt", device, |gpu| {
        let version = pci.require_version(1)?;
        pci.set(inventory::gpu_pci_info_ext(gpu.hardware()?, version)?)
    })
}
