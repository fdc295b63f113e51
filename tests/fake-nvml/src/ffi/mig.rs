//! MIG mode, MIG devices, GPU and compute instances.

use std::ffi::c_uint;

use gpunode_scenario::{ComputeInstance, GpuInstance, ReturnCode};
use nvml_wrapper_sys::bindings::{
    nvmlComputeInstanceInfo_t, nvmlComputeInstancePlacement_t, nvmlDeviceAttributes_t, nvmlGpuInstanceInfo_t,
    nvmlGpuInstancePlacement_t, nvmlReturn_t,
};

use super::{
    answer, on_device, on_gpu, on_mig,
    pointer::{Out, OutArray},
};
use crate::{
    handle::{ComputeInstanceHandle, DeviceHandle, GpuInstanceHandle, compute_number, instance_number},
    library::{self, Answer, Device},
    mig,
    node::GpuCall,
};

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMigMode(device: DeviceHandle, current: Out<c_uint>, pending: Out<c_uint>) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetMigMode", device, |gpu| {
        let mode = mig::mode(gpu)?;
        current.require()?;
        pending.set(mode.1)?;
        current.set(mode.0)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMaxMigDeviceCount(device: DeviceHandle, count: Out<c_uint>) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetMaxMigDeviceCount", device, |gpu| {
        count.set(mig::max_devices(gpu.hardware()?))
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceIsMigDeviceHandle(device: DeviceHandle, is_mig: Out<c_uint>) -> nvmlReturn_t {
    on_device("nvmlDeviceIsMigDeviceHandle", device, |device| {
        is_mig.set(matches!(device, Device::Mig(_)).into())
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMigDeviceHandleByIndex(
    device: DeviceHandle,
    index: c_uint,
    mig_device: Out<DeviceHandle>,
) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetMigDeviceHandleByIndex", device, |gpu| {
        mig_device.require()?;
        let number = mig::device(gpu.hardware()?, index)?;
        match gpu.state().mig_failure(index, "nvmlDeviceGetMigDeviceHandleByIndex") {
            Some(code) => Err(code),
            None => mig_device.set(DeviceHandle::of_mig(gpu.index(), number)),
        }
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(
    mig_device: DeviceHandle,
    device: Out<DeviceHandle>,
) -> nvmlReturn_t {
    on_mig("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", mig_device, |mig| {
        device.set(mig.parent().handle())
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetGpuInstanceId(device: DeviceHandle, id: Out<c_uint>) -> nvmlReturn_t {
    on_mig("nvmlDeviceGetGpuInstanceId", device, |mig| {
        id.set(mig.instances()?.0.id)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetComputeInstanceId(device: DeviceHandle, id: Out<c_uint>) -> nvmlReturn_t {
    on_mig("nvmlDeviceGetComputeInstanceId", device, |mig| {
        id.set(mig.instances()?.1.id)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetAttributes(device: DeviceHandle, attributes: Out<nvmlDeviceAttributes_t>) -> nvmlReturn_t {
    on_mig("nvmlDeviceGetAttributes", device, |mig| {
        attributes.set(mig::attributes(mig)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetAttributes_v2(
    device: DeviceHandle,
    attributes: Out<nvmlDeviceAttributes_t>,
) -> nvmlReturn_t {
    on_mig("nvmlDeviceGetAttributes_v2", device, |mig| {
        attributes.set(mig::attributes(mig)?)
    })
}

/// Writes a list for which `nvml.h` lets the caller have room for all that could be; NULL asks for the length alone.
fn placements<T: Copy>(list: &OutArray<T>, count: &Out<c_uint>, values: &[T]) -> Answer {
    count.set(c_uint::try_from(values.len()).map_err(|_| ReturnCode::Unknown)?)?;
    if list.is_null() {
        Ok(())
    } else {
        list.set(values.len(), values)
    }
}

fn gpu_placements(
    gpu: &GpuCall,
    profile: c_uint,
    list: &OutArray<nvmlGpuInstancePlacement_t>,
    count: &Out<c_uint>,
) -> Answer {
    mig::tells_profiles(gpu)?;
    let profile = mig::profile_by_id(gpu.hardware()?, profile)?;
    let places = profile.starts.iter().map(|start| nvmlGpuInstancePlacement_t {
        start: *start,
        size: profile.size,
    });
    placements(list, count, &places.collect::<Vec<_>>())
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetGpuInstancePossiblePlacements(
    device: DeviceHandle,
    profile: c_uint,
    list: OutArray<nvmlGpuInstancePlacement_t>,
    count: Out<c_uint>,
) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetGpuInstancePossiblePlacements", device, |gpu| {
        gpu_placements(gpu, profile, &list, &count)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetGpuInstancePossiblePlacements_v2(
    device: DeviceHandle,
    profile: c_uint,
    list: OutArray<nvmlGpuInstancePlacement_t>,
    count: Out<c_uint>,
) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetGpuInstancePossiblePlacements_v2", device, |gpu| {
        gpu_placements(gpu, profile, &list, &count)
    })
}

/// Writes a list that the caller has room for, however long it may be.
fn whole_list<T: Copy>(list: &OutArray<T>, count: &Out<c_uint>, values: &[T]) -> Answer {
    list.at(0)?;
    count.set(c_uint::try_from(values.len()).map_err(|_| ReturnCode::Unknown)?)?;
    list.set(values.len(), values)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetGpuInstances(
    device: DeviceHandle,
    profile: c_uint,
    list: OutArray<GpuInstanceHandle>,
    count: Out<c_uint>,
) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetGpuInstances", device, |gpu| {
        let instances = mig::instances(gpu.hardware()?)?.iter();
        mig::profile_by_id(gpu.hardware()?, profile).map_err(|_| ReturnCode::InvalidArgument)?;
        let of_profile = instances.filter(|instance| instance.profile.id == profile);
        let handles: Vec<_> = of_profile.map(|instance| instance_handle(gpu, instance)).collect();
        whole_list(&list, &count, &handles)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetGpuInstanceById(
    device: DeviceHandle,
    id: c_uint,
    instance: Out<GpuInstanceHandle>,
) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetGpuInstanceById", device, |gpu| {
        let found = mig::instance(gpu.hardware()?, id)?;
        instance.set(instance_handle(gpu, found))
    })
}

fn instance_handle(gpu: &GpuCall, instance: &GpuInstance) -> GpuInstanceHandle {
    GpuInstanceHandle::of(gpu.index(), instance_number(instance.id, instance.serial))
}

fn compute_handle(gpu: &GpuCall, instance: &GpuInstance, compute: &ComputeInstance) -> ComputeInstanceHandle {
    let number = compute_number(instance.id, compute.id, compute.serial);
    ComputeInstanceHandle::of(gpu.index(), number)
}

/// A call of `function` on a GPU instance.
pub(super) fn on_instance(
    function: &str,
    instance: GpuInstanceHandle,
    body: impl FnOnce(&GpuCall, &GpuInstance) -> Answer,
) -> nvmlReturn_t {
    answer(|| {
        let (index, number) = instance.named().ok_or(ReturnCode::InvalidArgument)?;
        let gpu = library::gpu_at(function, index)?;
        body(&gpu, mig::numbered_instance(gpu.hardware()?, number)?)
    })
}

/// A call of `function` on a compute instance: `body` takes the GPU, the handle of the MIG device, and the instances.
pub(super) fn on_compute_instance(
    function: &str,
    compute: ComputeInstanceHandle,
    body: impl FnOnce(&GpuCall, DeviceHandle, (&GpuInstance, &ComputeInstance)) -> Answer,
) -> nvmlReturn_t {
    answer(|| {
        let (index, number) = compute.named().ok_or(ReturnCode::InvalidArgument)?;
        let gpu = library::gpu_at(function, index)?;
        let found = gpu
            .hardware()?
            .mig_devices()
            .find(|(instance, compute)| compute_number(instance.id, compute.id, compute.serial) == number)
            .ok_or(ReturnCode::InvalidArgument)?;
        body(&gpu, DeviceHandle::of_mig(index, number), found)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlGpuInstanceGetInfo(instance: GpuInstanceHandle, info: Out<nvmlGpuInstanceInfo_t>) -> nvmlReturn_t {
    on_instance("nvmlGpuInstanceGetInfo", instance, |gpu, instance| {
        info.set(nvmlGpuInstanceInfo_t {
            device: gpu.handle().to_c(),
            id: instance.id,
            profileId: instance.profile.id,
            placement: nvmlGpuInstancePlacement_t {
                start: instance.start,
                size: instance.profile.size,
            },
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlGpuInstanceGetComputeInstancePossiblePlacements(
    instance: GpuInstanceHandle,
    profile: c_uint,
    list: OutArray<nvmlComputeInstancePlacement_t>,
    count: Out<c_uint>,
) -> nvmlReturn_t {
    on_instance(
        "nvmlGpuInstanceGetComputeInstancePossiblePlacements",
        instance,
        |_, instance| {
            let profile = mig::compute_profile(instance, profile)?;
            let places = profile.starts.iter();
            let places = places.map(|start| nvmlComputeInstancePlacement_t {
                start: *start,
                size: profile.slices,
            });
            placements(&list, &count, &places.collect::<Vec<_>>())
        },
    )
}

#[unsafe(no_mangle)]
extern "C" fn nvmlGpuInstanceGetComputeInstances(
    instance: GpuInstanceHandle,
    profile: c_uint,
    list: OutArray<ComputeInstanceHandle>,
    count: Out<c_uint>,
) -> nvmlReturn_t {
    on_instance("nvmlGpuInstanceGetComputeInstances", instance, |gpu, instance| {
        mig::compute_profile(instance, profile)?;
        let of_profile = instance
            .compute_instances
            .iter()
            .filter(|compute| compute.profile.kind == profile);
        let handles = of_profile.map(|compute| compute_handle(gpu, instance, compute));
        whole_list(&list, &count, &handles.collect::<Vec<_>>())
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlGpuInstanceGetComputeInstanceById(
    instance: GpuInstanceHandle,
    id: c_uint,
    compute: Out<ComputeInstanceHandle>,
) -> nvmlReturn_t {
    on_instance("nvmlGpuInstanceGetComputeInstanceById", instance, |gpu, instance| {
        let found = mig::compute_instance(instance, id)?;
        compute.set(compute_handle(gpu, instance, found))
    })
}

fn compute_instance_info(
    gpu: &GpuCall,
    device: DeviceHandle,
    (instance, compute): (&GpuInstance, &ComputeInstance),
) -> nvmlComputeInstanceInfo_t {
    nvmlComputeInstanceInfo_t {
        device: device.to_c(),
        gpuInstance: instance_handle(gpu, instance).to_c(),
        id: compute.id,
        profileId: compute.profile.kind,
        placement: nvmlComputeInstancePlacement_t {
            start: compute.start,
            size: compute.profile.slices,
        },
    }
}

/// Without a version the device is the GPU.
#[unsafe(no_mangle)]
extern "C" fn nvmlComputeInstanceGetInfo(
    compute: ComputeInstanceHandle,
    info: Out<nvmlComputeInstanceInfo_t>,
) -> nvmlReturn_t {
    on_compute_instance("nvmlComputeInstanceGetInfo", compute, |gpu, _, instances| {
        info.set(compute_instance_info(gpu, gpu.handle(), instances))
    })
}

/// With one it is the MIG device.
#[unsafe(no_mangle)]
extern "C" fn nvmlComputeInstanceGetInfo_v2(
    compute: ComputeInstanceHandle,
    info: Out<nvmlComputeInstanceInfo_t>,
) -> nvmlReturn_t {
    on_compute_instance(
        "nvmlComputeInstanceGetInfo_v2",
        compute,
        |gpu, mig_device, instances| info.set(compute_instance_info(gpu, mig_device, instances)),
    )
}
