//! Shares that containers hold: those observed at the kubelet, and those allocated since.

use super::observation::ContainerShares;
use crate::{Assignment, DeviceSharing, device_of};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

/// Time for which an allocation counts as held though no observation has it. The kubelet records it as soon as it has the
/// answer, so this is generous.
pub const GRANT_MEMORY: Duration = Duration::from_secs(5);

/// Resource and id of a share.
type ShareKey = (String, String);

/// The held shares of a node.
#[derive(Clone, Debug, Default)]
pub struct Held {
    observed: Vec<ContainerShares>,
    /// Shares allocated and not observed since, with the time of the allocation.
    grants: BTreeMap<ShareKey, Instant>,
    /// Both by UUID of the device.
    by_device: BTreeMap<String, BTreeSet<ShareKey>>,
    /// Shares that only the kubelet's checkpoint has, by UUID of the device.
    checkpoint: BTreeMap<String, BTreeSet<ShareKey>>,
}

impl Held {
    /// Takes an observation that began at `started`. Returns the resources of which a container has freed a share.
    pub fn observe(
        &mut self,
        started: Instant,
        holders: Vec<ContainerShares>,
        checkpoint: BTreeSet<ShareKey>,
    ) -> BTreeSet<String> {
        let shown: BTreeSet<(&str, &str)> = holders.iter().flat_map(ContainerShares::shares).collect();
        self.grants.retain(|(resource, id), at| {
            let seen = shown.contains(&(resource.as_str(), id.as_str()));
            let lost = started
                .checked_duration_since(*at)
                .is_some_and(|age| age >= GRANT_MEMORY);
            !seen && !lost
        });
        let mut by_device: BTreeMap<String, BTreeSet<ShareKey>> = BTreeMap::new();
        let granted = self
            .grants
            .keys()
            .map(|(resource, id)| (resource.as_str(), id.as_str()));
        for (resource, id) in shown.into_iter().chain(granted) {
            by_device
                .entry(device_of(id).to_owned())
                .or_default()
                .insert((resource.to_owned(), id.to_owned()));
        }
        let still = |(device, share): &(&String, &ShareKey)| {
            by_device.get(*device).is_some_and(|shares| shares.contains(share))
        };
        let before = self
            .by_device
            .iter()
            .flat_map(|(device, shares)| shares.iter().map(move |share| (device, share)));
        let freed = before
            .filter(|share| !still(share))
            .map(|(_, (resource, _))| resource.clone())
            .collect();
        self.by_device = by_device;
        self.observed = holders;
        self.checkpoint.clear();
        for share in checkpoint {
            let device = device_of(&share.1);
            if !self.by_device.get(device).is_some_and(|shares| shares.contains(&share)) {
                self.checkpoint.entry(device.to_owned()).or_default().insert(share);
            }
        }
        freed
    }

    /// Takes an allocation of `ids`.
    pub fn grant<'a>(&mut self, resource: &str, ids: impl Iterator<Item = &'a str>, now: Instant) {
        for id in ids {
            let share = (resource.to_owned(), id.to_owned());
            self.by_device
                .entry(device_of(id).to_owned())
                .or_default()
                .insert(share.clone());
            self.grants.insert(share, now);
        }
    }

    /// Returns true if an allocation is not observed yet.
    pub fn has_grants(&self) -> bool {
        !self.grants.is_empty()
    }

    /// Returns the holders of the last observation.
    pub fn observed(&self) -> &[ContainerShares] {
        &self.observed
    }

    /// Returns the UUIDs of the devices with shares that are held or may be.
    pub fn devices(&self) -> impl Iterator<Item = &String> {
        self.by_device.keys().chain(self.checkpoint.keys())
    }

    /// Returns true if a share like that is held, or may be according to the checkpoint; by resource and id.
    pub fn has(&self, is_like: impl Fn(&str, &str) -> bool) -> bool {
        let shares = self.by_device.values().chain(self.checkpoint.values()).flatten();
        shares.into_iter().any(|(resource, id)| is_like(resource, id))
    }

    /// Returns the number of held shares of each device, by UUID.
    pub fn shares_of_devices(&self) -> impl Iterator<Item = (&String, usize)> {
        self.by_device.iter().map(|(uuid, shares)| (uuid, shares.len()))
    }

    /// Returns true if a share of the device is held that is not one of `except`.
    pub fn holds_of(&self, uuid: &str, except: Option<&Assignment>) -> bool {
        has_other(self.by_device.get(uuid), uuid, except)
    }

    /// Returns true if only the checkpoint has a share of the device that is not one of `except`.
    pub fn checkpoint_holds_of(&self, uuid: &str, except: Option<&Assignment>) -> bool {
        has_other(self.checkpoint.get(uuid), uuid, except)
    }

    /// Returns true if a share is held, or may be according to the checkpoint, that the device has under either assignment.
    pub fn holds_share_of_both(&self, uuid: &str, one: &Assignment, other: &Assignment) -> bool {
        let shares = [self.by_device.get(uuid), self.checkpoint.get(uuid)];
        let mut shares = shares.into_iter().flatten().flatten();
        shares.any(|(resource, id)| [one, other].iter().all(|of| is_share_of(of, uuid, resource, id)))
    }

    /// Returns true if the share was held at the last observation or allocated since.
    pub fn is_held(&self, share: &ShareKey) -> bool {
        self.by_device
            .get(device_of(&share.1))
            .is_some_and(|shares| shares.contains(share))
    }

    /// Returns the time of an allocation that is not observed yet.
    pub fn granted(&self, share: &ShareKey) -> Option<Instant> {
        self.grants.get(share).copied()
    }

    /// Returns the pod that held the share at the last observation, as `NAMESPACE/NAME`.
    pub fn holder(&self, share: &ShareKey) -> Option<String> {
        if !self.is_held(share) || self.grants.contains_key(share) {
            return None;
        }
        let holds = |of: &&ContainerShares| of.resource == share.0 && of.ids.contains(&share.1);
        self.observed
            .iter()
            .find(holds)
            .map(|of| format!("{}/{}", of.namespace, of.pod))
    }

    /// Returns true if a share of the resource is held.
    pub fn holds_resource(&self, resource: &str) -> bool {
        self.by_device.values().flatten().any(|(of, _)| of == resource)
    }

    /// Returns, for each share of the device under `assignment`, true if it is held.
    pub fn flags(&self, uuid: &str, assignment: &Assignment) -> Vec<bool> {
        let mut flags = vec![false; assignment.sharing.shares() as usize];
        for (resource, id) in self.shares_of(uuid, assignment) {
            if *resource == assignment.resource
                && let Some(number) = assignment.sharing.number(uuid, id)
                && let Some(flag) = flags.get_mut(number as usize)
            {
                *flag = true;
            }
        }
        flags
    }

    /// Returns the numbers of held time slices that the device has no longer under `assignment`.
    pub fn slices_beyond(&self, uuid: &str, assignment: &Assignment) -> BTreeSet<u32> {
        if !matches!(assignment.sharing, DeviceSharing::TimeSlicing { .. }) {
            return BTreeSet::new();
        }
        let shares = self.shares_of(uuid, assignment);
        let of_resource = shares.filter(|(resource, _)| *resource == assignment.resource);
        of_resource
            .filter_map(|(_, id)| assignment.sharing.any_number(uuid, id))
            .filter(|number| *number >= assignment.sharing.shares())
            .collect()
    }

    /// Returns the held shares of the device. A kubelet that has just restarted lists no pods yet, and a container that it
    /// starts again needs its id to be healthy: then time slices that only the checkpoint has are among them.
    fn shares_of(&self, uuid: &str, assignment: &Assignment) -> impl Iterator<Item = &ShareKey> {
        let is_sliced = matches!(assignment.sharing, DeviceSharing::TimeSlicing { .. });
        let unlisted = self
            .checkpoint
            .get(uuid)
            .filter(|_| is_sliced && self.observed.is_empty());
        self.by_device.get(uuid).into_iter().chain(unlisted).flatten()
    }
}

/// Returns true if there is a share that is not one of `except`.
fn has_other(shares: Option<&BTreeSet<ShareKey>>, uuid: &str, except: Option<&Assignment>) -> bool {
    let excepted = |(resource, id): &ShareKey| except.is_some_and(|of| is_share_of(of, uuid, resource, id));
    shares.is_some_and(|shares| !shares.iter().all(excepted))
}

/// Returns true if the id is one of a share of the device under `assignment`. Time slices beyond its number are its own.
pub fn is_share_of(assignment: &Assignment, uuid: &str, resource: &str, id: &str) -> bool {
    let number = match assignment.sharing {
        DeviceSharing::TimeSlicing { .. } => assignment.sharing.any_number(uuid, id),
        _ => assignment.sharing.number(uuid, id),
    };
    assignment.resource == resource && number.is_some()
}
