//! Calls about MIG that nvml-wrapper does not have or gets wrong, as safe functions.

#![expect(unsafe_code, reason = "these are C functions")]

use std::{ffi::CStr, mem, ptr};

use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{
    nvmlComputeInstance_t, nvmlComputeInstanceInfo_t, nvmlComputeInstancePlacement_t, nvmlGpuInstance_t,
    nvmlGpuInstanceInfo_t, nvmlGpuInstancePlacement_t, nvmlGpuInstanceProfileInfo_v2_t,
};

use crate::raw::{Answer, answer, handle};

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
    answer(
        code,
        (info.id, info.profileId, info.placement.start, info.placement.size),
    )
}

pub(crate) fn gpu_instance_handle(nvml: &Nvml, device: &Device, id: u32) -> Answer<nvmlGpuInstance_t> {
    let mut instance = ptr::null_mut();
    // SAFETY: there is room for the handle.
    let code = unsafe {
        nvml.lib()
            .nvmlDeviceGetGpuInstanceById(handle(device), id, &raw mut instance)
    };
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
        nvml.lib()
            .nvmlDeviceGetGpuInstances(handle(device), profile, instances.as_mut_ptr(), &raw mut count)
    };
    let found = answer(code, instances.into_iter().take(count as usize))?;
    found
        .map(|instance| gpu_instance_info(nvml, device, instance))
        .collect()
}

fn compute_instance_info(nvml: &Nvml, compute: nvmlComputeInstance_t) -> Answer<Instance> {
    // SAFETY: zero is a value of each field.
    let mut info: nvmlComputeInstanceInfo_t = unsafe { mem::zeroed() };
    // SAFETY: there is room for the structure.
    let code = unsafe { nvml.lib().nvmlComputeInstanceGetInfo_v2(compute, &raw mut info) };
    answer(
        code,
        (info.id, info.profileId, info.placement.start, info.placement.size),
    )
}

pub(crate) fn compute_instance_handle(
    nvml: &Nvml,
    device: &Device,
    instance: u32,
    id: u32,
) -> Answer<nvmlComputeInstance_t> {
    let instance = gpu_instance_handle(nvml, device, instance)?;
    let mut compute = ptr::null_mut();
    // SAFETY: there is room for the handle.
    let code = unsafe {
        nvml.lib()
            .nvmlGpuInstanceGetComputeInstanceById(instance, id, &raw mut compute)
    };
    answer(code, compute)
}

pub(crate) fn compute_instance(nvml: &Nvml, device: &Device, instance: u32, id: u32) -> Answer<Instance> {
    compute_instance_info(nvml, compute_instance_handle(nvml, device, instance, id)?)
}

pub(crate) fn compute_instances(nvml: &Nvml, device: &Device, instance: u32, profile: u32) -> Answer<Vec<Instance>> {
    let instance = gpu_instance_handle(nvml, device, instance)?;
    let mut instances = [ptr::null_mut(); 7];
    let mut count = 0;
    // SAFETY: no profile has more instances than there is room for.
    let code = unsafe {
        nvml.lib()
            .nvmlGpuInstanceGetComputeInstances(instance, profile, instances.as_mut_ptr(), &raw mut count)
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
    answer(
        code,
        places.into_iter().map(|place| (place.start, place.size)).collect(),
    )
}

/// Name of a kind of GPU instance.
pub(crate) fn profile_name(nvml: &Nvml, device: &Device, kind: u32) -> Answer<String> {
    // SAFETY: zero is a value of each field.
    let mut info: nvmlGpuInstanceProfileInfo_v2_t = unsafe { mem::zeroed() };
    info.version = u32::try_from(size_of_val(&info)).unwrap() | 2 << 24;
    // SAFETY: there is room for version 2 of the structure.
    let code = unsafe {
        nvml.lib()
            .nvmlDeviceGetGpuInstanceProfileInfoV(handle(device), kind, &raw mut info)
    };
    // SAFETY: the library has put a NUL at the end, and it was full of them before.
    let name = unsafe { CStr::from_ptr(info.name.as_ptr()) };
    answer(code, name.to_str().unwrap().to_owned())
}

/// Creates a GPU instance of the profile with an id, perhaps at `(first slice, slices)`.
pub(crate) fn create(
    nvml: &Nvml,
    device: &Device,
    profile: u32,
    place: Option<(u32, u32)>,
) -> Answer<nvmlGpuInstance_t> {
    let (lib, device) = (nvml.lib(), handle(device));
    let mut instance = ptr::null_mut();
    let placement = place.map(|(start, size)| nvmlGpuInstancePlacement_t { start, size });
    // SAFETY: there is room for the handle, and the placement is there.
    let code = unsafe {
        match &placement {
            Some(placement) => {
                lib.nvmlDeviceCreateGpuInstanceWithPlacement(device, profile, placement, &raw mut instance)
            }
            None => lib.nvmlDeviceCreateGpuInstance(device, profile, &raw mut instance),
        }
    };
    answer(code, instance)
}

pub(crate) fn destroy(nvml: &Nvml, instance: nvmlGpuInstance_t) -> Answer<()> {
    // SAFETY: the simulated library refuses a handle of what is gone.
    answer(unsafe { nvml.lib().nvmlGpuInstanceDestroy(instance) }, ())
}

/// Creates a compute instance of the profile with an id, perhaps at `(first slice, slices)`.
pub(crate) fn create_compute(
    nvml: &Nvml,
    instance: nvmlGpuInstance_t,
    profile: u32,
    place: Option<(u32, u32)>,
) -> Answer<nvmlComputeInstance_t> {
    let lib = nvml.lib();
    let mut compute = ptr::null_mut();
    let placement = place.map(|(start, size)| nvmlComputeInstancePlacement_t { start, size });
    // SAFETY: there is room for the handle, and the placement is there.
    let code = unsafe {
        match &placement {
            Some(placement) => {
                lib.nvmlGpuInstanceCreateComputeInstanceWithPlacement(instance, profile, placement, &raw mut compute)
            }
            None => lib.nvmlGpuInstanceCreateComputeInstance(instance, profile, &raw mut compute),
        }
    };
    answer(code, compute)
}

pub(crate) fn destroy_compute(nvml: &Nvml, compute: nvmlComputeInstance_t) -> Answer<()> {
    // SAFETY: the simulated library refuses a handle of what is gone.
    answer(unsafe { nvml.lib().nvmlComputeInstanceDestroy(compute) }, ())
}

/// The number of GPU instances of a profile that still fit.
pub(crate) fn remaining(nvml: &Nvml, device: &Device, profile: u32) -> Answer<u32> {
    let mut count = 0;
    // SAFETY: there is room for the value.
    let code = unsafe {
        nvml.lib()
            .nvmlDeviceGetGpuInstanceRemainingCapacity(handle(device), profile, &raw mut count)
    };
    answer(code, count)
}

/// The number of compute instances of a profile that still fit.
pub(crate) fn remaining_compute(nvml: &Nvml, instance: nvmlGpuInstance_t, profile: u32) -> Answer<u32> {
    let mut count = 0;
    // SAFETY: there is room for the value.
    let code = unsafe {
        nvml.lib()
            .nvmlGpuInstanceGetComputeInstanceRemainingCapacity(instance, profile, &raw mut count)
    };
    answer(code, count)
}

/// `nvmlGpuVirtualizationMode_t` of a GPU.
pub(crate) fn virtualization(nvml: &Nvml, device: &Device) -> Answer<u32> {
    let mut mode = 0;
    // SAFETY: there is room for the value.
    let code = unsafe {
        nvml.lib()
            .nvmlDeviceGetVirtualizationMode(handle(device), &raw mut mode)
    };
    answer(code, mode)
}
