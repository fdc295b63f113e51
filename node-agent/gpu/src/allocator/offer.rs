//! The lists that the kubelet gets.

use super::Allocator;
use crate::{AdvertisedResource, AdvertisedShare, Assignment, Device, DeviceSharing};
use std::{cmp::Reverse, collections::BTreeSet};

/// A device as it is offered now.
pub(super) struct AdvertisedDevice<'a> {
    pub uuid: &'a str,
    /// None for a device that was gone already when this process started.
    pub device: Option<&'a Device>,
    pub sharing: DeviceSharing,
    pub state: Availability,
    /// Of each share, whether it is held.
    pub held: Vec<bool>,
}

/// What can be done with a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Availability {
    /// Its free shares can be given out.
    Allocatable,
    /// What is held of it stays, until it changes.
    Draining,
    /// Nothing of it can be given out: it is gone or held back.
    Unavailable,
}

impl AdvertisedDevice<'_> {
    /// Where it stands in its resource; devices that nobody knows come last.
    pub fn order(&self) -> (bool, Option<(u32, Option<u32>)>, &str) {
        (self.device.is_none(), self.device.map(Device::order), self.uuid)
    }

    /// Shares that can be given out.
    pub fn free(&self) -> usize {
        if self.state == Availability::Allocatable {
            self.held.iter().filter(|held| !**held).count()
        } else {
            0
        }
    }
}

impl Allocator {
    /// What is offered, in the order of the configuration, then resources that it no longer has. A resource of the
    /// configuration whose devices all wait elsewhere has an empty list, so that its stream stays.
    pub fn advertised(&self) -> Vec<AdvertisedResource> {
        if !self.is_observed() {
            return Vec::new();
        }
        let configured: BTreeSet<&str> = self.order.iter().map(String::as_str).collect();
        let offered: BTreeSet<&str> = self.assigned.values().map(|of| of.resource.as_str()).collect();
        let left = offered.difference(&configured).copied();
        self.order
            .iter()
            .map(String::as_str)
            .chain(left)
            .map(|name| self.list(name))
            .collect()
    }

    /// Withholds the free shares of all devices of `resource` but of the one with most of them, until a share that is held
    /// is free again, so that no request is scheduled that fits on no device. Returns how many shares stay allocatable.
    /// Nothing is withheld where the shares of one container can come from several devices.
    pub fn withhold(&mut self, resource: &str) -> u32 {
        let of_one = |of: &Assignment| of.resource == resource && of.sharing.one_device_per_container();
        if self.assigned.values().any(of_one) {
            self.withheld.insert(resource.to_owned());
        }
        let healthy = self.list(resource).shares.iter().filter(|share| share.healthy).count();
        u32::try_from(healthy).unwrap_or(u32::MAX)
    }

    fn list(&self, resource: &str) -> AdvertisedResource {
        let devices = self.offered(resource);
        let withheld = self.withheld.contains(resource);
        let most_free = devices
            .iter()
            .enumerate()
            .filter(|(_, of)| of.sharing.one_device_per_container())
            .min_by_key(|(at, of)| (Reverse(of.free()), *at))
            .map(|(at, _)| at);
        let healthy = |at: usize, of: &AdvertisedDevice<'_>, held: bool| match of.state {
            Availability::Unavailable => false,
            Availability::Draining => held,
            Availability::Allocatable => {
                held || !withheld || !of.sharing.one_device_per_container() || most_free == Some(at)
            }
        };
        // A kubelet with a topology policy takes the shares of one NUMA node first, of however many devices they are.
        let of_one = |of: &AdvertisedDevice<'_>| of.sharing.one_device_per_container();
        let node = |of: &AdvertisedDevice<'_>| of.device.and_then(|device| device.numa_node);
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

    /// The devices that are offered as `resource`, by index.
    pub(super) fn offered(&self, resource: &str) -> Vec<AdvertisedDevice<'_>> {
        let of_resource = self.assigned.iter().filter(|(_, of)| of.resource == resource);
        let mut offered: Vec<AdvertisedDevice<'_>> = of_resource
            .map(|(uuid, assignment)| AdvertisedDevice {
                uuid,
                device: self.devices.get(uuid),
                sharing: assignment.sharing,
                state: self.state(uuid, assignment),
                held: self.held.flags(uuid, assignment),
            })
            .collect();
        offered.sort_by(|one, other| one.order().cmp(&other.order()));
        offered
    }

    fn state(&self, uuid: &str, assignment: &Assignment) -> Availability {
        let wanted = self.desired.as_ref().and_then(|wanted| wanted.get(uuid));
        if !self.present.contains(uuid) || self.unavailable(uuid).is_some() {
            Availability::Unavailable
        } else if wanted != Some(assignment) {
            Availability::Draining
        } else {
            Availability::Allocatable
        }
    }
}
