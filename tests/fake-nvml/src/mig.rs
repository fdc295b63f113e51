//! What can be read about MIG while it is off everywhere. Enabling it is not simulated.

use gpunode_scenario::{Gpu, ReturnCode};

use crate::{handle::DeviceHandle, library::Answer};

/// `NVML_DEVICE_MIG_DISABLE`.
const DISABLED: u32 = 0;

/// Current and pending mode.
pub(crate) fn mode(gpu: &Gpu) -> Answer<(u32, u32)> {
    capable(gpu)?;
    Ok((DISABLED, DISABLED))
}

/// The most MIG devices that can exist now: none while the mode is off.
pub(crate) fn max_devices(_gpu: &Gpu) -> u32 {
    0
}

/// The MIG device at an index: there is none.
pub(crate) fn device(gpu: &Gpu, _index: u32) -> Answer<DeviceHandle> {
    capable(gpu)?;
    Err(ReturnCode::NotFound)
}

fn capable(gpu: &Gpu) -> Answer {
    if gpu.board.max_mig_devices == 0 { Err(ReturnCode::NotSupported) } else { Ok(()) }
}
