//! Event sets.

use std::{
    ffi::{c_uint, c_ulonglong},
    time::Duration,
};

use gpunode_scenario::ReturnCode;
use nvml_wrapper_sys::bindings::{nvmlEventData_t, nvmlReturn_t};

use super::{answer, on_gpu, pointer::Out};
use crate::{
    events::{EventDataV1, SUPPORTED_TYPES},
    handle::{DeviceHandle, EventSetHandle},
    library::{self, Answer},
};

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetSupportedEventTypes(device: DeviceHandle, types: Out<c_ulonglong>) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetSupportedEventTypes", device, |_| {
        types.set(SUPPORTED_TYPES)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlEventSetCreate(set: Out<EventSetHandle>) -> nvmlReturn_t {
    answer(|| {
        set.require()?;
        let node = library::node()?;
        set.set(node.event_sets().create(&node))
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlEventSetFree(set: EventSetHandle) -> nvmlReturn_t {
    answer(|| library::node()?.event_sets().free(set))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceRegisterEvents(device: DeviceHandle, types: c_ulonglong, set: EventSetHandle) -> nvmlReturn_t {
    answer(|| {
        let set = library::node()?.event_sets().get(set)?;
        let gpu = library::gpu("nvmlDeviceRegisterEvents", device);
        let registered = gpu.and_then(|gpu| set.register(&gpu, types));
        if registered == Err(ReturnCode::Unknown) {
            set.spoil();
        }
        registered
    })
}

fn wait(function: &str, set: EventSetHandle, timeout_ms: c_uint) -> Answer<nvmlEventData_t> {
    let node = library::node()?;
    let set = node.event_sets().get(set)?;
    set.wait(&node, function, Duration::from_millis(timeout_ms.into()))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlEventSetWait(set: EventSetHandle, data: Out<EventDataV1>, timeout_ms: c_uint) -> nvmlReturn_t {
    answer(|| {
        // Before the wait, which would take an event that then has nowhere to go.
        data.require()?;
        data.set(wait("nvmlEventSetWait", set, timeout_ms)?.into())
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlEventSetWait_v2(set: EventSetHandle, data: Out<nvmlEventData_t>, timeout_ms: c_uint) -> nvmlReturn_t {
    answer(|| {
        data.require()?;
        data.set(wait("nvmlEventSetWait_v2", set, timeout_ms)?)
    })
}
