//! The device lists that the kubelet gets.

use super::{
    device_shares::{Availability, DeviceShares, advertised_devices},
    slices::healthy_slices,
    state::AllocatorState,
};
use crate::{AdvertisedResource, AdvertisedShare, Assignment, is_companion};
use std::{cmp::Reverse, collections::BTreeSet};

/// Returns the lists in the order of the configuration, then those of resources that it no longer has. A resource whose
/// devices all still have another assignment has an empty list, so that its stream stays.
pub fn resource_lists(state: &AllocatorState) -> Vec<AdvertisedResource> {
    if !state.is_observed() {
        return Vec::new();
    }
    let configured: BTreeSet<&str> = state.configured_resources().map(String::as_str).collect();
    let assigned: BTreeSet<&str> = state.assigned.values().map(|of| of.resource.as_str()).collect();
    let left = assigned.difference(&configured).copied();
    let names = state.configured_resources().map(String::as_str);
    names.chain(left).map(|name| resource_list(state, name)).collect()
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
    // Set while a device has too many time slices.
    let resized = healthy_slices(state, resource, &devices);
    let free_slices = |at: usize| resized.as_ref().and_then(|free| free.get(&at));
    let healthy = |at: usize, of: &DeviceShares<'_>, number: u32, held: bool| match of.availability {
        Availability::Unavailable => false,
        Availability::Draining => held,
        Availability::Allocatable => {
            let is_free = || match free_slices(at) {
                Some(healthy) => healthy.contains(&number),
                None => !withheld || !of.sharing.one_device_per_container() || most_free == Some(at),
            };
            held || is_free()
        }
    };
    // A kubelet with a topology policy takes the shares of one NUMA node first, even from many devices.
    let of_one = |of: &DeviceShares<'_>| of.sharing.one_device_per_container();
    let node = |of: &DeviceShares<'_>| of.numa_node();
    let nodes: BTreeSet<Option<u32>> = devices.iter().map(node).collect();
    let most = devices.iter().map(|of| of.held.len()).max().unwrap_or_default();
    let mut shares = Vec::with_capacity(devices.iter().map(|of| of.held.len()).sum());
    let share = |at: usize, of: &DeviceShares<'_>, number: u32, held: bool| AdvertisedShare {
        id: of.sharing.id(of.uuid, number),
        healthy: healthy(at, of, number, held),
        numa_node: node(of).filter(|_| nodes.len() == 1 || !of_one(of)),
        surplus: false,
    };
    // A held slice beyond the number stands for an unhealthy one below it.
    let mut replaced: Vec<usize> = devices.iter().map(|of| of.beyond.len()).collect();
    for (number, row) in (0_u32..).zip(0..most) {
        for ((at, of), replaced) in devices.iter().enumerate().zip(&mut replaced) {
            let Some(held) = of.held.get(row) else { continue };
            let mut share = share(at, of, number, *held);
            if !held && !share.healthy && *replaced > 0 {
                *replaced -= 1;
                share.surplus = true;
            }
            shares.push(share);
        }
    }
    // Slices that a device has no longer are in the list while they are held, healthy, or may be granted: a kubelet
    // dereferences the entry of an id that it has allocated, and crashes where the list no longer has it
    // (allocateContainerResources in pkg/kubelet/cm/devicemanager/manager.go).
    for (at, of) in devices.iter().enumerate() {
        let former = of.former.into_iter().flatten();
        let former = former.filter(|number| **number >= of.sharing.shares());
        let beyond: BTreeSet<u32> = former.chain(&of.beyond).copied().collect();
        shares.extend(beyond.into_iter().map(|number| {
            let held = of.beyond.contains(&number);
            let is_free = free_slices(at).is_some_and(|free| free.contains(&number));
            let mut share = share(at, of, number, held);
            share.healthy &= held || is_free;
            share.surplus = !share.healthy;
            share
        }));
    }
    AdvertisedResource {
        name: resource.to_owned(),
        is_companion: state.companion_order.iter().any(|name| name == resource)
            || devices.iter().any(|of| is_companion(of.uuid)),
        shares,
    }
}
