//! Advertised resources, and the devices of each. Pure.

use crate::{
    devices::{advertised::AdvertisedList, state::DeviceSnapshot},
    health::node_health::NodeHealth,
    mps::answers::unavailable,
    status::{inputs::PluginStatus, number::number},
};
use gpunode_crds::{AdvertisedDevice, MAX_DEVICE_NAME, MAX_DEVICES, MAX_RESOURCES, ResourceStatus, SharingStrategy};
use gpunode_gpu::{AdvertisedResource, AdvertisedShare, CompanionDevice, DeviceSharing, device_of};
use std::collections::{BTreeMap, BTreeSet};

/// Appended to the name of a resource whose devices are shared.
const SHARED_SUFFIX: &str = ".shared";

/// Prefix of the UUIDs of MIG devices.
const MIG_UUID: &str = "MIG-";

/// Returns the resources as the kubelet was sent them.
pub fn resources(snapshot: &DeviceSnapshot, health: &NodeHealth, plugin: PluginStatus<'_>) -> Vec<ResourceStatus> {
    let silent = unavailable(&snapshot.daemons);
    let explained: BTreeSet<&str> = snapshot
        .pending_changes
        .iter()
        .map(|pending| &pending.device)
        .chain(silent.keys())
        .chain(snapshot.not_injectable.keys())
        .map(String::as_str)
        .collect();
    let concerns_all = health.unavailable.is_some() || health.paused.is_some() || health.served_by_dra;
    let is_explained = |device: &str| concerns_all || explained.contains(device) || snapshot.is_faulty(device, health);
    let of = |advertised: &AdvertisedList| ResourceStatus {
        registered: plugin.registered.taken.contains(&advertised.resource.name),
        name: advertised.resource.name.clone(),
        companion: advertised.resource.is_companion,
        capacity: number(counted(&advertised.resource).count()),
        allocatable: number(advertised.healthy()),
        withheld: Some(&advertised.resource)
            .filter(|resource| !resource.is_companion)
            .and_then(|resource| withheld(resource, is_explained)),
        sharing: sharing(&advertised.resource, snapshot),
        renamed: advertised.resource.name.ends_with(SHARED_SUFFIX),
        devices: devices(&advertised.resource, &snapshot.companions),
    };
    snapshot.advertised.iter().take(MAX_RESOURCES).map(of).collect()
}

/// Returns the sharing of the first shared device.
fn sharing(list: &AdvertisedResource, snapshot: &DeviceSnapshot) -> Option<SharingStrategy> {
    let assignments = list
        .shares
        .iter()
        .filter_map(|share| snapshot.assignments.get(device_of(&share.id)));
    // Shares of a companion are no sharing of a GPU.
    let of_gpus = assignments.filter(|_| !list.is_companion);
    of_gpus
        .map(|assignment| assignment.sharing)
        .find_map(|sharing| match sharing {
            DeviceSharing::Whole => None,
            DeviceSharing::TimeSlicing { .. } => Some(SharingStrategy::TimeSlicing),
            DeviceSharing::Memory { .. } => Some(SharingStrategy::Memory),
            DeviceSharing::Mps { .. } => Some(SharingStrategy::Mps),
        })
}

/// Returns the entries of a list that are shares of the resource.
fn counted(list: &AdvertisedResource) -> impl Iterator<Item = &AdvertisedShare> {
    list.shares.iter().filter(|share| !share.surplus)
}

/// Returns how many shares are withheld: a device without pending change, fault or other reason has unhealthy shares for that
/// reason alone.
fn withheld(list: &AdvertisedResource, is_explained: impl Fn(&str) -> bool) -> Option<i32> {
    let unhealthy = counted(list).filter(|share| !share.healthy);
    let count = unhealthy.filter(|share| !is_explained(device_of(&share.id))).count();
    (count > 0).then(|| number(count))
}

fn devices(list: &AdvertisedResource, companions: &BTreeMap<String, CompanionDevice>) -> Vec<AdvertisedDevice> {
    let mut devices: Vec<AdvertisedDevice> = Vec::new();
    for share in counted(list) {
        let (uuid, healthy) = (device_of(&share.id), i32::from(share.healthy));
        if let Some(device) = devices.iter_mut().find(|device| device.device == uuid) {
            device.shares += 1;
            device.healthy += healthy;
        } else {
            let companion = companions.get(uuid);
            devices.push(AdvertisedDevice {
                device: uuid.to_owned(),
                name: companion.map(|companion| bounded(companion.name())),
                numa_node: companion.and_then(CompanionDevice::numa_node),
                shares: 1,
                healthy,
            });
        }
    }
    devices.sort_by_key(|device| device.device.starts_with(MIG_UUID));
    devices.truncate(MAX_DEVICES);
    devices
}

/// Returns a name that fits into status.
fn bounded(mut name: String) -> String {
    name.truncate(name.floor_char_boundary(MAX_DEVICE_NAME));
    name
}
