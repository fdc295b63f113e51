//! Looks GPUs and MIG devices up.
//!
//! `nvmlDeviceGetHandleByUUID` may answer `GPU_IS_LOST` "if any GPU has fallen off the bus" (nvml.h), while look-ups by PCI
//! address and by index answer for their target alone. So a GPU is looked up by its address or index, and a MIG device at
//! its GPU.

use super::error::{FailedCall, failed_in};
use gpunode_gpu::Gpu;
use nvml_wrapper::{Device, Nvml, error::NvmlError};
use std::iter;

const BY_ADDRESS: &str = "nvmlDeviceGetHandleByPciBusId_v2";
const BY_INDEX: &str = "nvmlDeviceGetHandleByIndex_v2";
const MIG_BY_INDEX: &str = "nvmlDeviceGetMigDeviceHandleByIndex";
const UUID: &str = "nvmlDeviceGetUUID";

/// Identity of a GPU, and the slot that it is in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuAddress {
    /// UUID of the GPU.
    pub uuid: String,
    /// Its PCI address, if known.
    pub pci_bus_id: Option<String>,
}

impl GpuAddress {
    /// Returns the address of a GPU that was read.
    pub fn of(gpu: &Gpu) -> Self {
        Self {
            uuid: gpu.uuid.clone(),
            pci_bus_id: gpu.pci_bus_id.clone(),
        }
    }
}

/// Looks a GPU up by its PCI address. Returns [`NvmlError::NotFound`] if NVML lists no GPU there; also see [`is_replaced`].
pub fn find_gpu<'nvml>(nvml: &'nvml Nvml, gpu: &GpuAddress) -> Result<Device<'nvml>, FailedCall> {
    let Some(address) = &gpu.pci_bus_id else {
        return find_gpu_by_index(nvml, &gpu.uuid);
    };
    let device = nvml
        .device_by_pci_bus_id(address.as_str())
        .map_err(failed_in(BY_ADDRESS))?;
    if device.uuid().map_err(failed_in(UUID))? == gpu.uuid {
        Ok(device)
    } else {
        Err((UUID, NvmlError::NotFound))
    }
}

/// Returns true for the error of [`find_gpu`] when another GPU is at the address.
pub fn is_replaced(failed: &FailedCall) -> bool {
    matches!(failed, (UUID, NvmlError::NotFound))
}

/// Looks a GPU of unknown address up among all. Of those that do not answer, the last one's error is returned if none is it.
fn find_gpu_by_index<'nvml>(nvml: &'nvml Nvml, uuid: &str) -> Result<Device<'nvml>, FailedCall> {
    let count = nvml.device_count().map_err(failed_in("nvmlDeviceGetCount_v2"))?;
    let mut failed = (BY_INDEX, NvmlError::NotFound);
    for index in 0..count {
        let device = nvml.device_by_index(index).map_err(failed_in(BY_INDEX));
        match device.and_then(|device| Ok((device.uuid().map_err(failed_in(UUID))?, device))) {
            Ok((found, device)) if found == uuid => return Ok(device),
            Ok(_) => {}
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// Looks a MIG device up at its GPU. `index` is that of the last reading; the layout may have changed since.
pub fn find_mig_device<'nvml>(gpu: &Device<'nvml>, index: u32, uuid: &str) -> Result<Device<'nvml>, FailedCall> {
    let others = iter::once_with(|| gpu.mig_device_count().unwrap_or_default()).flat_map(|count| 0..count);
    let mut failed = (MIG_BY_INDEX, NvmlError::NotFound);
    for index in iter::once(index).chain(others) {
        match mig_device_at(gpu, index) {
            Ok(Some(device)) => match device.uuid() {
                Ok(found) if found == uuid => return Ok(device),
                Ok(_) => {}
                Err(error) => failed = (UUID, error),
            },
            Ok(None) => {}
            Err(error) => failed = (MIG_BY_INDEX, error),
        }
    }
    Err(failed)
}

/// Returns the MIG device of a GPU at an index; none in a gap. The indices of existing MIG devices are not contiguous, and a
/// driver may answer a gap with another code than `NOT_FOUND`.
pub fn mig_device_at<'nvml>(gpu: &Device<'nvml>, index: u32) -> Result<Option<Device<'nvml>>, NvmlError> {
    match gpu.mig_device_by_index(index) {
        Ok(device) => Ok(Some(device)),
        Err(NvmlError::NotFound | NvmlError::NotSupported | NvmlError::InvalidArg) => Ok(None),
        Err(error) => Err(error),
    }
}
