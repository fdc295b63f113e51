//! Calls that nvml-wrapper lacks or gets wrong. The only unsafe code of the agent.

#![allow(unsafe_code, reason = "NVML is a C library")]

use nvml_wrapper::Device;
use nvml_wrapper_sys::bindings::{
    nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_GPU as GPU,
    nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH as SWITCH,
    nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_UNKNOWN as UNKNOWN, nvmlReturn_enum_NVML_SUCCESS as SUCCESS,
};

/// What an NVLink leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteDevice {
    Gpu,
    Switch,
    Other,
}

/// What an NVLink leads to; none where the driver does not say.
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
