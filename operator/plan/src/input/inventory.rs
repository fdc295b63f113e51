//! The GPUs that a `GpuNode` reports, in the form that the agent's allocation logic uses.

use crate::label_syntax::is_qualified_name;
use gpunode_config::AgentConfig;
use gpunode_crds::{GpuDevice, GpuNodeStatus, MigDevice};
use gpunode_gpu::{Gpu, Inventory, MigInstance, desired_devices};
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

/// Maximum number of resources that reported MIG profiles add. GPUs of one product have at most a dozen profiles.
const MAX_MIG_RESOURCES: usize = 32;

/// Returns the resource names of the reported MIG devices under a configuration; none if the agent would refuse it. Leaves out
/// what only a wrong report can name.
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
        .filter(|name| is_qualified_name(name))
        .collect::<BTreeSet<_>>()
        .into_iter()
        .take(MAX_MIG_RESOURCES)
        .collect()
}

fn gpu(reported: &GpuDevice, known: bool) -> Gpu {
    let capability = reported
        .compute_capability
        .as_deref()
        .and_then(|text| text.split_once('.'));
    Gpu {
        index: reported.index,
        uuid: reported.uuid.clone(),
        // A name in label form is its own label.
        name: reported.product.clone(),
        memory_mib: reported.memory_mib,
        compute_capability: capability.and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?))),
        mig_mode: reported.mig_mode,
        mig_devices: reported
            .mig_devices
            .iter()
            .zip(0..)
            .map(|(device, index)| mig(device, index, known))
            .collect(),
        numa_node: reported.numa_node,
        links: reported.links.clone(),
        ..Gpu::default()
    }
}

/// Returns a MIG device, of which only the memory counts as a part where a part is missing from any device.
fn mig(reported: &MigDevice, index: u32, known: bool) -> MigInstance {
    let mut facts = reported.clone();
    facts.health = None;
    if !known {
        (facts.multiprocessors, facts.slices, facts.engines) = (None, None, None);
    }
    MigInstance {
        index,
        facts,
        ..MigInstance::default()
    }
}
