//! The call that nvml-wrapper lacks, the only unsafe code.

#![allow(unsafe_code, reason = "NVML is a C library")]

use nvml_wrapper::{
    Device,
    error::{NvmlError, nvml_sym, nvml_try},
};
use nvml_wrapper_sys::bindings::{nvmlGpuFabricInfo_t, nvmlReturn_enum_NVML_SUCCESS as SUCCESS};
use serde::{Deserialize, Serialize};

/// Registration of a GPU with its NVLink fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FabricAnswer {
    /// `nvmlGpuFabricState_t`: 0 not supported, 1 not started, 2 in progress, 3 completed.
    pub state: u8,
    /// Return code with which the fabric completed.
    pub status: u32,
}

/// Asks by the first version of the call, which every driver with fabrics has.
pub fn fabric(device: &Device<'_>) -> Result<FabricAnswer, NvmlError> {
    let call = *nvml_sym(device.nvml().lib().nvmlDeviceGetGpuFabricInfo.as_ref())?;
    let mut info = nvmlGpuFabricInfo_t {
        clusterUuid: [0; 16],
        status: SUCCESS,
        cliqueId: 0,
        state: 0,
    };
    // SAFETY: the symbol is there; the handle belongs to this session, which `device` borrows; NVML writes one structure
    // to `info`, which outlives the call.
    nvml_try(unsafe { call(device.handle(), &raw mut info) })?;
    Ok(FabricAnswer {
        state: info.state,
        status: info.status,
    })
}
