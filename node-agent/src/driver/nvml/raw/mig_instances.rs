//! Calls about GPU instances and compute instances, which nvml-wrapper lacks or, as `possible_placements`, gets wrong.

use gpunode_gpu::GpuVirtualization;
use gpunode_mig::{PlacedInstance, SlicePlacement};
use nvml_wrapper::{
    Device,
    error::{NvmlError, nvml_sym, nvml_try},
};
use nvml_wrapper_sys::bindings::{
    NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED as SHARED, nvmlComputeInstance_t, nvmlComputeInstanceInfo_t,
    nvmlComputeInstancePlacement_t, nvmlComputeInstanceProfileInfo_t, nvmlGpuInstance_t, nvmlGpuInstanceInfo_t,
    nvmlGpuInstancePlacement_t, nvmlGpuVirtualizationMode_NVML_GPU_VIRTUALIZATION_MODE_NONE as NONE,
    nvmlGpuVirtualizationMode_NVML_GPU_VIRTUALIZATION_MODE_PASSTHROUGH as PASSTHROUGH,
    nvmlReturn_enum_NVML_SUCCESS as SUCCESS,
};
use std::{marker::PhantomData, ptr};

/// Room for instances of one profile: more than any board has, and than any driver returns (`nvmlDeviceGetGpuInstances`
/// wants room for as many as the profile allows).
const MOST_INSTANCES: usize = 64;

/// A GPU instance of this session.
pub struct GpuInstanceHandle<'a> {
    handle: nvmlGpuInstance_t,
    device: &'a Device<'a>,
}

/// A compute instance of this session.
pub struct ComputeInstanceHandle<'a> {
    handle: nvmlComputeInstance_t,
    device: &'a Device<'a>,
    instance: PhantomData<&'a GpuInstanceHandle<'a>>,
}

/// A kind of compute instance within one GPU instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ComputeProfile {
    /// Profile id, which instances carry.
    pub id: u32,
    /// Compute slices.
    pub slices: u32,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
}

/// Returns the virtual machines that a GPU belongs to, or has.
pub fn virtualization(device: &Device<'_>) -> Result<GpuVirtualization, NvmlError> {
    let call = *nvml_sym(device.nvml().lib().nvmlDeviceGetVirtualizationMode.as_ref())?;
    let mut mode = NONE;
    // SAFETY: the symbol is there; the handle belongs to this session, which `device` borrows; NVML writes one number
    // to `mode`, which outlives the call.
    nvml_try(unsafe { call(device.handle(), &raw mut mode) })?;
    Ok(match mode {
        NONE => GpuVirtualization::None,
        PASSTHROUGH => GpuVirtualization::Passthrough,
        _ => GpuVirtualization::Virtual,
    })
}

/// Sets the MIG mode. Returns the activation status, which is apart from the result of the call: none if the mode is in
/// force, otherwise why it is pending.
///
/// `Device::set_mig_mode` of nvml-wrapper 0.13 takes a status that it does not know for the result.
pub fn set_mig_mode(device: &Device<'_>, enabled: bool) -> Result<Option<NvmlError>, NvmlError> {
    let call = *nvml_sym(device.nvml().lib().nvmlDeviceSetMigMode.as_ref())?;
    let mut activation = SUCCESS;
    // SAFETY: the symbol is there; the handle belongs to this session, which `device` borrows; NVML writes one number
    // to `activation`, which outlives the call.
    nvml_try(unsafe { call(device.handle(), enabled.into(), &raw mut activation) })?;
    Ok(nvml_try(activation).err())
}

/// Returns the places that an instance of a profile may take, whether they are free or not.
///
/// `Device::possible_placements` of nvml-wrapper 0.13 always returns none.
pub fn possible_placements(device: &Device<'_>, profile: u32) -> Result<Vec<SlicePlacement>, NvmlError> {
    let lib = device.nvml().lib();
    let call = *nvml_sym(lib.nvmlDeviceGetGpuInstancePossiblePlacements_v2.as_ref())?;
    let mut count = 0;
    // SAFETY: the symbol is there; the handle belongs to this session, which `device` borrows; without an array NVML writes
    // the number of places alone.
    nvml_try(unsafe { call(device.handle(), profile, ptr::null_mut(), &raw mut count) })?;
    let room = usize::try_from(count).unwrap_or(usize::MAX);
    if room > MOST_INSTANCES {
        return Err(NvmlError::InsufficientSize(Some(room)));
    }
    let mut places = vec![nvmlGpuInstancePlacement_t { start: 0, size: 0 }; room];
    // SAFETY: as above; NVML writes all places whatever `count` says (nvml.h), and there is room for as many as it has just
    // told: their number stays the same.
    nvml_try(unsafe { call(device.handle(), profile, places.as_mut_ptr(), &raw mut count) })?;
    places.truncate(usize::try_from(count).unwrap_or_default());
    let place = |place: nvmlGpuInstancePlacement_t| SlicePlacement {
        start: place.start,
        size: place.size,
    };
    Ok(places.into_iter().map(place).collect())
}

/// Creates a GPU instance at a place.
pub fn create_gpu_instance(device: &Device<'_>, placed: &PlacedInstance) -> Result<(), NvmlError> {
    let lib = device.nvml().lib();
    let call = *nvml_sym(lib.nvmlDeviceCreateGpuInstanceWithPlacement.as_ref())?;
    let place = nvmlGpuInstancePlacement_t {
        start: placed.placement.start,
        size: placed.placement.size,
    };
    let mut handle = ptr::null_mut();
    // SAFETY: the symbol is there; the handle of the GPU belongs to this session, which `device` borrows; NVML reads one
    // structure and writes one handle, both of which outlive the call.
    nvml_try(unsafe { call(device.handle(), placed.profile, &raw const place, &raw mut handle) })
}

/// Returns the GPU instances of a profile.
pub fn gpu_instances<'a>(device: &'a Device<'a>, profile: u32) -> Result<Vec<GpuInstanceHandle<'a>>, NvmlError> {
    let call = *nvml_sym(device.nvml().lib().nvmlDeviceGetGpuInstances.as_ref())?;
    let mut handles = [ptr::null_mut(); MOST_INSTANCES];
    let mut count = u32::try_from(MOST_INSTANCES).unwrap_or_default();
    // SAFETY: the symbol is there; the handle of the GPU belongs to this session, which `device` borrows; the array has room
    // for more instances than any profile allows, and NVML writes their number to `count`.
    nvml_try(unsafe { call(device.handle(), profile, handles.as_mut_ptr(), &raw mut count) })?;
    let found = handles.into_iter().take(usize::try_from(count).unwrap_or_default());
    Ok(found.map(|handle| GpuInstanceHandle { handle, device }).collect())
}

/// Returns the GPU instance with an id.
pub fn gpu_instance<'a>(device: &'a Device<'a>, id: u32) -> Result<GpuInstanceHandle<'a>, NvmlError> {
    let call = *nvml_sym(device.nvml().lib().nvmlDeviceGetGpuInstanceById.as_ref())?;
    let mut handle = ptr::null_mut();
    // SAFETY: the symbol is there; the handle of the GPU belongs to this session, which `device` borrows; NVML writes one
    // handle, for which there is room.
    nvml_try(unsafe { call(device.handle(), id, &raw mut handle) })?;
    Ok(GpuInstanceHandle { handle, device })
}

impl<'a> GpuInstanceHandle<'a> {
    /// Returns id, profile and place.
    pub fn describe(&self) -> Result<(u32, PlacedInstance), NvmlError> {
        let call = *nvml_sym(self.device.nvml().lib().nvmlGpuInstanceGetInfo.as_ref())?;
        let mut info = nvmlGpuInstanceInfo_t {
            device: ptr::null_mut(),
            id: 0,
            profileId: 0,
            placement: nvmlGpuInstancePlacement_t { start: 0, size: 0 },
        };
        // SAFETY: the symbol is there; NVML gave the handle in this session, which `device` borrows; it writes one structure,
        // which outlives the call.
        nvml_try(unsafe { call(self.handle, &raw mut info) })?;
        let placement = SlicePlacement {
            start: info.placement.start,
            size: info.placement.size,
        };
        let profile = info.profileId;
        Ok((info.id, PlacedInstance { placement, profile }))
    }

    /// Destroys the instance, which must have no compute instance.
    pub fn destroy(self) -> Result<(), NvmlError> {
        let call = *nvml_sym(self.device.nvml().lib().nvmlGpuInstanceDestroy.as_ref())?;
        // SAFETY: the symbol is there; NVML gave the handle in this session, which `device` borrows; nobody has it afterwards.
        nvml_try(unsafe { call(self.handle) })
    }

    /// Returns a kind of compute instance, by NVML's `NVML_COMPUTE_INSTANCE_PROFILE_*`.
    pub fn compute_profile(&self, kind: u32) -> Result<ComputeProfile, NvmlError> {
        let lib = self.device.nvml().lib();
        let call = *nvml_sym(lib.nvmlGpuInstanceGetComputeInstanceProfileInfo.as_ref())?;
        let mut info = nvmlComputeInstanceProfileInfo_t {
            id: 0,
            sliceCount: 0,
            instanceCount: 0,
            multiprocessorCount: 0,
            sharedCopyEngineCount: 0,
            sharedDecoderCount: 0,
            sharedEncoderCount: 0,
            sharedJpegCount: 0,
            sharedOfaCount: 0,
        };
        // SAFETY: the symbol is there; NVML gave the handle in this session, which `device` borrows; it writes one structure,
        // which outlives the call.
        nvml_try(unsafe { call(self.handle, kind, SHARED, &raw mut info) })?;
        Ok(ComputeProfile {
            id: info.id,
            slices: info.sliceCount,
            multiprocessors: info.multiprocessorCount,
        })
    }

    /// Returns the compute instances of a profile.
    pub fn compute_instances(&'a self, profile: u32) -> Result<Vec<ComputeInstanceHandle<'a>>, NvmlError> {
        let lib = self.device.nvml().lib();
        let call = *nvml_sym(lib.nvmlGpuInstanceGetComputeInstances.as_ref())?;
        let mut handles = [ptr::null_mut(); MOST_INSTANCES];
        let mut count = u32::try_from(MOST_INSTANCES).unwrap_or_default();
        // SAFETY: the symbol is there; NVML gave the handle in this session, which `device` borrows; the array has room for
        // more instances than any profile allows, and NVML writes their number to `count`.
        nvml_try(unsafe { call(self.handle, profile, handles.as_mut_ptr(), &raw mut count) })?;
        let device = self.device;
        let found = handles.into_iter().take(usize::try_from(count).unwrap_or_default());
        let instance = |handle| ComputeInstanceHandle {
            handle,
            device,
            instance: PhantomData,
        };
        Ok(found.map(instance).collect())
    }

    /// Returns the compute instance with an id.
    pub fn compute_instance(&'a self, id: u32) -> Result<ComputeInstanceHandle<'a>, NvmlError> {
        let lib = self.device.nvml().lib();
        let call = *nvml_sym(lib.nvmlGpuInstanceGetComputeInstanceById.as_ref())?;
        let mut handle = ptr::null_mut();
        // SAFETY: the symbol is there; NVML gave the handle in this session, which `device` borrows; it writes one handle,
        // for which there is room.
        nvml_try(unsafe { call(self.handle, id, &raw mut handle) })?;
        Ok(ComputeInstanceHandle {
            handle,
            device: self.device,
            instance: PhantomData,
        })
    }

    /// Creates a compute instance where the driver chooses.
    pub fn create_compute_instance(&self, profile: u32) -> Result<(), NvmlError> {
        let lib = self.device.nvml().lib();
        let call = *nvml_sym(lib.nvmlGpuInstanceCreateComputeInstance.as_ref())?;
        let mut handle = ptr::null_mut();
        // SAFETY: the symbol is there; NVML gave the handle in this session, which `device` borrows; it writes one handle,
        // for which there is room.
        nvml_try(unsafe { call(self.handle, profile, &raw mut handle) })
    }
}

impl ComputeInstanceHandle<'_> {
    /// Returns its id.
    pub fn id(&self) -> Result<u32, NvmlError> {
        let call = *nvml_sym(self.device.nvml().lib().nvmlComputeInstanceGetInfo_v2.as_ref())?;
        let mut info = nvmlComputeInstanceInfo_t {
            device: ptr::null_mut(),
            gpuInstance: ptr::null_mut(),
            id: 0,
            profileId: 0,
            placement: nvmlComputeInstancePlacement_t { start: 0, size: 0 },
        };
        // SAFETY: the symbol is there; NVML gave the handle in this session, which `device` borrows; it writes one structure,
        // which outlives the call.
        nvml_try(unsafe { call(self.handle, &raw mut info) })?;
        Ok(info.id)
    }

    /// Destroys the instance.
    pub fn destroy(self) -> Result<(), NvmlError> {
        let call = *nvml_sym(self.device.nvml().lib().nvmlComputeInstanceDestroy.as_ref())?;
        // SAFETY: the symbol is there; NVML gave the handle in this session, which `device` borrows; nobody has it afterwards.
        nvml_try(unsafe { call(self.handle) })
    }
}
