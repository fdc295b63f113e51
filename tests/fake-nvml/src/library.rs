//! Initialisation: the one node of this process, and how often it was asked for.

use std::{
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use gpunode_scenario::{ReturnCode, State};

use crate::{
    handle::{DeviceHandle, Named},
    node::{GpuCall, MigCall, Node},
    resource_manager,
};

/// Answer of a call; `Err` is the return code.
pub(crate) type Answer<T = ()> = Result<T, ReturnCode>;

struct Loaded {
    node: Arc<Node>,
    users: u32,
}

static LOADED: Mutex<Option<Loaded>> = Mutex::new(None);

fn loaded() -> MutexGuard<'static, Option<Loaded>> {
    LOADED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `nvmlInit`: the first one reads the scenario in `dir`, further ones are counted. The first one calls the driver, and waits where
/// a call hangs there.
pub(crate) fn init(dir: &Path) -> Answer {
    if node().is_err() {
        let state = || State::load(dir).map(Arc::new).map_err(|_| ReturnCode::Unknown);
        // A state that cannot be read fails the calls on GPUs.
        _ = resource_manager::wait(dir, None, state);
    }
    let mut loaded = loaded();
    if let Some(loaded) = loaded.as_mut() {
        loaded.users = loaded.users.saturating_add(1);
    } else {
        let node = Arc::new(Node::load(dir)?);
        *loaded = Some(Loaded { node, users: 1 });
    }
    Ok(())
}

/// `nvmlShutdown`: as many are needed as there were `nvmlInit`. It waits where a call hangs in the driver.
pub(crate) fn shutdown() -> Answer {
    _ = node()?.wait_for_driver(None);
    let mut loaded = loaded();
    let current = loaded.as_mut().ok_or(ReturnCode::Uninitialized)?;
    current.users -= 1;
    if current.users == 0 {
        *loaded = None;
    }
    Ok(())
}

/// The node, in a call that concerns no GPU.
pub(crate) fn node() -> Answer<Arc<Node>> {
    loaded()
        .as_ref()
        .map(|loaded| Arc::clone(&loaded.node))
        .ok_or(ReturnCode::Uninitialized)
}

/// Device that a handle names, in a call that takes either kind.
pub(crate) enum Device {
    /// A whole GPU.
    Gpu(GpuCall),
    /// A MIG device.
    Mig(MigCall),
}

impl Device {
    /// The GPU itself, or the one that a MIG device is part of.
    pub(crate) fn gpu(&self) -> &GpuCall {
        match self {
            Device::Gpu(gpu) => gpu,
            Device::Mig(mig) => mig.parent(),
        }
    }

    /// Ids of the instances that a MIG device is made of; none of a whole GPU.
    pub(crate) fn instance_ids(&self) -> Answer<Option<(u32, u32)>> {
        match self {
            Device::Gpu(_) => Ok(None),
            Device::Mig(mig) => mig.instances().map(|(gpu, compute)| Some((gpu.id, compute.id))),
        }
    }
}

/// The GPU or MIG device behind a handle, in a call of `function`; an error where the state says so.
pub(crate) fn device(function: &str, handle: DeviceHandle) -> Answer<Device> {
    match handle.named().ok_or(ReturnCode::InvalidArgument)? {
        Named::Gpu(index) => GpuCall::begin(node()?, index, function).map(Device::Gpu),
        Named::Mig(index, number) => MigCall::begin(node()?, index, number, function).map(Device::Mig),
    }
}

/// The GPU behind a handle, in a call of `function`; an error where the state says so. A MIG device is no GPU.
pub(crate) fn gpu(function: &str, handle: DeviceHandle) -> Answer<GpuCall> {
    let node = node()?;
    match handle.named() {
        Some(Named::Gpu(index)) => GpuCall::begin(node, index, function),
        _ => Err(ReturnCode::InvalidArgument),
    }
}

/// The GPU at an index, in a call of `function` that looks GPUs up; an error where the state says so.
pub(crate) fn gpu_at(function: &str, index: usize) -> Answer<GpuCall> {
    GpuCall::begin(node()?, index, function)
}
