//! When a device changes from one assignment to another.

use super::Allocator;
use crate::{Assignment, Device, device_of};
use std::collections::BTreeSet;

/// How the UUIDs of MIG devices begin.
const MIG_UUID: &str = "MIG-";

impl Allocator {
    /// Carries out the changes of devices of which nothing is held and the kubelet takes nothing for healthy: it can give
    /// out nothing of them, and an allocation that it began before is refused or fits what is in force then.
    pub(super) fn switch(&mut self, allocatable: &BTreeSet<(String, String)>) {
        let Some(wanted) = &self.desired else { return };
        let healthy: BTreeSet<(&str, &str)> = allocatable
            .iter()
            .map(|(resource, id)| (resource.as_str(), device_of(id)))
            .collect();
        let free = |uuid: &str, of: &Assignment| {
            !healthy.contains(&(of.resource.as_str(), uuid)) && !self.is_taken(uuid, None)
        };
        let changes: Vec<(String, Option<Assignment>)> = self
            .assigned
            .iter()
            .filter(|(uuid, now)| wanted.get(*uuid) != Some(now) && free(uuid, now))
            .map(|(uuid, _)| (uuid.clone(), wanted.get(uuid).cloned()))
            .collect();
        for (uuid, next) in changes {
            match next {
                Some(next) => _ = self.assigned.insert(uuid, next),
                None => _ = self.assigned.remove(&uuid),
            }
        }
    }

    /// Offers the wanted devices that are not offered yet, nor is a part of them or the GPU that they are a part of, and of
    /// which nobody holds anything but what they are to be offered as.
    pub(super) fn adopt(&mut self) {
        if !self.is_observed() {
            return;
        }
        for (uuid, assignment) in self.desired.iter().flatten() {
            let blocked = self.assigned.contains_key(uuid)
                || self.overlapping(uuid).any(|other| self.assigned.contains_key(other))
                || self.is_taken(uuid, Some(assignment));
            if !blocked {
                self.assigned.insert(uuid.clone(), assignment.clone());
            }
        }
        // A resource that lost its last such device has nothing to withhold.
        self.withheld.retain(|resource| {
            self.assigned
                .values()
                .any(|of| of.resource == *resource && of.sharing.one_device_per_container())
        });
    }

    /// Whether anything of the device but what `except` offers of it, or of a device that overlaps it, is held or may be.
    fn is_taken(&self, uuid: &str, except: Option<&Assignment>) -> bool {
        let taken =
            |uuid: &str, except| self.held.holds_of(uuid, except) || self.held.checkpoint_holds_of(uuid, except);
        taken(uuid, except) || self.overlapping(uuid).any(|other| taken(other, None))
    }

    /// The devices that cannot be given out beside this one.
    pub(super) fn overlapping(&self, uuid: &str) -> impl Iterator<Item = &str> {
        let this = self.devices.get(uuid);
        let known = self
            .devices
            .values()
            .filter(move |other| this.is_some_and(|this| this.overlaps(other)));
        // A MIG device that the node does not list can be a part of any GPU, unless it was saved of which.
        let lost = move |uuid: &&String| {
            let of = || self.assigned.get(*uuid).and_then(|entry| entry.gpu_uuid.as_ref());
            let of_this = |whole: &Device| of().is_none_or(|gpu| *gpu == whole.gpu_uuid);
            uuid.starts_with(MIG_UUID)
                && !self.devices.contains_key(*uuid)
                && this.is_some_and(|this| this.mig.is_none() && of_this(this))
        };
        let lost = self.assigned.keys().chain(self.held.devices()).filter(lost);
        known.map(|other| other.uuid.as_str()).chain(lost.map(String::as_str))
    }

    /// Notes of which GPU each MIG device is a part, where an earlier version saved the entry without it.
    pub(super) fn note_parents(&mut self) {
        for (uuid, entry) in &mut self.assigned {
            if let Some(device) = self.devices.get(uuid) {
                entry.gpu_uuid = device.part_of();
            }
        }
    }
}
