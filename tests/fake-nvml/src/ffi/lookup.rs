//! Number of GPUs, and their handles.
//!
//! A lost GPU is counted, unless it is `unlisted`, and has no handle: its index and address answer `GPU_IS_LOST` or its
//! `lostCode`, and UUIDs and serial numbers answer so for every GPU.

use std::ffi::c_uint;

use gpunode_scenario::ReturnCode;
use nvml_wrapper_sys::bindings::nvmlReturn_t;

use super::{
    answer,
    pointer::{InText, Out},
};
use crate::{
    handle::DeviceHandle,
    inventory,
    library::{self, Answer},
};

fn count(count: &Out<c_uint>) -> Answer {
    let gpus = library::node()?.listed().count();
    count.set(c_uint::try_from(gpus).map_err(|_| ReturnCode::Unknown)?)
}

fn by_index(function: &str, index: c_uint, device: &Out<DeviceHandle>) -> Answer {
    device.require()?;
    let index = usize::try_from(index).map_err(|_| ReturnCode::InvalidArgument)?;
    let node = library::node()?;
    let (place, _) = node.listed().nth(index).ok_or(ReturnCode::InvalidArgument)?;
    device.set(library::gpu_at(function, place)?.handle())
}

fn by_address(function: &str, address: &InText, device: &Out<DeviceHandle>) -> Answer {
    device.require()?;
    let place = inventory::find_by_address(&*library::node()?, &address.get()?)?;
    device.set(library::gpu_at(function, place)?.handle())
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetCount(total: Out<c_uint>) -> nvmlReturn_t {
    answer(|| count(&total))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetCount_v2(total: Out<c_uint>) -> nvmlReturn_t {
    answer(|| count(&total))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetHandleByIndex(index: c_uint, device: Out<DeviceHandle>) -> nvmlReturn_t {
    answer(|| by_index("nvmlDeviceGetHandleByIndex", index, &device))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: Out<DeviceHandle>) -> nvmlReturn_t {
    answer(|| by_index("nvmlDeviceGetHandleByIndex_v2", index, &device))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetHandleByPciBusId(address: InText, device: Out<DeviceHandle>) -> nvmlReturn_t {
    answer(|| by_address("nvmlDeviceGetHandleByPciBusId", &address, &device))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(address: InText, device: Out<DeviceHandle>) -> nvmlReturn_t {
    answer(|| by_address("nvmlDeviceGetHandleByPciBusId_v2", &address, &device))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetHandleByUUID(uuid: InText, device: Out<DeviceHandle>) -> nvmlReturn_t {
    answer(|| {
        device.require()?;
        let uuid = uuid.get()?;
        inventory::search(&*library::node()?)?;
        if let Some(handle) = inventory::find_mig(&*library::node()?, &uuid)? {
            return library::device("nvmlDeviceGetHandleByUUID", handle).and_then(|_| device.set(handle));
        }
        let place = inventory::find(&*library::node()?, |gpu| gpu.uuid == uuid)?;
        device.set(library::gpu_at("nvmlDeviceGetHandleByUUID", place)?.handle())
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetHandleBySerial(serial: InText, device: Out<DeviceHandle>) -> nvmlReturn_t {
    answer(|| {
        device.require()?;
        let serial = serial.get()?;
        inventory::search(&*library::node()?)?;
        let place = inventory::find(&*library::node()?, |gpu| gpu.serial == serial)?;
        device.set(library::gpu_at("nvmlDeviceGetHandleBySerial", place)?.handle())
    })
}
