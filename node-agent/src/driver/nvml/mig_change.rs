//! Changes modes and instances of a GPU, one call after the other.

use super::{
    error::{DriverError, FailedCall, failed_in},
    lookup::{GpuAddress, find_gpu},
    mig_state::{self, compute_profiles, largest},
    processes::every_process,
    raw::mig_instances::{self, GpuInstanceHandle},
    session::open,
};
use gpunode_gpu::{GpuLayout, GpuMigState, GpuVirtualization, MigStep, next_step};
use nvml_wrapper::{Device, error::NvmlError};
use nvml_wrapper_sys::bindings::{
    nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_RESOURCES as INSUFFICIENT_RESOURCES,
    nvmlReturn_enum_NVML_ERROR_INVALID_STATE as INVALID_STATE,
};
use std::{borrow::Cow, collections::BTreeSet, ops::ControlFlow, path::Path};

/// Most calls for one GPU. The largest change destroys and creates seven instances of two parts each.
const MAX_STEPS: usize = 256;

const SET_MODE: &str = "nvmlDeviceSetMigMode";
const SET_PERSISTENCE: &str = "nvmlDeviceSetPersistenceMode";

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
    #[error("{action} on {gpu}: {call} answers {}{}", answer_name(source), advice(source))]
    Call {
        /// The step, or the reading.
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
    /// The mode did not change although the driver says so, as kubernetes-sigs/dra-driver-nvidia-gpu#852 saw it.
    #[error(
        "change the MIG mode of {gpu}: {SET_MODE} answers SUCCESS, and the mode is as before; reboot the node if this stays"
    )]
    ModeUnchanged {
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

/// Returns the name of an answer in `nvml.h`, or what nvml-wrapper says of it.
pub fn answer_name(answer: &NvmlError) -> Cow<'static, str> {
    Cow::Borrowed(match answer {
        NvmlError::InUse => "IN_USE",
        NvmlError::UnexpectedVariant(INSUFFICIENT_RESOURCES) => "INSUFFICIENT_RESOURCES",
        NvmlError::UnexpectedVariant(INVALID_STATE) => "INVALID_STATE",
        NvmlError::NoPermission => "NO_PERMISSION",
        NvmlError::NotSupported => "NOT_SUPPORTED",
        NvmlError::NotFound => "NOT_FOUND",
        NvmlError::InvalidArg => "INVALID_ARGUMENT",
        NvmlError::ResetRequired => "RESET_REQUIRED",
        NvmlError::GpuLost => "GPU_IS_LOST",
        NvmlError::Timeout => "TIMEOUT",
        NvmlError::Unknown => "UNKNOWN",
        other => return Cow::Owned(format!("\"{other}\"")),
    })
}

/// Returns what to do about an answer. Who uses the GPU after `IN_USE` is for the caller to find.
fn advice(answer: &NvmlError) -> &'static str {
    match answer {
        NvmlError::UnexpectedVariant(INSUFFICIENT_RESOURCES) => {
            "; another program has an instance there: `nvidia-smi mig -lgi` lists them"
        }
        NvmlError::NoPermission => "; the agent's container must be privileged",
        NvmlError::NotSupported | NvmlError::NotFound | NvmlError::InvalidArg => {
            "; another program has changed MIG on this GPU meanwhile, or this driver cannot do it"
        }
        NvmlError::GpuLost => "; the GPU has fallen off the bus: reboot the node",
        NvmlError::InUse => "",
        _ => "; see the kernel log of the node (`dmesg`), and reboot it if this stays",
    }
}

/// Returns MIG of a GPU through the library at `path`; none if it has no MIG.
pub fn read_mig_state(path: &Path, gpu: &GpuAddress) -> Result<Option<GpuMigState>, MigChangeError> {
    let nvml = open(path)?;
    let failed = failed_call(gpu, || "read MIG".to_owned());
    let device = find_gpu(&nvml, gpu).map_err(&failed)?;
    mig_state::read(&device).map_err(&failed)
}

/// Returns the processes on a GPU, or on some of its GPU instances, through the library at `path`. A list that does not answer is an
/// error: it must not look like an empty one. Blocks.
pub fn pids_on(
    path: &Path,
    gpu: &GpuAddress,
    instances: Option<&BTreeSet<u32>>,
) -> Result<BTreeSet<u32>, MigChangeError> {
    let nvml = open(path)?;
    let failed = failed_call(gpu, || "list the processes".to_owned());
    let device = find_gpu(&nvml, gpu).map_err(&failed)?;
    let is_meant = |id: u32| instances.is_none_or(|instances| instances.contains(&id));
    let all = every_process(&device).map_err(&failed)?;
    let on_gpu = all
        .into_iter()
        .filter(|process| process.gpu_instance_id.map_or(instances.is_none(), is_meant));
    let mut pids: BTreeSet<u32> = on_gpu.map(|process| process.pid).collect();
    // With MIG on, the lists of the GPU itself depend on the rights of the caller (nvml.h,
    // `nvmlDeviceGetComputeRunningProcesses_v3`).
    for mig in mig_state::mig_devices(&device).map_err(&failed)? {
        if is_meant(mig.gpu_instance) {
            pids.extend(
                every_process(&mig.device)
                    .map_err(&failed)?
                    .iter()
                    .map(|process| process.pid),
            );
        }
    }
    Ok(pids)
}

/// Switches persistence mode on, unless it is. Blocks.
pub fn restore_persistence(path: &Path, gpu: &GpuAddress) -> Result<(), MigChangeError> {
    let nvml = open(path)?;
    let failed = failed_call(gpu, || "switch persistence mode on".to_owned());
    let mut device = find_gpu(&nvml, gpu).map_err(&failed)?;
    if is_persistent(&device) {
        return Ok(());
    }
    device
        .set_persistent(true)
        .map_err(failed_in(SET_PERSISTENCE))
        .map_err(&failed)
}

/// Returns true if a GPU is in persistence mode. Blocks.
pub fn has_persistence(path: &Path, gpu: &GpuAddress) -> Result<bool, MigChangeError> {
    let nvml = open(path)?;
    let failed = failed_call(gpu, || "read the persistence mode".to_owned());
    find_gpu(&nvml, gpu)
        .map_err(&failed)
        .map(|device| is_persistent(&device))
}

fn is_persistent(device: &Device<'_>) -> bool {
    device.is_in_persistent_mode().unwrap_or(false)
}

/// Brings a GPU to a layout through the library at `path`. `begin` receives each step before its call, and stops the change
/// between two calls. Blocks.
pub fn change_layout(
    path: &Path,
    gpu: &GpuAddress,
    wanted: &GpuLayout,
    mut begin: impl FnMut(&MigStep) -> ControlFlow<()>,
) -> Result<ChangeEnd, MigChangeError> {
    let (mut steps, mut has_set_mode, mut has_asked) = (0, false, false);
    // A session for each mode: a reset makes the handles of before useless.
    loop {
        let nvml = open(path)?;
        let read = failed_call(gpu, || "read MIG".to_owned());
        let mut device = find_gpu(&nvml, gpu).map_err(&read)?;
        let state = mig_state::read(&device).map_err(&read)?;
        let mut state = state.ok_or_else(|| MigChangeError::NoMig { gpu: gpu.uuid.clone() })?;
        if has_set_mode && state.enabled != wanted.enabled {
            // Before anything is destroyed for a mode that does not come.
            return Err(MigChangeError::ModeUnchanged { gpu: gpu.uuid.clone() });
        }
        loop {
            let asks_first = !has_asked && awaits_boot(&state, wanted);
            has_asked |= asks_first;
            let mode = asks_first.then_some(MigStep::SetMode(wanted.enabled));
            let Some(step) = mode.or_else(|| next_step(wanted, &state)) else {
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
                    None => {
                        has_set_mode = true;
                        break;
                    }
                    // The instances have to go first.
                    Some(NvmlError::InUse) if asks_first => continue,
                    Some(status @ NvmlError::InUse) => return Ok(ChangeEnd::ModeInUse { status }),
                    Some(status) => return Ok(ChangeEnd::ModePending { status }),
                }
            }
            call(&device, &step).map_err(&failed)?;
            state = mig_state::read_again(&device, state).map_err(&read)?;
        }
    }
}

/// Returns true if only a boot can change the mode, since a virtual machine does not reset its GPUs. The boot takes the instances, too:
/// until then they stay.
fn awaits_boot(state: &GpuMigState, wanted: &GpuLayout) -> bool {
    let is_passed = state.virtualization == GpuVirtualization::Passthrough;
    is_passed && state.mode_needs_reset && state.enabled != wanted.enabled
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

/// Creates the compute instance that fills a GPU instance.
fn create_compute(device: &Device<'_>, gpu_instance: u32) -> Result<(), FailedCall> {
    let instance = found(device, gpu_instance)?;
    let profiles = compute_profiles(&instance)?;
    let largest = largest(&profiles).ok_or(("nvmlGpuInstanceGetComputeInstanceProfileInfo", NvmlError::NotFound))?;
    instance
        .create_compute_instance(largest.id)
        .map_err(failed_in("nvmlGpuInstanceCreateComputeInstance"))
}

/// Sets the mode. Returns the status if it is not in force: `IN_USE` or `RESET_REQUIRED`; any other is an error. Where the change resets
/// the GPU, persistence mode is off meanwhile: it keeps the driver on the GPU. A mode that stays pending for another reason than that
/// only a boot can reset the GPU is set back: it would come into force by a reset that has another purpose.
fn set_mode(device: &mut Device<'_>, enabled: bool, needs_reset: bool) -> Result<Option<NvmlError>, FailedCall> {
    let is_persistent = needs_reset && is_persistent(device);
    if is_persistent {
        device.set_persistent(false).map_err(failed_in(SET_PERSISTENCE))?;
    }
    let set = |enabled| mig_instances::set_mig_mode(device, enabled).map_err(failed_in(SET_MODE));
    let status = set(enabled);
    let back = match &status {
        Ok(None | Some(NvmlError::ResetRequired)) | Err(_) => Ok(None),
        Ok(Some(_)) => set(!enabled),
    };
    if is_persistent {
        // If this handle is of no use after the reset, the caller does it in a session of its own.
        _ = device.set_persistent(true);
    }
    match status? {
        Some(status @ (NvmlError::InUse | NvmlError::ResetRequired)) => back.map(|_| Some(status)),
        Some(status) => Err((SET_MODE, status)),
        None => Ok(None),
    }
}
