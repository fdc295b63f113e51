//! Reads modes, profiles and instances of a GPU with MIG, for layouts.

use super::{
    error::{FailedCall, failed_in, is_missing},
    lookup::mig_device_at,
    profile,
    raw::{
        self,
        mig_instances::{self, ComputeProfile, GpuInstanceHandle},
    },
};
use gpunode_gpu::{ComputeInstance, GpuInstance, GpuMigState, GpuVirtualization, MigSlices};
use gpunode_mig::{GpuInstanceProfile, MigBoard, MigGeometry};
use nvml_wrapper::{Device, error::NvmlError, structs::device::MigMode};
use nvml_wrapper_sys::bindings::NVML_DEVICE_MIG_ENABLE;
use std::collections::BTreeMap;

/// Limit on the kinds of GPU instances and of compute instances, above that of any driver (18 and 8 in NVML 13).
const MAX_KINDS: u32 = 32;
const GET_MODE: &str = "nvmlDeviceGetMigMode";
/// First compute capability that changes its mode without a reset: Hopper.
const HOPPER: u32 = 9;
/// PCI device and vendor of an A30.
const A30: u32 = 0x20B7_10DE;

/// Returns MIG of a GPU; none if it has no MIG.
pub fn read(device: &Device<'_>) -> Result<Option<GpuMigState>, FailedCall> {
    let mode = match device.mig_mode() {
        Ok(mode) => mode,
        Err(NvmlError::NotSupported) => return Ok(None),
        Err(error) if is_missing(&error) => return Ok(None),
        Err(error) => return Err((GET_MODE, error)),
    };
    let capability = device
        .cuda_compute_capability()
        .map_err(failed_in("nvmlDeviceGetCudaComputeCapability"))?;
    let memory = raw::total_memory(device).map_err(failed_in("nvmlDeviceGetMemoryInfo_v2"))?;
    let virtualization = match mig_instances::virtualization(device) {
        Err(NvmlError::NotSupported) => GpuVirtualization::None,
        answer => answer.map_err(failed_in("nvmlDeviceGetVirtualizationMode"))?,
    };
    let state = GpuMigState {
        enabled: false,
        pending: false,
        mode_needs_reset: u32::try_from(capability.major).is_ok_and(|major| major < HOPPER),
        virtualization,
        geometry: geometry(device, memory, most_of_board(device))?,
        instances: Vec::new(),
    };
    with_instances(device, &mode, state).map(Some)
}

/// Reads modes and instances again. Profiles and places stay the same while the mode does (nvml.h,
/// `nvmlDeviceGetGpuInstanceProfileInfo`), and take most of the calls.
pub fn read_again(device: &Device<'_>, last: GpuMigState) -> Result<GpuMigState, FailedCall> {
    let mode = device.mig_mode().map_err(failed_in(GET_MODE))?;
    with_instances(device, &mode, last)
}

fn with_instances(device: &Device<'_>, mode: &MigMode, state: GpuMigState) -> Result<GpuMigState, FailedCall> {
    let enabled = mode.current == NVML_DEVICE_MIG_ENABLE;
    Ok(GpuMigState {
        enabled,
        pending: mode.pending == NVML_DEVICE_MIG_ENABLE,
        instances: if enabled {
            instances(device, &state.geometry)?
        } else {
            Vec::new()
        },
        ..state
    })
}

/// Returns slices and profiles. Goes on past kinds that the driver refuses, as NVIDIA's go-nvlib does: there may be gaps.
fn geometry(
    device: &Device<'_>,
    memory: u64,
    most_of_board: impl Fn(u32) -> Option<u32>,
) -> Result<MigGeometry, FailedCall> {
    let mut profiles = Vec::new();
    for kind in 0..MAX_KINDS {
        let info = match device.profile_info(kind) {
            Ok(info) => info,
            Err(NvmlError::NotSupported | NvmlError::InvalidArg) => continue,
            Err(error) => return Err(("nvmlDeviceGetGpuInstanceProfileInfo", error)),
        };
        let placements = match mig_instances::possible_placements(device, info.id) {
            Err(NvmlError::NotSupported) => continue,
            answer => answer.map_err(failed_in("nvmlDeviceGetGpuInstancePossiblePlacements_v2"))?,
        };
        let slices = MigSlices {
            gpu_instance: info.slice_count,
            compute_instance: info.slice_count,
        };
        profiles.push(GpuInstanceProfile {
            id: info.id,
            name: profile::name(slices, info.memory_size_mb, memory, Some(kind)),
            slices: info.slice_count,
            max_count: most_of_board(info.id).unwrap_or(info.instance_count),
            placements,
        });
    }
    profiles.sort_by_key(|profile| profile.name.contains(['+', '-']));
    let ends = profiles.iter().flat_map(|profile| &profile.placements);
    Ok(MigGeometry {
        memory_slices: ends.map(|place| place.start + place.size).max().unwrap_or_default(),
        compute_slices: profiles.iter().map(|profile| profile.slices).max().unwrap_or_default(),
        profiles,
    })
}

/// Returns the most instances of a profile by its id, on a board of which NVML tells a wrong number: A30 (mig-parted,
/// `pkg/mig/discovery`).
fn most_of_board(device: &Device<'_>) -> impl Fn(u32) -> Option<u32> + use<> {
    let pci = device.pci_info().ok();
    let is_a30 = pci.is_some_and(|pci| pci.pci_device_id == A30);
    let board = is_a30.then(|| MigBoard::named("A30-24GB").ok()).flatten();
    move |profile| Some(board.as_ref()?.geometry.profile(profile)?.max_count)
}

fn instances(device: &Device<'_>, geometry: &MigGeometry) -> Result<Vec<GpuInstance>, FailedCall> {
    let uuids = uuids(device)?;
    let mut found = Vec::new();
    for profile in &geometry.profiles {
        let handles = match mig_instances::gpu_instances(device, profile.id) {
            Err(NvmlError::NotSupported) => continue,
            answer => answer.map_err(failed_in("nvmlDeviceGetGpuInstances"))?,
        };
        // Instances of one profile have the same kinds of compute instances.
        let kinds = handles.first().map(compute_profiles).transpose()?.unwrap_or_default();
        for handle in handles {
            let (id, placed) = handle.describe().map_err(failed_in("nvmlGpuInstanceGetInfo"))?;
            let compute = compute_instances(&handle, id, &kinds, profile.slices, &uuids)?;
            found.push(GpuInstance { id, placed, compute });
        }
    }
    found.sort_by_key(|instance| instance.placed);
    Ok(found)
}

fn compute_instances(
    handle: &GpuInstanceHandle<'_>,
    gpu_instance: u32,
    kinds: &[ComputeProfile],
    slices: u32,
    uuids: &BTreeMap<(u32, u32), String>,
) -> Result<Vec<ComputeInstance>, FailedCall> {
    let mut found = Vec::new();
    let largest = largest(kinds).map(|profile| profile.id);
    for profile in kinds {
        let handles = handle
            .compute_instances(profile.id)
            .map_err(failed_in("nvmlGpuInstanceGetComputeInstances"))?;
        for compute in handles {
            let id = compute.id().map_err(failed_in("nvmlComputeInstanceGetInfo_v2"))?;
            found.push(ComputeInstance {
                id,
                uuid: uuids.get(&(gpu_instance, id)).cloned(),
                fills: profile.slices == slices && Some(profile.id) == largest,
            });
        }
    }
    found.sort_by_key(|compute| compute.id);
    Ok(found)
}

/// Returns the kind of compute instance that fills a GPU instance: of those with most slices, the one with most multiprocessors, since
/// some leave a part to others.
pub fn largest(kinds: &[ComputeProfile]) -> Option<&ComputeProfile> {
    kinds
        .iter()
        .max_by_key(|kind| (kind.slices, kind.multiprocessors, std::cmp::Reverse(kind.id)))
}

/// Returns the kinds of compute instances of a GPU instance.
pub fn compute_profiles(handle: &GpuInstanceHandle<'_>) -> Result<Vec<ComputeProfile>, FailedCall> {
    let mut profiles: Vec<ComputeProfile> = Vec::new();
    for kind in 0..MAX_KINDS {
        match handle.compute_profile(kind) {
            Ok(profile) => profiles.push(profile),
            Err(NvmlError::NotSupported | NvmlError::InvalidArg) => {}
            Err(error) => return Err(("nvmlGpuInstanceGetComputeInstanceProfileInfo", error)),
        }
    }
    Ok(profiles)
}

/// A MIG device of this session.
pub struct MigDeviceHandle<'nvml> {
    /// Id of its GPU instance.
    pub gpu_instance: u32,
    /// Id of its compute instance within that.
    pub compute_instance: u32,
    /// Its own handle.
    pub device: Device<'nvml>,
}

/// Returns the MIG devices of a GPU. One that has gone may be listed for as long as a session from before is open
/// (NVIDIA/libcudacxx#224), and is left out.
pub fn mig_devices<'nvml>(device: &Device<'nvml>) -> Result<Vec<MigDeviceHandle<'nvml>>, FailedCall> {
    let count = device
        .mig_device_count()
        .map_err(failed_in("nvmlDeviceGetMaxMigDeviceCount"))?;
    let mut found = Vec::new();
    for index in 0..count {
        let device = mig_device_at(device, index).map_err(failed_in("nvmlDeviceGetMigDeviceHandleByIndex"))?;
        let Some(device) = device else { continue };
        let ids = present(raw::gpu_instance_id(&device)).map_err(failed_in("nvmlDeviceGetGpuInstanceId"))?;
        let Some(gpu_instance) = ids else { continue };
        let ids = present(raw::compute_instance_id(&device)).map_err(failed_in("nvmlDeviceGetComputeInstanceId"))?;
        let Some(compute_instance) = ids else { continue };
        found.push(MigDeviceHandle {
            gpu_instance,
            compute_instance,
            device,
        });
    }
    Ok(found)
}

/// Returns none for the answers about a handle of what has gone.
fn present<T>(answer: Result<T, NvmlError>) -> Result<Option<T>, NvmlError> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(NvmlError::NotFound | NvmlError::InvalidArg) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the UUIDs of the MIG devices by the ids of GPU instance and compute instance.
fn uuids(device: &Device<'_>) -> Result<BTreeMap<(u32, u32), String>, FailedCall> {
    let uuid = |mig: MigDeviceHandle<'_>| {
        let uuid = present(mig.device.uuid()).map_err(failed_in("nvmlDeviceGetUUID"));
        let ids = (mig.gpu_instance, mig.compute_instance);
        uuid.transpose().map(|uuid| uuid.map(|uuid| (ids, uuid)))
    };
    mig_devices(device)?.into_iter().filter_map(uuid).collect()
}
