//! The device lists that the kubelet gets.

use super::state::AllocatorState;
use crate::{AdvertisedResource, AdvertisedShare, Assignment, Device, DeviceSharing};
use std::{cmp::Reverse, collections::BTreeSet};

/// A device as the kubelet knows it now.
pub struct DeviceShares<'a> {
    /// UUID of the device.
    pub uuid: &'a str,
    /// The device; none if it had left the node before this process started.
    pub device: Option<&'a Device>,
    /// Sharing of its assignment.
    pub sharing: DeviceSharing,
    /// Use that containers can make of it.
    pub availability: Availability,
    /// For each share by number, true if a container holds it.
    pub held: Vec<bool>,
}

/// Use that containers can make of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Availability {
    /// Containers can get its free shares.
    Allocatable,
    /// Held shares stay; no container gets another one until the device changes.
    Draining,
    /// No share is healthy: the device is gone or has a fault.
    Unavailable,
}

impl DeviceShares<'_> {
    /// Returns its place in the list; unknown devices come last.
    pub fn order(&self) -> (bool, Option<(u32, Option<u32>)>, &str) {
        (self.device.is_none(), self.device.map(Device::order), self.uuid)
    }

    /// Returns the number of shares that containers can get.
    pub fn free(&self) -> usize {
        if self.availability == Availability::Allocatable {
            self.held.iter().filter(|held| !**held).count()
        } else {
            0
        }
    }
}

/// Returns the lists in the order of the configuration, then those of resources that it no longer has. A resource whose
/// devices all still have another assignment has an empty list, so that its stream stays.
pub fn resource_lists(state: &AllocatorState) -> Vec<AdvertisedResource> {
    if !state.is_observed() {
        return Vec::new();
    }
    let configured: BTreeSet<&str> = state.order.iter().map(String::as_str).collect();
    let assigned: BTreeSet<&str> = state.assigned.values().map(|of| of.resource.as_str()).collect();
    let left = assigned.difference(&configured).copied();
    state
        .order
        .iter()
        .map(String::as_str)
        .chain(left)
        .map(|name| resource_list(state, name))
        .collect()
}

/// Withholds the free shares of all devices of `resource` except the device with the most, until a container frees a share:
/// the scheduler then places no request that fits on no device. Returns the number of healthy shares. Does nothing where
/// the shares of one container can come from several devices.
pub fn withhold(state: &mut AllocatorState, resource: &str) -> u32 {
    let of_one = |of: &Assignment| of.resource == resource && of.sharing.one_device_per_container();
    if state.assigned.values().any(of_one) {
        state.withheld.insert(resource.to_owned());
    }
    let healthy = resource_list(state, resource)
        .shares
        .iter()
        .filter(|share| share.healthy)
        .count();
    u32::try_from(healthy).unwrap_or(u32::MAX)
}

fn resource_list(state: &AllocatorState, resource: &str) -> AdvertisedResource {
    let devices = advertised_devices(state, resource);
    let withheld = state.withheld.contains(resource);
    let most_free = devices
        .iter()
        .enumerate()
        .filter(|(_, of)| of.sharing.one_device_per_container())
        .min_by_key(|(at, of)| (Reverse(of.free()), *at))
        .map(|(at, _)| at);
    let healthy = |at: usize, of: &DeviceShares<'_>, held: bool| match of.availability {
        Availability::Unavailable => false,
        Availability::Draining => held,
        Availability::Allocatable => {
            held || !withheld || !of.sharing.one_device_per_container() || most_free == Some(at)
        }
    };
    // A kubelet with a topology policy takes the shares of one NUMA node first, even from many devices.
    let of_one = |of: &DeviceShares<'_>| of.sharing.one_device_per_container();
    let node = |of: &DeviceShares<'_>| of.device.and_then(|device| device.numa_node);
    let nodes: BTreeSet<Option<u32>> = devices.iter().map(node).collect();
    let most = devices.iter().map(|of| of.held.len()).max().unwrap_or_default();
    let mut shares = Vec::with_capacity(devices.iter().map(|of| of.held.len()).sum());
    for (number, row) in (0_u32..).zip(0..most) {
        for (at, of) in devices.iter().enumerate() {
            let Some(held) = of.held.get(row) else { continue };
            shares.push(AdvertisedShare {
                id: of.sharing.id(of.uuid, number),
                healthy: healthy(at, of, *held),
                numa_node: node(of).filter(|_| nodes.len() == 1 || !of_one(of)),
            });
        }
    }
    AdvertisedResource {
        name: resource.to_owned(),
        shares,
    }
}

/// Returns the devices assigned to `resource`, by index.
pub fn advertised_devices<'a>(state: &'a AllocatorState, resource: &str) -> Vec<DeviceShares<'a>> {
    let of_resource = state.assigned.iter().filter(|(_, of)| of.resource == resource);
    let mut devices: Vec<DeviceShares<'_>> = of_resource
        .map(|(uuid, assignment)| DeviceShares {
            uuid,
            device: state.devices.get(uuid),
            sharing: assignment.sharing,
            availability: availability(state, uuid, assignment),
            held: state.held.flags(uuid, assignment),
        })
        .collect();
    devices.sort_by(|one, other| one.order().cmp(&other.order()));
    devices
}

fn availability(state: &AllocatorState, uuid: &str, assignment: &Assignment) -> Availability {
    if !state.present.contains(uuid) || state.unavailable_reason(uuid).is_some() {
        Availability::Unavailable
    } else if state.desired_assignment(uuid) != Some(assignment) {
        Availability::Draining
    } else {
        Availability::Allocatable
    }
}
