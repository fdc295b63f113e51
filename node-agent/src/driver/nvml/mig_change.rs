//! Changes modes and instances of a GPU, one call after the other.

use super::{
    error::{DriverError, FailedCall, failed_in},
    lookup::{GpuAddress, find_gpu},
    mig_state::{self, compute_profiles},
    raw::mig_instances::{self, GpuInstanceHandle},
    session::open,
};
use gpunode_gpu::{GpuLayout, GpuMigState, MigStep, next_step};
use nvml_wrapper::{Device, error::NvmlError};
use nvml_wrapper_sys::bindings::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_RESOURCES as INSUFFICIENT_RESOURCES;
use std::{ops::ControlFlow, path::Path};

/// Most calls for one GPU. The largest change destroys and creates seven instances of two parts each.
const MAX_STEPS: usize = 256;

/// End of a change.
#[derive(Debug)]
pub enum ChangeEnd {
    /// The GPU has the layout.
    Done,
    /// The mode did not change because something uses the GPU. Nothing is left pending.
    ModeInUse {
        /// The driver's status of the mode.
        status: NvmlError,
    },
    /// The mode changes with the next reset or boot.
    ModePending {
        /// The driver's status of the mode.
        status: NvmlError,
    },
    /// The caller stopped it between two calls.
    Stopped,
}

/// Error of a change.
#[derive(Debug, thiserror::Error)]
pub enum MigChangeError {
    /// No session with the driver.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// A call failed.
    #[error("{action} on {gpu}: {call}: {source}{}", advice(source))]
    Call {
        /// What was tried.
        action: String,
        /// UUID of the GPU.
        gpu: String,
        /// C name of the call.
        call: &'static str,
        /// NVML's answer.
        source: NvmlError,
    },
    /// The GPU has no MIG.
    #[error("change MIG on {gpu}: the GPU has no MIG")]
    NoMig {
        /// UUID of the GPU.
        gpu: String,
    },
    /// The GPU does not reach the layout.
    #[error("change MIG on {gpu}: not done after {MAX_STEPS} calls; another program changes MIG on this GPU")]
    Endless {
        /// UUID of the GPU.
        gpu: String,
    },
}

/// Returns what to do about an answer.
fn advice(answer: &NvmlError) -> &'static str {
    match answer {
        NvmlError::InUse => {
            "; a process or an open handle uses it: `nvidia-smi` lists processes, monitors such as DCGM keep handles"
        }
        NvmlError::UnexpectedVariant(INSUFFICIENT_RESOURCES) => {
            " (INSUFFICIENT_RESOURCES): its slices are taken; another program created an instance there"
        }
        NvmlError::NoPermission => "; the agent's container must be privileged",
        NvmlError::GpuLost => "; the GPU has fallen off the bus: reboot the node",
        _ => "",
    }
}

/// Returns MIG of a GPU through the library at `path`; none if it has no MIG.
pub fn read_mig_state(path: &Path, gpu: &GpuAddress) -> Result<Option<GpuMigState>, MigChangeError> {
    let nvml = open(path)?;
    let failed = failed_call(gpu, || "read MIG".to_owned());
    let device = find_gpu(&nvml, gpu).map_err(&failed)?;
    mig_state::read(&device).map_err(&failed)
}

/// Brings a GPU to a layout through the library at `path`. `begin` receives each step before its call, and stops the change
/// between two calls. Blocks.
pub fn change_layout(
    path: &Path,
    gpu: &GpuAddress,
    wanted: &GpuLayout,
    mut begin: impl FnMut(&MigStep) -> ControlFlow<()>,
) -> Result<ChangeEnd, MigChangeError> {
    let mut steps = 0;
    // A session for each mode: a reset makes the handles of before useless.
    loop {
        let nvml = open(path)?;
        let read = failed_call(gpu, || "read MIG".to_owned());
        let mut device = find_gpu(&nvml, gpu).map_err(&read)?;
        loop {
            let state = mig_state::read(&device).map_err(&read)?;
            let state = state.ok_or_else(|| MigChangeError::NoMig { gpu: gpu.uuid.clone() })?;
            let Some(step) = next_step(wanted, &state) else {
                return Ok(ChangeEnd::Done);
            };
            if steps == MAX_STEPS {
                return Err(MigChangeError::Endless { gpu: gpu.uuid.clone() });
            }
            steps += 1;
            if begin(&step).is_break() {
                return Ok(ChangeEnd::Stopped);
            }
            let failed = failed_call(gpu, || step.to_string());
            if let MigStep::SetMode(enabled) = step {
                match set_mode(&mut device, enabled, state.mode_needs_reset).map_err(&failed)? {
                    None => break,
                    Some(status @ NvmlError::InUse) => return Ok(ChangeEnd::ModeInUse { status }),
                    Some(status) => return Ok(ChangeEnd::ModePending { status }),
                }
            }
            call(&device, &step).map_err(&failed)?;
        }
    }
}

fn failed_call(gpu: &GpuAddress, action: impl Fn() -> String) -> impl Fn(FailedCall) -> MigChangeError {
    move |(call, source)| MigChangeError::Call {
        action: action(),
        gpu: gpu.uuid.clone(),
        call,
        source,
    }
}

/// Makes the call of a step within one mode.
fn call(device: &Device<'_>, step: &MigStep) -> Result<(), FailedCall> {
    match *step {
        MigStep::SetMode(_) => Ok(()),
        MigStep::Create(placed) => mig_instances::create_gpu_instance(device, &placed)
            .map_err(failed_in("nvmlDeviceCreateGpuInstanceWithPlacement")),
        MigStep::Destroy { gpu_instance } => found(device, gpu_instance)?
            .destroy()
            .map_err(failed_in("nvmlGpuInstanceDestroy")),
        MigStep::DestroyCompute {
            gpu_instance,
            compute_instance,
        } => found(device, gpu_instance)?
            .compute_instance(compute_instance)
            .map_err(failed_in("nvmlGpuInstanceGetComputeInstanceById"))?
            .destroy()
            .map_err(failed_in("nvmlComputeInstanceDestroy")),
        MigStep::CreateCompute { gpu_instance } => create_compute(device, gpu_instance),
    }
}

fn found<'a>(device: &'a Device<'a>, gpu_instance: u32) -> Result<GpuInstanceHandle<'a>, FailedCall> {
    mig_instances::gpu_instance(device, gpu_instance).map_err(failed_in("nvmlDeviceGetGpuInstanceById"))
}

/// Creates the compute instance that fills a GPU instance: of the profiles with most slices, the one with most
/// multiprocessors, since some profiles leave a part to others.
fn create_compute(device: &Device<'_>, gpu_instance: u32) -> Result<(), FailedCall> {
    let instance = found(device, gpu_instance)?;
    let profiles = compute_profiles(&instance)?;
    let largest = profiles
        .iter()
        .max_by_key(|profile| (profile.slices, profile.multiprocessors, std::cmp::Reverse(profile.id)));
    let largest = largest.ok_or(("nvmlGpuInstanceGetComputeInstanceProfileInfo", NvmlError::NotFound))?;
    instance
        .create_compute_instance(largest.id)
        .map_err(failed_in("nvmlGpuInstanceCreateComputeInstance"))
}

/// Sets the mode. Returns the status if it is not in force. Where the change resets the GPU, persistence mode is off meanwhile: it
/// keeps the driver on the GPU. A mode that something in use holds back is set back: it would come into force by a reset that
/// has another purpose.
fn set_mode(device: &mut Device<'_>, enabled: bool, needs_reset: bool) -> Result<Option<NvmlError>, FailedCall> {
    let set_persistence = failed_in("nvmlDeviceSetPersistenceMode");
    let is_persistent = needs_reset && device.is_in_persistent_mode().unwrap_or(false);
    if is_persistent {
        device.set_persistent(false).map_err(&set_persistence)?;
    }
    let set = || mig_instances::set_mig_mode(device, enabled).map_err(failed_in("nvmlDeviceSetMigMode"));
    let status = set();
    let is_held = matches!(status, Ok(Some(NvmlError::InUse)));
    let back = if is_held {
        mig_instances::set_mig_mode(device, !enabled).map_err(failed_in("nvmlDeviceSetMigMode"))
    } else {
        Ok(None)
    };
    if is_persistent {
        // The answer to the mode counts more.
        device
            .set_persistent(true)
            .map_err(&set_persistence)
            .or_else(|error| if matches!(status, Ok(None)) { Err(error) } else { Ok(()) })?;
    }
    back?;
    status
}
