//! GPUs and MIG devices in the API's types. Pure.

use crate::{
    driver::machine::HostDriver,
    health::{fault_text, node_health::NodeHealth},
    status::number::number,
};
use gpunode_crds::{DeviceHealth, GpuDevice, GpuLink, MigDevice, MigEngines, MigSlices, Vgpu};
use gpunode_gpu as gpu;

/// Returns a GPU with its health.
pub fn device(gpu: &gpu::Gpu, node_health: &NodeHealth) -> GpuDevice {
    GpuDevice {
        index: number(gpu.index),
        uuid: gpu.uuid.clone(),
        product: gpu.product(),
        memory_mib: mib(gpu.memory_mib),
        architecture: gpu.compute_capability.is_some().then(|| gpu.architecture()),
        compute_capability: gpu.compute_capability.map(|(major, minor)| format!("{major}.{minor}")),
        pci_bus_id: gpu.pci_bus_id.clone(),
        health: health(node_health, &[&gpu.uuid]),
        numa_node: gpu.numa_node.map(number),
        mode: gpu.mode,
        fabric: gpu.fabric.clone(),
        missing_since: None,
        mig_mode: gpu.mig_mode,
        mig_devices: mig_devices(gpu, node_health),
        links: gpu.links.iter().map(link).collect(),
    }
}

/// Returns the health of the device that these UUIDs make up.
fn health(node_health: &NodeHealth, uuids: &[&str]) -> Option<DeviceHealth> {
    let faults = node_health.faults.as_ref()?;
    Some(fault_text::health(faults, uuids, &node_health.rules))
}

/// Returns the host driver of virtual GPUs.
pub fn vgpu(driver: &HostDriver) -> Vgpu {
    let told = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    Vgpu {
        host_driver_version: told(&driver.version),
        host_driver_branch: told(&driver.branch),
    }
}

fn link(link: &gpu::Link) -> GpuLink {
    GpuLink {
        peer: number(link.peer),
        level: link.level,
        nvlinks: (link.nvlinks > 0).then(|| number(link.nvlinks)),
    }
}

/// Returns the MIG devices, ordered by instance.
fn mig_devices(gpu: &gpu::Gpu, node_health: &NodeHealth) -> Vec<MigDevice> {
    let device = |mig: &gpu::MigInstance| MigDevice {
        uuid: mig.uuid.clone(),
        profile: mig.profile.clone(),
        gpu_instance: number(mig.gpu_instance),
        compute_instance: number(mig.compute_instance),
        memory_mib: mib(mig.memory_mib),
        health: health(node_health, &[&mig.uuid, &gpu.uuid]),
        multiprocessors: Some(number(mig.attributes.multiprocessors)),
        slices: Some(MigSlices {
            gpu_instance: number(mig.attributes.gpu_slices),
            compute_instance: number(mig.attributes.compute_slices),
        }),
        engines: Some(MigEngines {
            copy: number(mig.attributes.copy_engines),
            decoder: number(mig.attributes.decoders),
            encoder: number(mig.attributes.encoders),
            jpeg: number(mig.attributes.jpegs),
            ofa: number(mig.attributes.ofas),
        }),
    };
    let mut devices: Vec<MigDevice> = gpu.mig_devices.iter().map(device).collect();
    devices.sort_by_key(|device| (device.gpu_instance, device.compute_instance));
    devices
}

fn mib(amount: u64) -> i64 {
    i64::try_from(amount).unwrap_or(i64::MAX)
}
