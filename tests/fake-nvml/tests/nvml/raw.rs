//! Calls that nvml-wrapper does not have or gets wrong, as safe functions. `Err` is the return code.

#![expect(unsafe_code, reason = "these are C functions")]

use std::{mem, ptr};

use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlEventData_t, nvmlEventSet_t, nvmlFieldValue_t, nvmlGpuFabricInfo_v3_t, nvmlMemory_v2_t,
    nvmlPciInfo_t,
};

pub(crate) type Answer<T> = Result<T, u32>;

pub(crate) fn answer<T>(code: u32, value: T) -> Answer<T> {
    if code == 0 { Ok(value) } else { Err(code) }
}

pub(crate) fn handle(device: &Device) -> nvmlDevice_t {
    // SAFETY: the handle is used while `device` borrows the library.
    unsafe { device.handle() }
}

pub(crate) fn has_symbol(nvml: &Nvml, name: &str) -> bool {
    // SAFETY: the symbol is looked up and not used.
    unsafe { nvml.lib().__library.get::<*const ()>(name.as_bytes()).is_ok() }
}

pub(crate) fn init(nvml: &Nvml) -> Answer<()> {
    // SAFETY: takes nothing.
    answer(unsafe { nvml.lib().nvmlInit_v2() }, ())
}

pub(crate) fn shutdown(nvml: &Nvml) -> Answer<()> {
    // SAFETY: takes nothing.
    answer(unsafe { nvml.lib().nvmlShutdown() }, ())
}

/// `nvmlDeviceGetIndex` on a number that is no handle.
pub(crate) fn index_of_no_handle(nvml: &Nvml, address: usize) -> Answer<u32> {
    let mut index = 0;
    // SAFETY: the simulated library follows no handle.
    let code = unsafe {
        nvml.lib()
            .nvmlDeviceGetIndex(ptr::without_provenance_mut(address), &raw mut index)
    };
    answer(code, index)
}

pub(crate) fn name_into(nvml: &Nvml, device: &Device, length: u32) -> Answer<()> {
    let mut buffer = [0; 96];
    assert!(usize::try_from(length).is_ok_and(|length| length <= buffer.len()));
    // SAFETY: the buffer has at least that length.
    answer(
        unsafe {
            nvml.lib()
                .nvmlDeviceGetName(handle(device), buffer.as_mut_ptr(), length)
        },
        (),
    )
}

/// Calls that write through each kind of pointer, with NULL.
pub(crate) fn into_null(nvml: &Nvml, device: &Device) -> Vec<(&'static str, u32)> {
    let (lib, device) = (nvml.lib(), handle(device));
    let mut count = 4;
    // SAFETY: NULL is what these functions have to refuse; everything else is valid.
    unsafe {
        vec![
            ("nvmlDeviceGetCount_v2", lib.nvmlDeviceGetCount_v2(ptr::null_mut())),
            (
                "nvmlDeviceGetHandleByIndex_v2",
                lib.nvmlDeviceGetHandleByIndex_v2(0, ptr::null_mut()),
            ),
            (
                "nvmlDeviceGetHandleByUUID",
                lib.nvmlDeviceGetHandleByUUID(ptr::null(), ptr::null_mut()),
            ),
            ("nvmlDeviceGetName", lib.nvmlDeviceGetName(device, ptr::null_mut(), 96)),
            (
                "nvmlDeviceGetMemoryInfo_v2",
                lib.nvmlDeviceGetMemoryInfo_v2(device, ptr::null_mut()),
            ),
            (
                "nvmlDeviceGetCpuAffinity",
                lib.nvmlDeviceGetCpuAffinity(device, 4, ptr::null_mut()),
            ),
            (
                "nvmlDeviceGetFieldValues",
                lib.nvmlDeviceGetFieldValues(device, 1, ptr::null_mut()),
            ),
            (
                "nvmlDeviceGetComputeRunningProcesses_v3",
                lib.nvmlDeviceGetComputeRunningProcesses_v3(device, ptr::null_mut(), ptr::null_mut()),
            ),
            (
                "nvmlDeviceGetTopologyNearestGpus",
                lib.nvmlDeviceGetTopologyNearestGpus(device, 10, &raw mut count, ptr::null_mut()),
            ),
            ("nvmlEventSetCreate", lib.nvmlEventSetCreate(ptr::null_mut())),
            (
                "nvmlEventSetWait_v2",
                lib.nvmlEventSetWait_v2(ptr::null_mut(), ptr::null_mut(), 0),
            ),
        ]
    }
}

pub(crate) fn memory_v2(nvml: &Nvml, device: &Device, version: u32) -> Answer<nvmlMemory_v2_t> {
    let mut memory = nvmlMemory_v2_t {
        version,
        total: 0,
        reserved: 0,
        free: 0,
        used: 0,
    };
    // SAFETY: there is room for the structure.
    let code = unsafe { nvml.lib().nvmlDeviceGetMemoryInfo_v2(handle(device), &raw mut memory) };
    answer(code, memory)
}

pub(crate) fn fabric(nvml: &Nvml, device: &Device, version: u32) -> Answer<nvmlGpuFabricInfo_v3_t> {
    // SAFETY: zero is a value of each field.
    let mut info: nvmlGpuFabricInfo_v3_t = unsafe { mem::zeroed() };
    info.version = version;
    // SAFETY: there is room for the greatest version of the structure.
    let code = unsafe { nvml.lib().nvmlDeviceGetGpuFabricInfoV(handle(device), &raw mut info) };
    answer(code, info)
}

pub(crate) fn remote_device_type(nvml: &Nvml, device: &Device, link: u32) -> Answer<u32> {
    let mut kind = 0;
    // SAFETY: there is room for the value.
    let code = unsafe {
        nvml.lib()
            .nvmlDeviceGetNvLinkRemoteDeviceType(handle(device), link, &raw mut kind)
    };
    answer(code, kind)
}

pub(crate) fn remote_bus(nvml: &Nvml, device: &Device, link: u32) -> Answer<u32> {
    // SAFETY: zero is a value of each field.
    let mut pci: nvmlPciInfo_t = unsafe { mem::zeroed() };
    // SAFETY: there is room for the structure.
    let code = unsafe {
        nvml.lib()
            .nvmlDeviceGetNvLinkRemotePciInfo_v2(handle(device), link, &raw mut pci)
    };
    answer(code, pci.bus)
}

/// Correctable, uncorrectable, pending, failed.
pub(crate) fn remapped_rows(nvml: &Nvml, device: &Device) -> Answer<[u32; 4]> {
    let mut rows = [0; 4];
    let [correctable, uncorrectable, pending, failed] = &mut rows;
    // SAFETY: there is room for the values.
    let code = unsafe {
        nvml.lib()
            .nvmlDeviceGetRemappedRows(handle(device), correctable, uncorrectable, pending, failed)
    };
    answer(code, rows)
}

/// An unsigned field; the inner code is that of the field.
pub(crate) fn field(nvml: &Nvml, device: &Device, id: u32) -> Answer<Answer<u32>> {
    // SAFETY: zero is a value of each field.
    let mut value: nvmlFieldValue_t = unsafe { mem::zeroed() };
    value.fieldId = id;
    // SAFETY: there is room for one value.
    let code = unsafe { nvml.lib().nvmlDeviceGetFieldValues(handle(device), 1, &raw mut value) };
    // SAFETY: every bit pattern is an unsigned integer.
    answer(code, answer(value.nvmlReturn, unsafe { value.value.uiVal }))
}

/// An event set that shows all of an event.
pub(crate) struct RawEventSet<'nvml> {
    nvml: &'nvml Nvml,
    set: nvmlEventSet_t,
}

// SAFETY: NVML's handles are good in every thread.
unsafe impl Send for RawEventSet<'_> {}

impl<'nvml> RawEventSet<'nvml> {
    pub(crate) fn new(nvml: &'nvml Nvml) -> Self {
        let mut set = ptr::null_mut();
        // SAFETY: there is room for the handle.
        assert_eq!(unsafe { nvml.lib().nvmlEventSetCreate(&raw mut set) }, 0);
        RawEventSet { nvml, set }
    }

    pub(crate) fn register(&self, device: &Device, types: u64) -> Answer<()> {
        // SAFETY: the set is open.
        answer(
            unsafe {
                self.nvml
                    .lib()
                    .nvmlDeviceRegisterEvents(handle(device), types, self.set)
            },
            (),
        )
    }

    pub(crate) fn wait(&self, timeout_ms: u32) -> Answer<nvmlEventData_t> {
        // SAFETY: zero is a value of each field.
        let mut data: nvmlEventData_t = unsafe { mem::zeroed() };
        // SAFETY: the set is open, and there is room for the event.
        let code = unsafe { self.nvml.lib().nvmlEventSetWait_v2(self.set, &raw mut data, timeout_ms) };
        answer(code, data)
    }

    pub(crate) fn is_of(event: &nvmlEventData_t, device: &Device) -> bool {
        event.device == handle(device)
    }

    /// Frees the set, twice.
    pub(crate) fn free_twice(self) -> (Answer<()>, Answer<()>) {
        let lib = self.nvml.lib();
        // SAFETY: the simulated library refuses a set that is gone.
        let codes = unsafe { (lib.nvmlEventSetFree(self.set), lib.nvmlEventSetFree(self.set)) };
        (answer(codes.0, ()), answer(codes.1, ()))
    }
}
