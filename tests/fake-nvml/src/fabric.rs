//! The NVLink fabric, which Hopper and newer boards on an `NVSwitch` join.

use gpunode_scenario::{Architecture, FabricState, Gpu, NvLink, NvLinkEnd, ReturnCode};
use nvml_wrapper_sys::bindings::{
    NVML_GPU_FABRIC_STATE_COMPLETED as COMPLETED, NVML_GPU_FABRIC_STATE_IN_PROGRESS as IN_PROGRESS,
    NVML_GPU_FABRIC_STATE_NOT_STARTED as NOT_STARTED, NVML_GPU_FABRIC_STATE_NOT_SUPPORTED as NOT_SUPPORTED,
    nvmlGpuFabricInfo_t, nvmlGpuFabricInfo_v2_t, nvmlGpuFabricInfo_v3_t,
};

use crate::{library::Answer, node::GpuCall};

/// `NVML_GPU_FABRIC_HEALTH_SUMMARY_HEALTHY`.
const HEALTHY: u8 = 1;
/// Every part of the health mask says "not degraded": 2 bits each, value 2 for false.
const HEALTH_MASK: u32 = 0b10;

fn leads_to_switch(link: &NvLink) -> bool {
    matches!(link.remote, NvLinkEnd::Switch { .. })
}

fn has_fabric(gpu: &Gpu) -> bool {
    gpu.links.iter().any(leads_to_switch) && gpu.board.architecture as u32 >= Architecture::Hopper as u32
}

/// Returns true if a link is down because its GPU has not joined the fabric.
pub(crate) fn keeps_down(call: &GpuCall, link: &NvLink) -> Answer<bool> {
    let may_be_up = matches!(call.state().fabric, FabricState::Completed | FabricState::NotSupported);
    Ok(!may_be_up && leads_to_switch(link) && has_fabric(call.hardware()?))
}

/// Returns the fields that all versions of the structure have.
pub(crate) fn info(call: &GpuCall) -> Answer<nvmlGpuFabricInfo_t> {
    let gpu = call.hardware()?;
    if !has_fabric(gpu) {
        return Err(ReturnCode::NotSupported);
    }
    let (state, status) = match call.state().fabric {
        FabricState::Completed => (COMPLETED, ReturnCode::Success),
        FabricState::Failed => (COMPLETED, ReturnCode::Unknown),
        FabricState::NotStarted => (NOT_STARTED, ReturnCode::Success),
        FabricState::InProgress => (IN_PROGRESS, ReturnCode::Success),
        FabricState::NotSupported => (NOT_SUPPORTED, ReturnCode::Success),
    };
    let has_joined = call.state().fabric == FabricState::Completed;
    let (uuid, clique) = if has_joined { gpu.fabric } else { (0, 0) };
    Ok(nvmlGpuFabricInfo_t {
        clusterUuid: uuid.to_be_bytes(),
        status: status.code(),
        cliqueId: clique,
        state: u8::try_from(state).unwrap_or_default(),
    })
}

/// Version 2 of the structure. The caller has set `version`.
pub(crate) fn info_v2(call: &GpuCall, version: u32) -> Answer<nvmlGpuFabricInfo_v2_t> {
    let info = info(call)?;
    Ok(nvmlGpuFabricInfo_v2_t {
        version,
        clusterUuid: info.clusterUuid,
        status: info.status,
        cliqueId: info.cliqueId,
        state: info.state,
        healthMask: HEALTH_MASK,
    })
}

/// Version 3 of the structure. The caller has set `version`.
pub(crate) fn info_v3(call: &GpuCall, version: u32) -> Answer<nvmlGpuFabricInfo_v3_t> {
    let info = info_v2(call, version)?;
    Ok(nvmlGpuFabricInfo_v3_t {
        version,
        clusterUuid: info.clusterUuid,
        status: info.status,
        cliqueId: info.cliqueId,
        state: info.state,
        healthMask: info.healthMask,
        healthSummary: HEALTHY,
    })
}
