//! The NVLink fabric, which Hopper and newer boards on an `NVSwitch` join.

use gpunode_scenario::{Architecture, Gpu, NvLinkEnd, ReturnCode};
use nvml_wrapper_sys::bindings::{
    NVML_GPU_FABRIC_STATE_COMPLETED, nvmlGpuFabricInfo_t, nvmlGpuFabricInfo_v2_t, nvmlGpuFabricInfo_v3_t,
};

use crate::library::Answer;

/// `NVML_GPU_FABRIC_HEALTH_SUMMARY_HEALTHY`.
const HEALTHY: u8 = 1;
/// Every part of the health mask says "not degraded": 2 bits each, value 2 for false.
const HEALTH_MASK: u32 = 0b10;

/// Returns the fields that all versions of the structure have.
pub(crate) fn info(gpu: &Gpu) -> Answer<nvmlGpuFabricInfo_t> {
    let switched = gpu
        .links
        .iter()
        .any(|link| matches!(link.remote, NvLinkEnd::Switch { .. }));
    if !switched || (gpu.board.architecture as u32) < Architecture::Hopper as u32 {
        return Err(ReturnCode::NotSupported);
    }
    let (uuid, clique) = gpu.fabric;
    Ok(nvmlGpuFabricInfo_t {
        clusterUuid: uuid.to_be_bytes(),
        status: ReturnCode::Success.code(),
        cliqueId: clique,
        state: u8::try_from(NVML_GPU_FABRIC_STATE_COMPLETED).unwrap_or_default(),
    })
}

/// Version 2 of the structure. The caller has set `version`.
pub(crate) fn info_v2(gpu: &Gpu, version: u32) -> Answer<nvmlGpuFabricInfo_v2_t> {
    let info = info(gpu)?;
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
pub(crate) fn info_v3(gpu: &Gpu, version: u32) -> Answer<nvmlGpuFabricInfo_v3_t> {
    let info = info_v2(gpu, version)?;
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
