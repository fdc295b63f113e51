//! Changes to MIG: its mode, and instances that come and go.
//!
//! Like modes they belong to the node: every process sees what one has made, and it outlives that process. The state file
//! tells who uses an instance: processes in it and handles that programs keep open. For a whole GPU other processes that
//! have called the library about it count too.

use std::path::Path;

use gpunode_scenario::{
    ComputeInstance, ComputeProfile, DriverState, Gpu, GpuInstance, MigProfile, MigState, ReturnCode, Virtualization,
};
use nvml_wrapper_sys::bindings::{NVML_DEVICE_MIG_DISABLE, NVML_DEVICE_MIG_ENABLE};

use crate::{
    handle::{ComputeInstanceHandle, GpuInstanceHandle, compute_number, instance_number},
    library::Answer,
    mig, modes,
    node::GpuCall,
};

/// First slice and slices.
pub(crate) type Placement = (u32, u32);

/// Sets the mode, and returns the activation status. Boards before Hopper keep a mode pending that cannot come into force
/// now.
pub(crate) fn set_mode(call: &GpuCall, function: &str, mode: u32) -> Answer<ReturnCode> {
    let enabled = match mode {
        NVML_DEVICE_MIG_DISABLE => false,
        NVML_DEVICE_MIG_ENABLE => true,
        _ => return Err(ReturnCode::InvalidArgument),
    };
    let gpu = call.hardware()?;
    mig::capable(gpu)?;
    change(call, function, |mig| {
        if mig.enabled == enabled {
            mig.pending = None;
            return Ok(ReturnCode::Success);
        }
        if call.state().mig_mode_stays {
            return Ok(ReturnCode::Success);
        }
        if let Some(code) = obstacle(call, gpu, mig) {
            mig.pending = gpu.board.keeps_mig_mode().then_some(enabled);
            return Ok(code);
        }
        mig.set_mode(enabled);
        if gpu.board.keeps_mig_mode() {
            mig.minor = call.state().minor_after_mode.or(mig.minor);
        }
        Ok(ReturnCode::Success)
    })
}

/// The reason why the mode cannot change now. Boards before Hopper are reset for it, which takes that nobody else has them
/// open; a virtual machine cannot do that.
fn obstacle(call: &GpuCall, gpu: &Gpu, mig: &MigState) -> Option<ReturnCode> {
    let (node, state) = (call.node(), call.state());
    let told = state.mig_activation.filter(|code| *code != ReturnCode::Success);
    if told.is_some() {
        return told;
    }
    let is_reset = gpu.board.keeps_mig_mode();
    if is_reset && node.scenario().virtualization == Virtualization::Passthrough {
        return Some(ReturnCode::ResetRequired);
    }
    let is_open = || {
        call.settings().gpu(gpu.index).keeps(state)
            || !state.open_handles.is_empty()
            || node.event_sets().have(call.index())
            || node.is_open_elsewhere(gpu.index)
    };
    let in_use = !mig.instances.is_empty() || !state.processes.is_empty() || (is_reset && is_open());
    in_use.then_some(ReturnCode::InUse)
}

/// Creates a GPU instance of the profile with an id.
pub(crate) fn create_instance(
    call: &GpuCall,
    function: &str,
    profile: u32,
    placement: Option<Placement>,
) -> Answer<GpuInstanceHandle> {
    let gpu = call.hardware()?;
    mig::instances(gpu)?;
    let profile = mig::profile_by_id(gpu, profile).map_err(|_| ReturnCode::InvalidArgument)?;
    let start = start(placement, profile.size)?;
    let (id, serial) = change(call, function, |mig| mig.create_instance(gpu.board, &profile, start))?;
    Ok(GpuInstanceHandle::of(call.index(), instance_number(id, serial)))
}

/// Destroys a GPU instance that has no compute instances and no client.
pub(crate) fn destroy_instance(call: &GpuCall, function: &str, instance: &GpuInstance) -> Answer {
    change(call, function, |mig| {
        if call.state().uses_instance(instance.id, None) {
            return Err(ReturnCode::InUse);
        }
        mig.destroy_instance((instance.id, instance.serial))
    })
}

/// Creates a compute instance of a GPU instance.
pub(crate) fn create_compute_instance(
    call: &GpuCall,
    function: &str,
    instance: &GpuInstance,
    profile: &ComputeProfile,
    placement: Option<Placement>,
) -> Answer<ComputeInstanceHandle> {
    let gpu = call.hardware()?;
    let start = start(placement, profile.slices)?;
    let key = (instance.id, instance.serial);
    let scenario = call.node().scenario();
    let (id, serial) = change(call, function, |mig| {
        mig.create_compute_instance(scenario, gpu, key, profile, start)
    })?;
    Ok(ComputeInstanceHandle::of(
        call.index(),
        compute_number(instance.id, id, serial),
    ))
}

/// Destroys a compute instance that has no client.
pub(crate) fn destroy_compute_instance(
    call: &GpuCall,
    function: &str,
    instance: &GpuInstance,
    compute: &ComputeInstance,
) -> Answer {
    change(call, function, |mig| {
        if call.state().uses_instance(instance.id, Some(compute.id)) {
            return Err(ReturnCode::InUse);
        }
        mig.destroy_compute_instance((instance.id, instance.serial), (compute.id, compute.serial))
    })
}

/// The number of GPU instances of a profile that could be created now.
pub(crate) fn remaining(call: &GpuCall, profile: &MigProfile) -> Answer<u32> {
    mig::instances(call.hardware()?)?;
    let gpu = call.described()?;
    Ok(call.settings().mig_of(gpu).remaining(gpu.board, profile))
}

/// The number of compute instances of a profile that could be created now in a GPU instance.
pub(crate) fn remaining_compute(call: &GpuCall, instance: &GpuInstance, profile: &ComputeProfile) -> Answer<u32> {
    let gpu = call.described()?;
    let key = (instance.id, instance.serial);
    Ok(call.settings().mig_of(gpu).remaining_compute(gpu.board, key, profile))
}

/// The first slice of a placement, whose size must be that of its profile.
fn start(placement: Option<Placement>, size: u32) -> Answer<Option<u32>> {
    match placement {
        Some((_, other)) if other != size => Err(ReturnCode::InvalidArgument),
        placement => Ok(placement.map(|(start, _)| start)),
    }
}

/// Changes MIG of a GPU, which no virtual machine with a part of one may.
fn change<T>(call: &GpuCall, function: &str, change: impl Fn(&mut MigState) -> Answer<T>) -> Answer<T> {
    let gpu = call.described()?;
    if call.node().scenario().virtualization == Virtualization::Vgpu {
        return Err(ReturnCode::NotSupported);
    }
    let change = |mig: &mut MigState| match call.state().failure_at(function, mig.instances.len()) {
        Some(code) => Err(code),
        None => change(mig),
    };
    modes::write(call, |dir: &Path| DriverState::update_mig(dir, gpu, change))?
}
