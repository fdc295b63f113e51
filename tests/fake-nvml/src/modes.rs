//! Modes that programs set. They belong to the node and not to a process: every process sees what one has set.
//!
//! Pods see the folder of the library read-only. What a privileged one sets goes through a mount of its own, as it would
//! go through the driver's device nodes on a real node.

use std::{io, path::Path};

use gpunode_scenario::{ComputeMode, DRIVER_FILE, DriverState, GpuModes, ReturnCode, StateError};

use crate::{
    ffi::WritableView,
    library::Answer,
    node::{GpuCall, refuse},
};

/// The modes of a GPU.
pub(crate) fn get(call: &GpuCall) -> Answer<GpuModes> {
    let state = DriverState::load(call.node().dir()).map_err(|error| refuse(DRIVER_FILE, &error))?;
    Ok(state.gpu(call.hardware()?.index))
}

/// Returns the compute mode; MIG mode lifts its restriction.
pub(crate) fn compute(call: &GpuCall) -> Answer<ComputeMode> {
    Ok(if call.hardware()?.mig.is_some() {
        ComputeMode::Default
    } else {
        get(call)?.compute_mode
    })
}

/// Sets who may use a GPU.
pub(crate) fn set_compute(call: &GpuCall, mode: u32) -> Answer {
    let mode = ComputeMode::from_number(mode).ok_or(ReturnCode::InvalidArgument)?;
    if call.hardware()?.mig.is_some() {
        return Err(ReturnCode::NotSupported);
    }
    set(call, |modes| modes.compute_mode = mode)
}

/// Returns whether the driver stays loaded without users, as this process sees it: where it does not find nvidia-persistenced, it sees
/// the driver's own mode alone (NVIDIA/dgx-selinux#3).
pub(crate) fn persistence(call: &GpuCall) -> Answer<bool> {
    let modes = get(call)?;
    Ok(if call.state().reaches_persistenced() {
        !modes.let_go
    } else {
        modes.persistence
    })
}

/// Sets whether the driver stays loaded without users: `nvmlEnableState_t`.
pub(crate) fn set_persistence(call: &GpuCall, mode: u32) -> Answer {
    let persistence = match mode {
        0 => false,
        1 => true,
        _ => return Err(ReturnCode::InvalidArgument),
    };
    if call.state().reaches_persistenced() {
        set(call, |modes| modes.let_go = !persistence)
    } else {
        set(call, |modes| modes.persistence = persistence)
    }
}

fn set(call: &GpuCall, change: impl Fn(&mut GpuModes)) -> Answer {
    let index = call.hardware()?.index;
    write(call, |dir| DriverState::update_gpu(dir, index, &change))
}

/// Changes the driver's file with `update`, which takes the folder to do it in.
pub(crate) fn write<T>(call: &GpuCall, update: impl Fn(&Path) -> Result<T, StateError>) -> Answer<T> {
    if !rustix::process::geteuid().is_root() {
        return Err(ReturnCode::NoPermission);
    }
    let dir = call.node().dir();
    let done = match update(dir) {
        Err(error) if kind(&error) == Some(io::ErrorKind::ReadOnlyFilesystem) => {
            let view = WritableView::of(dir).map_err(|_| ReturnCode::NoPermission)?;
            update(&view.path())
        }
        done => done,
    };
    done.map_err(|error| match kind(&error) {
        Some(io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied) => ReturnCode::NoPermission,
        _ => refuse(DRIVER_FILE, &error),
    })
}

fn kind(error: &StateError) -> Option<io::ErrorKind> {
    match error {
        StateError::File { source, .. } => Some(source.kind()),
        _ => None,
    }
}
