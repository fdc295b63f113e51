//! All entries of a configuration with all devices of a node: the desired devices.

use super::{
    devices::{DesiredDevice, DesiredDevices},
    error::DesiredDevicesError,
    list_size::check_list_sizes,
    resource::{self, ResourceEntry},
};
use crate::{Device, Inventory, LayoutHolds, MigMode};
use gpunode_config::{AgentConfig, MigStrategy};
use std::collections::BTreeMap;

/// Returns the desired devices of `inventory` under `config`. A device belongs to the first entry that selects it.
pub fn desired_devices(inventory: &Inventory, config: &AgentConfig) -> Result<DesiredDevices, DesiredDevicesError> {
    desired_devices_beside(inventory, config, &LayoutHolds::default())
}

/// Returns the desired devices of `inventory` under `config` while MIG layouts change: without those that are held.
pub fn desired_devices_beside(
    inventory: &Inventory,
    config: &AgentConfig,
    holds: &LayoutHolds,
) -> Result<DesiredDevices, DesiredDevicesError> {
    let strategy = config.mig_strategy();
    let mut desired = DesiredDevices::nothing(inventory);
    let mut left = candidates(&desired.present, inventory, strategy);
    left.retain(|device| !holds.has(device));
    // GPUs with MIG enabled and no MIG device: neither a full GPU nor a part of one.
    let mut undivided: Vec<_> = inventory
        .gpus
        .iter()
        .filter(|gpu| gpu.mig_mode == Some(MigMode::Enabled) && gpu.mig_devices.is_empty())
        .filter(|gpu| !holds.laid_out.contains(&gpu.uuid))
        .collect();
    let stuck: Vec<_> = inventory
        .gpus
        .iter()
        .filter(|gpu| holds.stuck.contains(&gpu.uuid))
        .collect();
    let resources = config.effective_resources();
    for resource in &resources {
        let entry = ResourceEntry::new(resource, strategy)?;
        let (taken, rest) = left.into_iter().partition(|device| entry.selects(device));
        left = rest;
        let (without_instances, rest) = undivided.into_iter().partition(|gpu| entry.lacks_instances(gpu));
        undivided = rest;
        entry.add_devices(taken, &without_instances, &stuck, &mut desired);
    }
    if strategy == MigStrategy::Mixed {
        for device in left.into_iter().filter(|device| device.mig.is_some()) {
            resource::add_by_profile(device, &mut desired);
        }
    }
    group_by_resource(&mut desired.devices);
    check_list_sizes(&desired.devices)?;
    Ok(desired)
}

/// Returns the devices that entries select from under `strategy`: each GPU, or its MIG devices instead.
fn candidates(present: &[Device], inventory: &Inventory, strategy: MigStrategy) -> Vec<Device> {
    let divided: Vec<&str> = inventory
        .gpus
        .iter()
        .filter(|gpu| gpu.mig_mode == Some(MigMode::Enabled))
        .filter(|gpu| strategy != MigStrategy::None || gpu.mig_devices.is_empty())
        .map(|gpu| gpu.uuid.as_str())
        .collect();
    let stands = |device: &&Device| match device.mig {
        Some(_) => strategy != MigStrategy::None,
        None => !divided.contains(&device.gpu_uuid.as_str()),
    };
    present.iter().filter(stands).cloned().collect()
}

/// Sorts devices of one resource together, where an entry has the name that others get by default.
fn group_by_resource(devices: &mut [DesiredDevice]) {
    let mut place = BTreeMap::new();
    for desired in devices.iter() {
        let next = place.len();
        place.entry(desired.assignment.resource.clone()).or_insert(next);
    }
    devices.sort_by_key(|desired| (place.get(&desired.assignment.resource).copied(), desired.device.order()));
}
