//! MIG devices, and the instances behind them, as they are now.

use gpunode_scenario::{ComputeInstance, ComputeProfile, Engines, Gpu, GpuInstance, MigProfile, ReturnCode};
use nvml_wrapper_sys::bindings::{
    NVML_COMPUTE_INSTANCE_PROFILE_COUNT, NVML_DEVICE_MIG_DISABLE, NVML_DEVICE_MIG_ENABLE,
    NVML_GPU_INSTANCE_PROFILE_6_SLICE, NVML_GPU_INSTANCE_PROFILE_8_SLICE, NVML_GPU_INSTANCE_PROFILE_COUNT,
    nvmlDeviceAttributes_t,
};

use crate::{
    handle::{compute_number, instance_number},
    library::Answer,
    node::{GpuCall, MigCall},
};

/// Major version of the last driver that tells no profiles while the mode is off.
const LAST_SILENT_DRIVER: u32 = 535;

/// Current and pending mode.
pub(crate) fn mode(call: &GpuCall) -> Answer<(u32, u32)> {
    let gpu = call.hardware()?;
    capable(gpu)?;
    let current = gpu.mig.is_some();
    let pending = call.settings().mig.get(&gpu.index).and_then(|mig| mig.pending);
    let number = |enabled| {
        if enabled {
            NVML_DEVICE_MIG_ENABLE
        } else {
            NVML_DEVICE_MIG_DISABLE
        }
    };
    Ok((number(current), number(pending.unwrap_or(current))))
}

/// The most MIG devices that can exist now: none while the mode is off.
pub(crate) fn max_devices(gpu: &Gpu) -> u32 {
    if gpu.mig.is_some() {
        gpu.board.max_mig_devices
    } else {
        0
    }
}

/// The [`compute_number`] of the MIG device at an index. Where a device comes or goes, the indices behind it shift: only
/// a handle or a UUID stays with a device.
pub(crate) fn device(gpu: &Gpu, index: u32) -> Answer<usize> {
    capable(gpu)?;
    let place = usize::try_from(index).map_err(|_| ReturnCode::InvalidArgument)?;
    if gpu.mig.is_some() && index >= gpu.board.max_mig_devices {
        return Err(ReturnCode::InvalidArgument);
    }
    let (instance, compute) = gpu.mig_devices().nth(place).ok_or(ReturnCode::NotFound)?;
    Ok(compute_number(instance.id, compute.id, compute.serial))
}

/// The name that a MIG device has.
pub(crate) fn name(mig: &MigCall) -> Answer<String> {
    let (_, compute) = mig.instances()?;
    Ok(format!(
        "{} MIG {}",
        mig.parent().hardware()?.name,
        compute.profile.name
    ))
}

/// Returns the attributes of a MIG device.
pub(crate) fn attributes(mig: &MigCall) -> Answer<nvmlDeviceAttributes_t> {
    let (instance, compute) = mig.instances()?;
    let Engines {
        copy,
        decoders,
        encoders,
        jpegs,
        ofas,
    } = instance.profile.engines;
    Ok(nvmlDeviceAttributes_t {
        multiprocessorCount: compute.profile.multiprocessors,
        sharedCopyEngineCount: copy,
        sharedDecoderCount: decoders,
        sharedEncoderCount: encoders,
        sharedJpegCount: jpegs,
        sharedOfaCount: ofas,
        gpuInstanceSliceCount: instance.profile.slices,
        computeInstanceSliceCount: compute.profile.slices,
        memorySizeMB: instance.profile.memory_mib,
    })
}

/// The profile that a board has for `NVML_GPU_INSTANCE_PROFILE_*`. Kinds that no board here has answer `INVALID_ARGUMENT` in
/// the midst of the others: `nvml.h` says that this code ends the list, and NVIDIA's go-nvlib (`VisitMigProfiles`) goes on
/// past it.
pub(crate) fn profile(gpu: &Gpu, kind: u32) -> Answer<MigProfile> {
    let is_gap = matches!(
        kind,
        NVML_GPU_INSTANCE_PROFILE_6_SLICE | NVML_GPU_INSTANCE_PROFILE_8_SLICE
    );
    if is_gap || kind >= NVML_GPU_INSTANCE_PROFILE_COUNT {
        return Err(ReturnCode::InvalidArgument);
    }
    find_profile(gpu, |profile| profile.kind == kind)
}

/// The profile that a board has under an id.
pub(crate) fn profile_by_id(gpu: &Gpu, id: u32) -> Answer<MigProfile> {
    find_profile(gpu, |profile| profile.id == id)
}

/// Answers an error where the driver tells profiles only while the mode is on, as those up to R535 (mig-parted, `pkg/mig/discovery`).
pub(crate) fn tells_profiles(call: &GpuCall) -> Answer {
    let is_told = call.hardware()?.mig.is_some() || call.node().driver_major() > LAST_SILENT_DRIVER;
    is_told.then_some(()).ok_or(ReturnCode::NotSupported)
}

/// The most instances of a profile, as NVML tells it: wrong on an A30 (mig-parted, `pkg/mig/discovery`, which does not say how).
pub(crate) fn told_count(gpu: &Gpu, profile: &MigProfile) -> u32 {
    profile.max_instances + u32::from(gpu.name == "NVIDIA A30")
}

fn find_profile(gpu: &Gpu, wanted: impl FnMut(&MigProfile) -> bool) -> Answer<MigProfile> {
    gpu.board
        .mig_profiles()
        .into_iter()
        .find(wanted)
        .ok_or(ReturnCode::NotSupported)
}

/// The GPU instances of a GPU.
pub(crate) fn instances(gpu: &Gpu) -> Answer<&[GpuInstance]> {
    gpu.mig.as_deref().ok_or(ReturnCode::NotSupported)
}

/// The GPU instance with an id.
pub(crate) fn instance(gpu: &Gpu, id: u32) -> Answer<&GpuInstance> {
    instances(gpu)?
        .iter()
        .find(|instance| instance.id == id)
        .ok_or(ReturnCode::NotFound)
}

/// The GPU instance with an [`instance_number`]. A handle of what is gone is as good as one that never was.
pub(crate) fn numbered_instance(gpu: &Gpu, number: usize) -> Answer<&GpuInstance> {
    let mut instances = gpu.mig.iter().flatten();
    instances
        .find(|instance| instance_number(instance.id, instance.serial) == number)
        .ok_or(ReturnCode::InvalidArgument)
}

/// The compute instance with an id.
pub(crate) fn compute_instance(instance: &GpuInstance, id: u32) -> Answer<&ComputeInstance> {
    instance
        .compute_instances
        .iter()
        .find(|compute| compute.id == id)
        .ok_or(ReturnCode::NotFound)
}

/// The profile that a GPU instance has for `NVML_COMPUTE_INSTANCE_PROFILE_*`.
pub(crate) fn compute_profile(instance: &GpuInstance, kind: u32) -> Answer<ComputeProfile> {
    if kind >= NVML_COMPUTE_INSTANCE_PROFILE_COUNT {
        return Err(ReturnCode::InvalidArgument);
    }
    // An id is the same number.
    let profiles = instance.profile.compute_profiles();
    profiles
        .into_iter()
        .find(|profile| profile.kind == kind)
        .ok_or(ReturnCode::NotSupported)
}

/// Answers an error for boards without MIG.
pub(crate) fn capable(gpu: &Gpu) -> Answer {
    if gpu.board.max_mig_devices == 0 {
        Err(ReturnCode::NotSupported)
    } else {
        Ok(())
    }
}
