//! GPUs and MIG devices in the API's types. Pure.

use crate::{
    driver::machine::HostDriver,
    health::{fault_text, node_health::NodeHealth},
};
use gpunode_crds::{DeviceHealth, GpuDevice, LastXid, MigDevice, Vgpu};
use gpunode_gpu as gpu;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// Returns a GPU with its health.
pub fn device(gpu: &gpu::Gpu, node_health: &NodeHealth) -> GpuDevice {
    GpuDevice {
        index: gpu.index,
        uuid: gpu.uuid.clone(),
        product: gpu.product(),
        memory_mib: gpu.memory_mib,
        architecture: gpu.compute_capability.is_some().then(|| gpu.architecture()),
        compute_capability: gpu.compute_capability.map(|(major, minor)| format!("{major}.{minor}")),
        pci_bus_id: gpu.pci_bus_id.clone(),
        pci_device_id: gpu.pci_device_id.map(|id| format!("0x{id:08X}")),
        health: health(node_health, &[&gpu.uuid]),
        numa_node: gpu.numa_node,
        mode: gpu.mode,
        fabric: gpu.fabric.as_ref().and_then(|fabric| fabric.place.clone()),
        last_xid: last_xid(node_health, &gpu.uuid),
        missing_since: None,
        mig_mode: gpu.mig_mode,
        mig: None,
        mig_devices: mig_devices(gpu, node_health),
        links: gpu.links.clone(),
    }
}

/// Returns the health of the device that these UUIDs make up.
fn health(node_health: &NodeHealth, uuids: &[&str]) -> Option<DeviceHealth> {
    let faults = node_health.faults.as_ref()?;
    Some(fault_text::health(faults, uuids, &node_health.rules))
}

/// Returns the last XID of a GPU.
fn last_xid(node_health: &NodeHealth, uuid: &str) -> Option<LastXid> {
    let (xid, time) = node_health.last_xids.last(uuid)?;
    Some(LastXid {
        xid,
        message: gpunode_config::describe_xid(xid).map(|(meaning, _)| meaning.to_owned()),
        time: Some(Time(time)),
    })
}

/// Returns the host driver of virtual GPUs.
pub fn vgpu(driver: &HostDriver) -> Vgpu {
    let told = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    Vgpu {
        host_driver_version: told(&driver.version),
        host_driver_branch: told(&driver.branch),
    }
}

/// Returns the MIG devices, ordered by instance.
fn mig_devices(gpu: &gpu::Gpu, node_health: &NodeHealth) -> Vec<MigDevice> {
    let device = |mig: &gpu::MigInstance| MigDevice {
        health: health(node_health, &[&mig.facts.uuid, &gpu.uuid]),
        ..mig.facts.clone()
    };
    let mut devices: Vec<MigDevice> = gpu.mig_devices.iter().map(device).collect();
    devices.sort_by_key(|device| (device.gpu_instance, device.compute_instance));
    devices
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pci_id_is_written_as_configurations_select_it() {
        let of = |pci_device_id| gpu::Gpu {
            pci_device_id,
            ..gpu::Gpu::default()
        };
        let written = |id| device(&of(id), &NodeHealth::default()).pci_device_id;
        assert_eq!(written(Some(0x20B2_10DE)).as_deref(), Some("0x20B210DE"));
        assert_eq!(written(Some(0x06D1_10DE)).as_deref(), Some("0x06D110DE"));
        assert_eq!(written(None), None);
    }
}
