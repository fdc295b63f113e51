//! Kinds of GPU and compute instances, each in three versions of the structure.

use std::ffi::{c_char, c_uint};

use gpunode_scenario::{ComputeProfile, GpuInstance, MigProfile};
use nvml_wrapper_sys::bindings::{
    nvmlComputeInstanceProfileInfo_t, nvmlComputeInstanceProfileInfo_v2_t, nvmlComputeInstanceProfileInfo_v3_t,
    nvmlGpuInstanceProfileInfo_t, nvmlGpuInstanceProfileInfo_v2_t, nvmlGpuInstanceProfileInfo_v3_t, nvmlReturn_t,
};

use super::{
    mig::on_instance,
    on_gpu,
    pointer::{Out, struct_version},
};
use crate::{
    handle::{DeviceHandle, GpuInstanceHandle},
    inventory::c_string,
    library::Answer,
    mig,
};

/// The only engine profile: engines are shared.
const SHARED_ENGINES: c_uint = 0;

fn name(profile: &str) -> [c_char; 96] {
    c_string(&format!("MIG {profile}"))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetGpuInstanceProfileInfo(
    device: DeviceHandle,
    profile: c_uint,
    info: Out<nvmlGpuInstanceProfileInfo_t>,
) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetGpuInstanceProfileInfo", device, |gpu| {
        mig::tells_profiles(gpu)?;
        let profile = mig::profile(gpu.hardware()?, profile)?;
        info.set(nvmlGpuInstanceProfileInfo_t {
            id: profile.id,
            isP2pSupported: 0,
            sliceCount: profile.slices,
            instanceCount: mig::told_count(gpu.hardware()?, &profile),
            multiprocessorCount: profile.multiprocessors,
            copyEngineCount: profile.engines.copy,
            decoderCount: profile.engines.decoders,
            encoderCount: profile.engines.encoders,
            jpegCount: profile.engines.jpegs,
            ofaCount: profile.engines.ofas,
            memorySizeMB: profile.memory_mib,
        })
    })
}

fn versioned(profile: &MigProfile, info: &Out<nvmlGpuInstanceProfileInfo_v3_t>) -> Answer {
    let version = info.version()?;
    if version == struct_version::<nvmlGpuInstanceProfileInfo_v2_t>(2) {
        return info.as_version().set(nvmlGpuInstanceProfileInfo_v2_t {
            version,
            id: profile.id,
            isP2pSupported: 0,
            sliceCount: profile.slices,
            instanceCount: profile.max_instances,
            multiprocessorCount: profile.multiprocessors,
            copyEngineCount: profile.engines.copy,
            decoderCount: profile.engines.decoders,
            encoderCount: profile.engines.encoders,
            jpegCount: profile.engines.jpegs,
            ofaCount: profile.engines.ofas,
            memorySizeMB: profile.memory_mib,
            name: name(&profile.name),
        });
    }
    info.require_version(3)?;
    info.set(nvmlGpuInstanceProfileInfo_v3_t {
        version,
        id: profile.id,
        sliceCount: profile.slices,
        instanceCount: profile.max_instances,
        multiprocessorCount: profile.multiprocessors,
        copyEngineCount: profile.engines.copy,
        decoderCount: profile.engines.decoders,
        encoderCount: profile.engines.encoders,
        jpegCount: profile.engines.jpegs,
        ofaCount: profile.engines.ofas,
        memorySizeMB: profile.memory_mib,
        name: name(&profile.name),
        capabilities: 0,
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetGpuInstanceProfileInfoV(
    device: DeviceHandle,
    profile: c_uint,
    info: Out<nvmlGpuInstanceProfileInfo_v3_t>,
) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetGpuInstanceProfileInfoV", device, |gpu| {
        mig::instances(gpu.hardware()?)?;
        versioned(&mig::profile(gpu.hardware()?, profile)?, &info)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetGpuInstanceProfileInfoByIdV(
    device: DeviceHandle,
    profile: c_uint,
    info: Out<nvmlGpuInstanceProfileInfo_v3_t>,
) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetGpuInstanceProfileInfoByIdV", device, |gpu| {
        mig::instances(gpu.hardware()?)?;
        versioned(&mig::profile_by_id(gpu.hardware()?, profile)?, &info)
    })
}

fn compute_profile(instance: &GpuInstance, profile: c_uint, engines: c_uint) -> Answer<(ComputeProfile, c_uint)> {
    if engines != SHARED_ENGINES {
        return Err(gpunode_scenario::ReturnCode::InvalidArgument);
    }
    let profile = mig::compute_profile(instance, profile)?;
    let most = c_uint::try_from(profile.starts.len()).unwrap_or_default();
    Ok((profile, most))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlGpuInstanceGetComputeInstanceProfileInfo(
    instance: GpuInstanceHandle,
    profile: c_uint,
    engines: c_uint,
    info: Out<nvmlComputeInstanceProfileInfo_t>,
) -> nvmlReturn_t {
    on_instance(
        "nvmlGpuInstanceGetComputeInstanceProfileInfo",
        instance,
        |_, instance| {
            let (profile, most) = compute_profile(instance, profile, engines)?;
            let engines = instance.profile.engines;
            info.set(nvmlComputeInstanceProfileInfo_t {
                id: profile.kind,
                sliceCount: profile.slices,
                instanceCount: most,
                multiprocessorCount: profile.multiprocessors,
                sharedCopyEngineCount: engines.copy,
                sharedDecoderCount: engines.decoders,
                sharedEncoderCount: engines.encoders,
                sharedJpegCount: engines.jpegs,
                sharedOfaCount: engines.ofas,
            })
        },
    )
}

#[unsafe(no_mangle)]
extern "C" fn nvmlGpuInstanceGetComputeInstanceProfileInfoV(
    instance: GpuInstanceHandle,
    profile: c_uint,
    engines: c_uint,
    info: Out<nvmlComputeInstanceProfileInfo_v3_t>,
) -> nvmlReturn_t {
    on_instance(
        "nvmlGpuInstanceGetComputeInstanceProfileInfoV",
        instance,
        |_, instance| {
            let (profile, most) = compute_profile(instance, profile, engines)?;
            let engines = instance.profile.engines;
            let version = info.version()?;
            let v2 = nvmlComputeInstanceProfileInfo_v2_t {
                version,
                id: profile.kind,
                sliceCount: profile.slices,
                instanceCount: most,
                multiprocessorCount: profile.multiprocessors,
                sharedCopyEngineCount: engines.copy,
                sharedDecoderCount: engines.decoders,
                sharedEncoderCount: engines.encoders,
                sharedJpegCount: engines.jpegs,
                sharedOfaCount: engines.ofas,
                name: name(&profile.name),
            };
            if version == struct_version::<nvmlComputeInstanceProfileInfo_v2_t>(2) {
                return info.as_version().set(v2);
            }
            info.require_version(3)?;
            info.set(nvmlComputeInstanceProfileInfo_v3_t {
                version,
                id: v2.id,
                sliceCount: v2.sliceCount,
                instanceCount: v2.instanceCount,
                multiprocessorCount: v2.multiprocessorCount,
                sharedCopyEngineCount: v2.sharedCopyEngineCount,
                sharedDecoderCount: v2.sharedDecoderCount,
                sharedEncoderCount: v2.sharedEncoderCount,
                sharedJpegCount: v2.sharedJpegCount,
                sharedOfaCount: v2.sharedOfaCount,
                name: v2.name,
                capabilities: 0,
            })
        },
    )
}
