//! Changes of the MIG mode, instances that come and go, and how many of them fit.

use std::ffi::c_uint;

use gpunode_scenario::ReturnCode;
use nvml_wrapper_sys::bindings::{nvmlComputeInstancePlacement_t, nvmlGpuInstancePlacement_t, nvmlReturn_t};

use super::{
    mig::{on_compute_instance, on_instance},
    on_gpu,
    pointer::Out,
};
use crate::{
    handle::{ComputeInstanceHandle, DeviceHandle, GpuInstanceHandle},
    mig, mig_changes,
};

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceSetMigMode(device: DeviceHandle, mode: c_uint, status: Out<nvmlReturn_t>) -> nvmlReturn_t {
    on_gpu("nvmlDeviceSetMigMode", device, |gpu| {
        status.require()?;
        status.set(mig_changes::set_mode(gpu, "nvmlDeviceSetMigMode", mode)?.code())
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetGpuInstanceRemainingCapacity(
    device: DeviceHandle,
    profile: c_uint,
    count: Out<c_uint>,
) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetGpuInstanceRemainingCapacity", device, |gpu| {
        let profile = mig::profile_by_id(gpu.hardware()?, profile)?;
        count.set(mig_changes::remaining(gpu, &profile)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceCreateGpuInstance(
    device: DeviceHandle,
    profile: c_uint,
    instance: Out<GpuInstanceHandle>,
) -> nvmlReturn_t {
    let name = "nvmlDeviceCreateGpuInstance";
    on_gpu(name, device, |gpu| {
        instance.require()?;
        instance.set(mig_changes::create_instance(gpu, name, profile, None)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceCreateGpuInstanceWithPlacement(
    device: DeviceHandle,
    profile: c_uint,
    placement: Out<nvmlGpuInstancePlacement_t>,
    instance: Out<GpuInstanceHandle>,
) -> nvmlReturn_t {
    let name = "nvmlDeviceCreateGpuInstanceWithPlacement";
    on_gpu(name, device, |gpu| {
        instance.require()?;
        let place = placement.get()?;
        let place = Some((place.start, place.size));
        instance.set(mig_changes::create_instance(gpu, name, profile, place)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlGpuInstanceDestroy(instance: GpuInstanceHandle) -> nvmlReturn_t {
    on_instance("nvmlGpuInstanceDestroy", instance, |gpu, instance| {
        mig_changes::destroy_instance(gpu, "nvmlGpuInstanceDestroy", instance)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlGpuInstanceGetComputeInstanceRemainingCapacity(
    instance: GpuInstanceHandle,
    profile: c_uint,
    count: Out<c_uint>,
) -> nvmlReturn_t {
    on_instance(
        "nvmlGpuInstanceGetComputeInstanceRemainingCapacity",
        instance,
        |gpu, instance| {
            let profile = mig::compute_profile(instance, profile)?;
            count.set(mig_changes::remaining_compute(gpu, instance, &profile)?)
        },
    )
}

#[unsafe(no_mangle)]
extern "C" fn nvmlGpuInstanceCreateComputeInstance(
    instance: GpuInstanceHandle,
    profile: c_uint,
    compute: Out<ComputeInstanceHandle>,
) -> nvmlReturn_t {
    let name = "nvmlGpuInstanceCreateComputeInstance";
    on_instance(name, instance, |gpu, instance| {
        compute.require()?;
        let profile = mig::compute_profile(instance, profile).map_err(|_| ReturnCode::InvalidArgument)?;
        compute.set(mig_changes::create_compute_instance(
            gpu, name, instance, &profile, None,
        )?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlGpuInstanceCreateComputeInstanceWithPlacement(
    instance: GpuInstanceHandle,
    profile: c_uint,
    placement: Out<nvmlComputeInstancePlacement_t>,
    compute: Out<ComputeInstanceHandle>,
) -> nvmlReturn_t {
    let name = "nvmlGpuInstanceCreateComputeInstanceWithPlacement";
    on_instance(name, instance, |gpu, instance| {
        compute.require()?;
        let place = placement.get()?;
        let place = Some((place.start, place.size));
        let profile = mig::compute_profile(instance, profile).map_err(|_| ReturnCode::InvalidArgument)?;
        compute.set(mig_changes::create_compute_instance(
            gpu, name, instance, &profile, place,
        )?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlComputeInstanceDestroy(compute: ComputeInstanceHandle) -> nvmlReturn_t {
    let name = "nvmlComputeInstanceDestroy";
    on_compute_instance(name, compute, |gpu, _, (instance, compute)| {
        mig_changes::destroy_compute_instance(gpu, name, instance, compute)
    })
}
