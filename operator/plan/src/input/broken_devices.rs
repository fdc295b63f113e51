//! Broken devices in the status of a `GpuNode`, and the containers that hold them.

use gpunode_crds::{DeviceHealth, FaultReason, GpuNodeStatus};
use jiff::Timestamp;
use std::collections::HashMap;

/// Removes the holders of all but broken devices, which come and go, from the status of a `GpuNode`.
pub fn retain_holders_of_broken(status: &mut GpuNodeStatus) {
    let mut holders = std::mem::take(&mut status.holders);
    if !holders.is_empty() {
        let broken = broken_devices(status);
        holders.retain(|holder| broken.contains_key(holder.device.as_str()));
    }
    status.holders = holders;
}

/// Returns the broken devices by UUID, each with its fault and the moment since which it is unhealthy. A MIG device is
/// broken with its GPU.
pub fn broken_devices(status: &GpuNodeStatus) -> HashMap<&str, (Timestamp, String)> {
    let mut broken = HashMap::new();
    for gpu in &status.gpus {
        let of_gpu = fault_of(gpu.health.as_ref());
        for mig in &gpu.mig_devices {
            let first = [of_gpu.clone(), fault_of(mig.health.as_ref())]
                .into_iter()
                .flatten()
                .min();
            broken.extend(first.map(|first| (mig.uuid.as_str(), first)));
        }
        broken.extend(of_gpu.map(|of_gpu| (gpu.uuid.as_str(), of_gpu)));
    }
    broken
}

/// Returns moment and fault of a broken device; none without a moment, which decides who holds it: the device has been
/// given to nobody since it became unhealthy.
fn fault_of(health: Option<&DeviceHealth>) -> Option<(Timestamp, String)> {
    let health = health.filter(|health| health.is_broken())?;
    let text = health.message.as_deref().or(health.reason.map(FaultReason::as_str));
    Some((
        health.since.as_ref()?.0,
        text.unwrap_or("the agent names no fault").to_owned(),
    ))
}
