//! Calls that nvml-wrapper does not have or gets wrong, as safe functions. `Err` is the return code.

#![expect(unsafe_code, reason = "these are C functions")]

use std::{ffi::CStr, mem, path::Path, ptr};

use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{
    nvmlComputeInstance_t, nvmlComputeInstanceInfo_t, nvmlDevice_t, nvmlEventData_t, nvmlEventSet_t, nvmlFieldValue_t,
    nvmlGpuFabricInfo_v3_t, nvmlGpuInstance_t, nvmlGpuInstanceInfo_t, nvmlGpuInstancePlacement_t,
    nvmlGpuInstanceProfileInfo_v2_t, nvmlMemory_v2_t, nvmlPciInfo_t,
};
use rustix::{
    mount::{MountFlags, MountPropagationFlags, mount_bind, mount_change, mount_remount},
    process::Uid,
    thread::{UnshareFlags, set_thread_res_uid, unshare_unsafe},
};

pub(crate) type Answer<T> = Result<T, u32>;

fn answer<T>(code: u32, value: T) -> Answer<T> {
    if code == 0 { Ok(value) } else { Err(code) }
}

fn handle(device: &Device) -> nvmlDevice_t {
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
    let code = unsafe { nvml.lib().nvmlDeviceGetIndex(ptr::without_provenance_mut(address), &raw mut index) };
    answer(code, index)
}

pub(crate) fn name_into(nvml: &Nvml, device: &Device, length: u32) -> Answer<()> {
    let mut buffer = [0; 96];
    assert!(usize::try_from(length).is_ok_and(|length| length <= buffer.len()));
    // SAFETY: the buffer has at least that length.
    answer(unsafe { nvml.lib().nvmlDeviceGetName(handle(device), buffer.as_mut_ptr(), length) }, ())
}

/// Calls that write through each kind of pointer, with NULL.
pub(crate) fn into_null(nvml: &Nvml, device: &Device) -> Vec<(&'static str, u32)> {
    let (lib, device) = (nvml.lib(), handle(device));
    let mut count = 4;
    // SAFETY: NULL is what these functions have to refuse; everything else is valid.
    unsafe {
        vec![
            ("nvmlDeviceGetCount_v2", lib.nvmlDeviceGetCount_v2(ptr::null_mut())),
            ("nvmlDeviceGetHandleByIndex_v2", lib.nvmlDeviceGetHandleByIndex_v2(0, ptr::null_mut())),
            ("nvmlDeviceGetHandleByUUID", lib.nvmlDeviceGetHandleByUUID(ptr::null(), ptr::null_mut())),
            ("nvmlDeviceGetName", lib.nvmlDeviceGetName(device, ptr::null_mut(), 96)),
            ("nvmlDeviceGetMemoryInfo_v2", lib.nvmlDeviceGetMemoryInfo_v2(device, ptr::null_mut())),
            ("nvmlDeviceGetCpuAffinity", lib.nvmlDeviceGetCpuAffinity(device, 4, ptr::null_mut())),
            ("nvmlDeviceGetFieldValues", lib.nvmlDeviceGetFieldValues(device, 1, ptr::null_mut())),
            (
                "nvmlDeviceGetComputeRunningProcesses_v3",
                lib.nvmlDeviceGetComputeRunningProcesses_v3(device, ptr::null_mut(), ptr::null_mut()),
            ),
            (
                "nvmlDeviceGetTopologyNearestGpus",
                lib.nvmlDeviceGetTopologyNearestGpus(device, 10, &raw mut count, ptr::null_mut()),
            ),
            ("nvmlEventSetCreate", lib.nvmlEventSetCreate(ptr::null_mut())),
            ("nvmlEventSetWait_v2", lib.nvmlEventSetWait_v2(ptr::null_mut(), ptr::null_mut(), 0)),
        ]
    }
}

pub(crate) fn memory_v2(nvml: &Nvml, device: &Device, version: u32) -> Answer<nvmlMemory_v2_t> {
    let mut memory = nvmlMemory_v2_t { version, total: 0, reserved: 0, free: 0, used: 0 };
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
    let code = unsafe { nvml.lib().nvmlDeviceGetNvLinkRemoteDeviceType(handle(device), link, &raw mut kind) };
    answer(code, kind)
}

pub(crate) fn remote_bus(nvml: &Nvml, device: &Device, link: u32) -> Answer<u32> {
    // SAFETY: zero is a value of each field.
    let mut pci: nvmlPciInfo_t = unsafe { mem::zeroed() };
    // SAFETY: there is room for the structure.
    let code = unsafe { nvml.lib().nvmlDeviceGetNvLinkRemotePciInfo_v2(handle(device), link, &raw mut pci) };
    answer(code, pci.bus)
}

/// Correctable, uncorrectable, pending, failed.
pub(crate) fn remapped_rows(nvml: &Nvml, device: &Device) -> Answer<[u32; 4]> {
    let mut rows = [0; 4];
    let [correctable, uncorrectable, pending, failed] = &mut rows;
    // SAFETY: there is room for the values.
    let code =
        unsafe { nvml.lib().nvmlDeviceGetRemappedRows(handle(device), correctable, uncorrectable, pending, failed) };
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

/// Ids of the GPU instance and the compute instance of a MIG device.
pub(crate) fn instance_ids(nvml: &Nvml, device: &Device) -> Answer<(u32, u32)> {
    let mut ids = (0, 0);
    // SAFETY: there is room for the values.
    let codes = unsafe {
        let lib = nvml.lib();
        (
            lib.nvmlDeviceGetGpuInstanceId(handle(device), &raw mut ids.0),
            lib.nvmlDeviceGetComputeInstanceId(handle(device), &raw mut ids.1),
        )
    };
    answer(codes.0.max(codes.1), ids)
}

/// Id, profile, first slice, slices.
pub(crate) type Instance = (u32, u32, u32, u32);

fn gpu_instance_info(nvml: &Nvml, device: &Device, instance: nvmlGpuInstance_t) -> Answer<Instance> {
    // SAFETY: zero is a value of each field.
    let mut info: nvmlGpuInstanceInfo_t = unsafe { mem::zeroed() };
    // SAFETY: there is room for the structure.
    let code = unsafe { nvml.lib().nvmlGpuInstanceGetInfo(instance, &raw mut info) };
    assert!(code != 0 || info.device == handle(device));
    answer(code, (info.id, info.profileId, info.placement.start, info.placement.size))
}

fn gpu_instance_handle(nvml: &Nvml, device: &Device, id: u32) -> Answer<nvmlGpuInstance_t> {
    let mut instance = ptr::null_mut();
    // SAFETY: there is room for the handle.
    let code = unsafe { nvml.lib().nvmlDeviceGetGpuInstanceById(handle(device), id, &raw mut instance) };
    answer(code, instance)
}

pub(crate) fn gpu_instance(nvml: &Nvml, device: &Device, id: u32) -> Answer<Instance> {
    gpu_instance_info(nvml, device, gpu_instance_handle(nvml, device, id)?)
}

pub(crate) fn gpu_instances(nvml: &Nvml, device: &Device, profile: u32) -> Answer<Vec<Instance>> {
    let mut instances = [ptr::null_mut(); 7];
    let mut count = 0;
    // SAFETY: no profile has more instances than there is room for.
    let code = unsafe {
        nvml.lib().nvmlDeviceGetGpuInstances(handle(device), profile, instances.as_mut_ptr(), &raw mut count)
    };
    let found = answer(code, instances.into_iter().take(count as usize))?;
    found.map(|instance| gpu_instance_info(nvml, device, instance)).collect()
}

fn compute_instance_info(nvml: &Nvml, compute: nvmlComputeInstance_t) -> Answer<Instance> {
    // SAFETY: zero is a value of each field.
    let mut info: nvmlComputeInstanceInfo_t = unsafe { mem::zeroed() };
    // SAFETY: there is room for the structure.
    let code = unsafe { nvml.lib().nvmlComputeInstanceGetInfo_v2(compute, &raw mut info) };
    answer(code, (info.id, info.profileId, info.placement.start, info.placement.size))
}

pub(crate) fn compute_instance(nvml: &Nvml, device: &Device, instance: u32, id: u32) -> Answer<Instance> {
    let instance = gpu_instance_handle(nvml, device, instance)?;
    let mut compute = ptr::null_mut();
    // SAFETY: there is room for the handle.
    let code = unsafe { nvml.lib().nvmlGpuInstanceGetComputeInstanceById(instance, id, &raw mut compute) };
    compute_instance_info(nvml, answer(code, compute)?)
}

pub(crate) fn compute_instances(nvml: &Nvml, device: &Device, instance: u32, profile: u32) -> Answer<Vec<Instance>> {
    let instance = gpu_instance_handle(nvml, device, instance)?;
    let mut instances = [ptr::null_mut(); 7];
    let mut count = 0;
    // SAFETY: no profile has more instances than there is room for.
    let code = unsafe {
        nvml.lib().nvmlGpuInstanceGetComputeInstances(instance, profile, instances.as_mut_ptr(), &raw mut count)
    };
    let found = answer(code, instances.into_iter().take(count as usize))?;
    found.map(|compute| compute_instance_info(nvml, compute)).collect()
}

/// First slices and sizes; asks for the count first, as others do.
pub(crate) fn possible_placements(nvml: &Nvml, device: &Device, profile: u32) -> Answer<Vec<(u32, u32)>> {
    let (lib, device) = (nvml.lib(), handle(device));
    let mut count = 0;
    // SAFETY: NULL asks for the count alone.
    let code =
        unsafe { lib.nvmlDeviceGetGpuInstancePossiblePlacements_v2(device, profile, ptr::null_mut(), &raw mut count) };
    let mut places = vec![nvmlGpuInstancePlacement_t { start: 0, size: 0 }; answer(code, count as usize)?];
    // SAFETY: there is room for as many as it said.
    let code = unsafe {
        lib.nvmlDeviceGetGpuInstancePossiblePlacements_v2(device, profile, places.as_mut_ptr(), &raw mut count)
    };
    answer(code, places.into_iter().map(|place| (place.start, place.size)).collect())
}

/// Name of a kind of GPU instance.
pub(crate) fn profile_name(nvml: &Nvml, device: &Device, kind: u32) -> Answer<String> {
    // SAFETY: zero is a value of each field.
    let mut info: nvmlGpuInstanceProfileInfo_v2_t = unsafe { mem::zeroed() };
    info.version = u32::try_from(size_of_val(&info)).unwrap() | 2 << 24;
    // SAFETY: there is room for version 2 of the structure.
    let code = unsafe { nvml.lib().nvmlDeviceGetGpuInstanceProfileInfoV(handle(device), kind, &raw mut info) };
    // SAFETY: the library has put a NUL at the end, and it was full of them before.
    let name = unsafe { CStr::from_ptr(info.name.as_ptr()) };
    answer(code, name.to_str().unwrap().to_owned())
}

/// Codes of creating a GPU instance and of destroying one.
pub(crate) fn create_and_destroy(nvml: &Nvml, device: &Device, id: u32) -> [u32; 2] {
    let instance = gpu_instance_handle(nvml, device, id).unwrap();
    let mut created = ptr::null_mut();
    // SAFETY: there is room for the handle.
    unsafe {
        [
            nvml.lib().nvmlDeviceCreateGpuInstance(handle(device), 19, &raw mut created),
            nvml.lib().nvmlGpuInstanceDestroy(instance),
        ]
    }
}

/// Makes `dir` read-only for this thread, which must be one of its own.
pub(crate) fn mount_read_only(dir: &Path) {
    // SAFETY: neither namespace nor root folder is relied on by anything in this thread.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.unwrap();
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
    mount_bind(dir, dir).unwrap();
    mount_remount(dir, MountFlags::BIND | MountFlags::RDONLY, "").unwrap();
}

/// Takes root's rights from this thread, which must be one of its own.
pub(crate) fn become_nobody() {
    let nobody = Uid::from_raw(65534);
    set_thread_res_uid(nobody, nobody, nobody).unwrap();
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
        answer(unsafe { self.nvml.lib().nvmlDeviceRegisterEvents(handle(device), types, self.set) }, ())
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
