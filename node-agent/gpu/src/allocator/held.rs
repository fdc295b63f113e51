//! What is held: what the kubelet says, and what was given out since.

use super::ContainerShares;
use crate::{Assignment, device_of};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

/// How long an allocation counts as held though the kubelet does not show it. It writes the allocation down as soon as it
/// has the answer, so this is generous.
pub const GRANT_MEMORY: Duration = Duration::from_secs(5);

/// Resource and id of a share.
type ShareKey = (String, String);

/// The shares that are held.
#[derive(Clone, Debug, Default)]
pub struct Held {
    observed: Vec<ContainerShares>,
    /// Shares given out and not seen held since, and when.
    grants: BTreeMap<ShareKey, Instant>,
    /// Both of them by UUID.
    by_device: BTreeMap<String, BTreeSet<ShareKey>>,
    /// Shares that only the kubelet's checkpoint has, by UUID.
    checkpoint: BTreeMap<String, BTreeSet<ShareKey>>,
}

impl Held {
    /// What the kubelet says in an observation that was started at `started`. Returns the resources of which a share is
    /// free again.
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

    /// `ids` were given to a container.
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

    /// Whether something was given out that is not seen held yet.
    pub fn has_grants(&self) -> bool {
        !self.grants.is_empty()
    }

    /// What the kubelet said last.
    pub fn observed(&self) -> &[ContainerShares] {
        &self.observed
    }

    /// UUIDs of the devices of which something is held or may be.
    pub fn devices(&self) -> impl Iterator<Item = &String> {
        self.by_device.keys().chain(self.checkpoint.keys())
    }

    /// Of how many shares of each device something is held, by UUID.
    pub fn shares_of_devices(&self) -> impl Iterator<Item = (&String, usize)> {
        self.by_device.iter().map(|(uuid, shares)| (uuid, shares.len()))
    }

    /// Whether anything of the device is held but what `except` offers of it.
    pub fn holds_of(&self, uuid: &str, except: Option<&Assignment>) -> bool {
        has_other(self.by_device.get(uuid), uuid, except)
    }

    /// Whether the kubelet's checkpoint alone has something of the device but what `except` offers of it.
    pub fn checkpoint_holds_of(&self, uuid: &str, except: Option<&Assignment>) -> bool {
        has_other(self.checkpoint.get(uuid), uuid, except)
    }

    /// Whether the kubelet said that the share is held, or it was given out since.
    pub fn is_held(&self, share: &ShareKey) -> bool {
        self.by_device
            .get(device_of(&share.1))
            .is_some_and(|shares| shares.contains(share))
    }

    /// When a share was given out that is not seen held since.
    pub fn granted(&self, share: &ShareKey) -> Option<Instant> {
        self.grants.get(share).copied()
    }

    /// Who holds a share as the kubelet says, as `NAMESPACE/POD`.
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

    /// Whether anything of a resource is held.
    pub fn holds_resource(&self, resource: &str) -> bool {
        self.by_device.values().flatten().any(|(of, _)| of == resource)
    }

    /// Of each share that `assignment` offers of the device, whether it is held.
    pub fn flags(&self, uuid: &str, assignment: &Assignment) -> Vec<bool> {
        let mut flags = vec![false; assignment.sharing.shares() as usize];
        for (resource, id) in self.by_device.get(uuid).into_iter().flatten() {
            if *resource == assignment.resource
                && let Some(number) = assignment.sharing.number(uuid, id)
                && let Some(flag) = flags.get_mut(number as usize)
            {
                *flag = true;
            }
        }
        flags
    }
}

/// Whether there is a share but those that `except` offers of the device.
fn has_other(shares: Option<&BTreeSet<ShareKey>>, uuid: &str, except: Option<&Assignment>) -> bool {
    let excepted = |(resource, id): &ShareKey| {
        except.is_some_and(|of| of.resource == *resource && of.sharing.number(uuid, id).is_some())
    };
    shares.is_some_and(|shares| !shares.iter().all(excepted))
}
