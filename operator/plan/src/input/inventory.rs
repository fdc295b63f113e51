//! The GPUs that a `GpuNode` reports, in the form that the agent's allocation logic uses.

use gpunode_config::AgentConfig;
use gpunode_crds::{GpuDevice, GpuLink, GpuNodeStatus, MigDevice};
use gpunode_gpu::{Gpu, Inventory, Link, MigAttributes, desired_devices};
use std::collections::BTreeSet;

/// Returns the GPUs that are present; leaves out missing ones.
pub fn inventory(status: &GpuNodeStatus) -> Inventory {
    let there: Vec<_> = status.gpus.iter().filter(|gpu| gpu.missing_since.is_none()).collect();
    let mut mig = there.iter().flat_map(|gpu| &gpu.mig_devices);
    let known = mig.all(|mig| mig.multiprocessors.is_some() && mig.slices.is_some() && mig.engines.is_some());
    Inventory {
        gpus: there.into_iter().map(|reported| gpu(reported, known)).collect(),
        ..Inventory::default()
    }
}

/// Returns the resource names of the reported MIG devices under a configuration; none if the agent would refuse it.
pub fn mig_resources(status: &GpuNodeStatus, config: &AgentConfig) -> BTreeSet<String> {
    if status.gpus.iter().all(|gpu| gpu.mig_devices.is_empty()) {
        return BTreeSet::new();
    }
    let devices = desired_devices(&inventory(status), config)
        .map(|wanted| wanted.devices)
        .unwrap_or_default();
    devices
        .into_iter()
        .filter(|it| it.device.mig.is_some())
        .map(|it| it.assignment.resource)
        .collect()
}

fn gpu(reported: &GpuDevice, known: bool) -> Gpu {
    let capability = reported
        .compute_capability
        .as_deref()
        .and_then(|text| text.split_once('.'));
    Gpu {
        index: number(reported.index),
        uuid: reported.uuid.clone(),
        // A name in label form is its own label.
        name: reported.product.clone(),
        memory_mib: u64::try_from(reported.memory_mib).unwrap_or(0),
        compute_capability: capability.and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?))),
        mig_mode: reported.mig_mode,
        mig_devices: reported
            .mig_devices
            .iter()
            .zip(0..)
            .map(|(device, index)| mig(device, index, known))
            .collect(),
        numa_node: reported.numa_node.and_then(|node| u32::try_from(node).ok()),
        links: reported.links.iter().map(link).collect(),
        ..Gpu::default()
    }
}

fn link(reported: &GpuLink) -> Link {
    Link {
        peer: number(reported.peer),
        level: reported.level,
        nvlinks: reported.nvlinks.map_or(0, number),
    }
}

fn mig(reported: &MigDevice, index: u32, known: bool) -> gpunode_gpu::MigInstance {
    let memory_mib = u64::try_from(reported.memory_mib).unwrap_or(0);
    gpunode_gpu::MigInstance {
        uuid: reported.uuid.clone(),
        index,
        profile: reported.profile.clone(),
        gpu_instance: number(reported.gpu_instance),
        compute_instance: number(reported.compute_instance),
        memory_mib,
        attributes: if known {
            attributes(reported, memory_mib)
        } else {
            MigAttributes {
                memory_mib,
                ..MigAttributes::default()
            }
        },
        ..gpunode_gpu::MigInstance::default()
    }
}

/// Returns the attributes that two equal MIG devices share. Only memory counts where an attribute is missing from any device.
fn attributes(reported: &MigDevice, memory_mib: u64) -> MigAttributes {
    let engines = reported.engines.unwrap_or_default();
    let slices = reported.slices.unwrap_or_default();
    MigAttributes {
        multiprocessors: reported.multiprocessors.map_or(0, number),
        copy_engines: number(engines.copy),
        decoders: number(engines.decoder),
        encoders: number(engines.encoder),
        jpegs: number(engines.jpeg),
        ofas: number(engines.ofa),
        gpu_slices: number(slices.gpu_instance),
        compute_slices: number(slices.compute_instance),
        memory_mib,
    }
}

fn number(reported: i32) -> u32 {
    u32::try_from(reported).unwrap_or(0)
}
