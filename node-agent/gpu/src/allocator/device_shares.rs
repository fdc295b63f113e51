//! Devices of one resource as the kubelet knows them.

use super::{companions::companion_obstacle, state::AllocatorState};
use crate::{Assignment, CompanionDevice, Device, DeviceSharing};
use std::collections::BTreeSet;

/// A device as the kubelet knows it now.
pub struct DeviceShares<'a> {
    /// UUID of the device, or id of the companion.
    pub uuid: &'a str,
    /// The GPU or MIG device; none if it had left the node before this process started.
    pub device: Option<&'a Device>,
    /// The companion; none if its files were gone before this process started.
    pub companion: Option<&'a CompanionDevice>,
    /// Sharing of its assignment.
    pub sharing: DeviceSharing,
    /// Use that containers can make of it.
    pub availability: Availability,
    /// For each share by number, true if a container holds it.
    pub held: Vec<bool>,
    /// Numbers of held time slices that the device has no longer.
    pub beyond: BTreeSet<u32>,
    /// Numbers of time slices that the device has no longer though the kubelet may pick them.
    pub former: Option<&'a BTreeSet<u32>>,
}

/// Place of a device in a list: if it is unknown, its index, its file and its id.
type ListOrder<'a> = (bool, Option<(u32, Option<u32>)>, Option<&'a str>, &'a str);

/// Use that containers can make of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Availability {
    /// Containers can get its free shares.
    Allocatable,
    /// Held shares stay; no container gets another one until the device changes, the containers end that have it from another
    /// plugin, or the driver answers.
    Draining,
    /// No share is healthy: the device is gone or has a fault, or its pods are evicted for its change.
    Unavailable,
}

impl DeviceShares<'_> {
    /// Returns its place in the list; unknown devices come last.
    pub fn order(&self) -> ListOrder<'_> {
        let file = self.companion.and_then(|companion| companion.files.first());
        let file = file.map(|file| file.path.as_str());
        (self.device.is_none(), self.device.map(Device::order), file, self.uuid)
    }

    /// Returns the NUMA node, if it is known.
    pub fn numa_node(&self) -> Option<u32> {
        let of_companion = || self.companion.and_then(CompanionDevice::numa_node);
        self.device.and_then(|device| device.numa_node).or_else(of_companion)
    }

    /// Returns true if the device has a share with this number, or had one that the kubelet may still pick.
    pub fn has(&self, number: u32) -> bool {
        number < self.sharing.shares()
            || self.beyond.contains(&number)
            || self.former.is_some_and(|former| former.contains(&number))
    }

    /// Returns the ids of held shares.
    pub fn held_ids(&self) -> impl Iterator<Item = String> {
        let flagged = (0_u32..)
            .zip(&self.held)
            .filter(|(_, held)| **held)
            .map(|(number, _)| number);
        let numbers = flagged.chain(self.beyond.iter().copied());
        numbers.map(|number| self.sharing.id(self.uuid, number))
    }

    /// Returns the number of held shares.
    pub fn held_count(&self) -> usize {
        self.held.iter().filter(|held| **held).count() + self.beyond.len()
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

/// Returns the devices assigned to `resource`, by index.
pub fn advertised_devices<'a>(state: &'a AllocatorState, resource: &str) -> Vec<DeviceShares<'a>> {
    let of_resource = state.assigned.iter().filter(|(_, of)| of.resource == resource);
    let mut devices: Vec<DeviceShares<'_>> = of_resource
        .map(|(uuid, assignment)| DeviceShares {
            uuid,
            device: state.devices.get(uuid),
            companion: state.companions.get(uuid),
            sharing: assignment.sharing,
            availability: availability(state, uuid, assignment),
            held: state.held.flags(uuid, assignment),
            beyond: state.held.slices_beyond(uuid, assignment),
            former: state.resizes.former.get(uuid).map(|former| &former.numbers),
        })
        .collect();
    devices.sort_by(|one, other| one.order().cmp(&other.order()));
    devices
}

fn availability(state: &AllocatorState, uuid: &str, assignment: &Assignment) -> Availability {
    let is_gone = !state.present.contains(uuid) && !state.awaits_device(uuid);
    let is_withdrawn = || state.withdraws_switching && state.switches(uuid);
    if is_gone || state.unavailable_reason(uuid).is_some() || is_withdrawn() {
        Availability::Unavailable
    } else if state.paused_reason(uuid).is_some()
        || state.desired_assignment(uuid) != Some(assignment)
        || state.held_by_others.contains(uuid)
        || companion_obstacle(state, uuid).is_some()
    {
        Availability::Draining
    } else {
        Availability::Allocatable
    }
}
