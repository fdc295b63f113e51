//! Makes the calls that nvml-wrapper lacks or gets wrong. The only unsafe code of the agent.
//!
//! | module | what it does |
//! |---|---|
//! | `mig_instances` | creates, lists and destroys MIG instances |

#![allow(unsafe_code, reason = "NVML is a C library")]

pub mod mig_instances;

use super::error::is_missing;
use gpunode_gpu::{Fabric, FabricRegistration};
use nvml_wrapper::{
    Device, EventSet,
    error::{NvmlError, nvml_sym, nvml_try},
};
use nvml_wrapper_sys::bindings::{
    NVML_GPU_FABRIC_STATE_COMPLETED as COMPLETED, NVML_GPU_FABRIC_STATE_NOT_SUPPORTED as NOT_SUPPORTED,
    nvmlEventData_t, nvmlGpuFabricInfo_t, nvmlGpuFabricInfo_v2_t, nvmlGpuInstanceInfo_t, nvmlGpuInstancePlacement_t,
    nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_GPU as GPU,
    nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH as SWITCH,
    nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_UNKNOWN as UNKNOWN, nvmlMemory_t,
    nvmlReturn_enum_NVML_ERROR_DEPRECATED as DEPRECATED,
    nvmlReturn_enum_NVML_ERROR_FUNCTION_NOT_FOUND as FUNCTION_NOT_FOUND, nvmlReturn_enum_NVML_SUCCESS as SUCCESS,
};
use std::time::Duration;

/// Type of the remote end of an NVLink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteDevice {
    Gpu,
    Switch,
    Other,
}

/// Returns the type of the remote end of an NVLink; none when the driver does not report it.
///
/// `NvLink::remote_device_type` of nvml-wrapper 0.13 writes the answer into a temporary and always returns `Unknown`.
pub fn remote_device_type(device: &Device<'_>, link: u32) -> Option<RemoteDevice> {
    let call = *device.nvml().lib().nvmlDeviceGetNvLinkRemoteDeviceType.as_ref().ok()?;
    let mut kind = UNKNOWN;
    // SAFETY: the symbol is there; the handle belongs to this session, which `device` borrows; NVML writes one number
    // to `kind`, which outlives the call.
    let code = unsafe { call(device.handle(), link, &raw mut kind) };
    match kind {
        _ if code != SUCCESS => None,
        GPU => Some(RemoteDevice::Gpu),
        SWITCH => Some(RemoteDevice::Switch),
        _ => Some(RemoteDevice::Other),
    }
}

/// Returns the registration of a GPU in its NVLink fabric. None where the board or the driver reports no state. A fabric inside
/// the node has no UUID. `status` counts only when the registration is completed (`nvmlGpuFabricInfo_t` in nvml.h).
pub fn fabric(device: &Device<'_>) -> Result<Option<FabricRegistration>, NvmlError> {
    let info = match fabric_info(device) {
        Err(NvmlError::NotSupported) => return Ok(None),
        Err(error) if is_missing(&error) => return Ok(None),
        info => info?,
    };
    let state = u32::from(info.state);
    if state == NOT_SUPPORTED {
        return Ok(None);
    }
    let is_complete = state == COMPLETED && info.status == SUCCESS;
    let uuid = u128::from_be_bytes(info.clusterUuid);
    let digits = format!("{uuid:032x}");
    let groups = [0..8, 8..12, 12..16, 16..20, 20..32].map(|group| digits.get(group).unwrap_or_default());
    let place = (is_complete && uuid != 0).then(|| Fabric {
        cluster_uuid: groups.join("-"),
        clique_id: info.cliqueId.into(),
    });
    Ok(Some(FabricRegistration { is_complete, place }))
}

/// Makes the first version of the call, which every driver with fabrics has so far; it is deprecated since NVML 13.0.
fn fabric_info(device: &Device<'_>) -> Result<nvmlGpuFabricInfo_t, NvmlError> {
    let lib = device.nvml().lib();
    let mut info = nvmlGpuFabricInfo_t {
        clusterUuid: [0; 16],
        status: SUCCESS,
        cliqueId: 0,
        state: 0,
    };
    let code = match lib.nvmlDeviceGetGpuFabricInfo.as_ref() {
        // SAFETY: the symbol is there; the handle belongs to this session, which `device` borrows; NVML writes one structure
        // to `info`, which outlives the call.
        Ok(call) => unsafe { call(device.handle(), &raw mut info) },
        Err(_) => DEPRECATED,
    };
    if !matches!(code, DEPRECATED | FUNCTION_NOT_FOUND) {
        return nvml_try(code).map(|()| info);
    }
    let call = *nvml_sym(lib.nvmlDeviceGetGpuFabricInfoV.as_ref())?;
    let size = u32::try_from(size_of::<nvmlGpuFabricInfo_v2_t>()).unwrap_or_default();
    let mut second = nvmlGpuFabricInfo_v2_t {
        version: size | 2 << 24,
        clusterUuid: [0; 16],
        status: SUCCESS,
        cliqueId: 0,
        state: 0,
        healthMask: 0,
    };
    // SAFETY: as above; NVML writes the structure whose version it finds there.
    nvml_try(unsafe { call(device.handle(), (&raw mut second).cast()) })?;
    Ok(nvmlGpuFabricInfo_t {
        clusterUuid: second.clusterUuid,
        status: second.status,
        cliqueId: second.cliqueId,
        state: second.state,
    })
}

/// Returns the total memory of a GPU or MIG device in bytes.
///
/// Drivers before 510 lack the second version of the call, and nvml-wrapper 0.13 makes no other.
pub fn total_memory(device: &Device<'_>) -> Result<u64, NvmlError> {
    match device.memory_info() {
        Err(error) if is_missing(&error) => {}
        answer => return answer.map(|memory| memory.total),
    }
    let call = *nvml_sym(device.nvml().lib().nvmlDeviceGetMemoryInfo.as_ref())?;
    let mut memory = nvmlMemory_t {
        total: 0,
        free: 0,
        used: 0,
    };
    // SAFETY: the symbol is there; the handle belongs to this session, which `device` borrows; NVML writes one structure
    // to `memory`, which outlives the call.
    nvml_try(unsafe { call(device.handle(), &raw mut memory) })?;
    Ok(memory.total)
}

/// Returns the id of the GPU instance of a MIG device.
pub fn gpu_instance_id(device: &Device<'_>) -> Result<u32, NvmlError> {
    let call = *nvml_sym(device.nvml().lib().nvmlDeviceGetGpuInstanceId.as_ref())?;
    let mut id = 0;
    // SAFETY: the symbol is there; the handle belongs to this session, which `device` borrows; NVML writes one number
    // to `id`, which outlives the call.
    nvml_try(unsafe { call(device.handle(), &raw mut id) })?;
    Ok(id)
}

/// Returns the id of a MIG device's compute instance within its GPU instance.
pub fn compute_instance_id(device: &Device<'_>) -> Result<u32, NvmlError> {
    let call = *nvml_sym(device.nvml().lib().nvmlDeviceGetComputeInstanceId.as_ref())?;
    let mut id = 0;
    // SAFETY: as above.
    nvml_try(unsafe { call(device.handle(), &raw mut id) })?;
    Ok(id)
}

/// Returns the profile id of a GPU instance.
pub fn gpu_instance_profile(device: &Device<'_>, instance: u32) -> Result<u32, NvmlError> {
    let lib = device.nvml().lib();
    let find = *nvml_sym(lib.nvmlDeviceGetGpuInstanceById.as_ref())?;
    let describe = *nvml_sym(lib.nvmlGpuInstanceGetInfo.as_ref())?;
    let mut handle = std::ptr::null_mut();
    // SAFETY: the symbol is there; the handle of the GPU belongs to this session, which `device` borrows; NVML writes
    // one handle, for which there is room.
    nvml_try(unsafe { find(device.handle(), instance, &raw mut handle) })?;
    let mut info = nvmlGpuInstanceInfo_t {
        device: std::ptr::null_mut(),
        id: 0,
        profileId: 0,
        placement: nvmlGpuInstancePlacement_t { start: 0, size: 0 },
    };
    // SAFETY: the symbol is there; NVML has just given the handle; it writes one structure, for which there is room.
    nvml_try(unsafe { describe(handle, &raw mut info) })?;
    Ok(info.profileId)
}

/// Returns a number that identifies the device in its session.
pub fn handle_id(device: &Device<'_>) -> usize {
    // SAFETY: the pointer is compared and never followed.
    unsafe { device.handle() }.addr()
}

/// Returns the event types that the driver can report for a device, as bits.
pub fn supported_events(device: &Device<'_>) -> Result<u64, NvmlError> {
    let call = *nvml_sym(device.nvml().lib().nvmlDeviceGetSupportedEventTypes.as_ref())?;
    let mut types = 0;
    // SAFETY: the symbol is there; the handle belongs to this session, which `device` borrows; NVML writes one number
    // to `types`, which outlives the call.
    nvml_try(unsafe { call(device.handle(), &raw mut types) })?;
    Ok(types)
}

/// Registers a device's events with an event set of its session.
///
/// `Device::register_events` of nvml-wrapper 0.13 frees the set when one device fails.
pub fn register_events(set: &EventSet<'_>, device: &Device<'_>, types: u64) -> Result<(), NvmlError> {
    let call = *nvml_sym(device.nvml().lib().nvmlDeviceRegisterEvents.as_ref())?;
    // SAFETY: the symbol is there; device and set are borrowed, and belong to a session each: another than the set's is
    // no handle that NVML knows there.
    nvml_try(unsafe { call(device.handle(), types, set.handle()) })
}

/// Event as the driver reports it.
pub struct Reported {
    /// [`handle_id`] of the GPU.
    pub device: usize,
    /// Event type, as a bit.
    pub kind: u64,
    /// Number of the XID, if the event is one.
    pub data: u64,
    /// Ids of GPU instance and compute instance; [`NO_INSTANCE`] for the GPU as a whole.
    pub instance: (u32, u32),
}

/// Id of both instances when an event concerns the whole GPU.
pub const NO_INSTANCE: u32 = u32::MAX;

/// Waits for the next event of a set. Returns [`NvmlError::Timeout`] when none arrives.
///
/// `EventSet::wait` of nvml-wrapper 0.13 drops the MIG instance and event types that it does not know.
pub fn wait(set: &EventSet<'_>, limit: Duration) -> Result<Reported, NvmlError> {
    let timeout_ms = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX);
    let call = *nvml_sym(set.nvml.lib().nvmlEventSetWait_v2.as_ref())?;
    let mut data = nvmlEventData_t {
        device: std::ptr::null_mut(),
        eventType: 0,
        eventData: 0,
        gpuInstanceId: NO_INSTANCE,
        computeInstanceId: NO_INSTANCE,
    };
    // SAFETY: the symbol is there; the set is borrowed with its session; NVML writes one structure, which outlives the
    // call.
    nvml_try(unsafe { call(set.handle(), &raw mut data, timeout_ms) })?;
    Ok(Reported {
        device: data.device.addr(),
        kind: data.eventType,
        data: data.eventData,
        instance: (data.gpuInstanceId, data.computeInstanceId),
    })
}
