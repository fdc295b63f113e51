//! What waits, and for what.

use super::{Allocator, PendingChange};
use crate::{Assignment, DeviceSharing, device_of};
use std::collections::BTreeSet;

impl Allocator {
    /// Devices that are not yet offered as they are to be, by index.
    pub fn pending_changes(&self) -> Vec<PendingChange> {
        let mut waiting: Vec<PendingChange> = self
            .waiting_devices()
            .into_iter()
            .map(|uuid| self.describe(uuid))
            .collect();
        waiting.sort_by_key(|of| {
            let device = self.devices.get(&of.device);
            (device.is_none(), device.map(crate::Device::order), of.device.clone())
        });
        waiting
    }

    /// UUIDs of the devices whose entry is not what is wanted, and of those that are wanted and have none.
    pub(super) fn waiting_devices(&self) -> BTreeSet<&str> {
        let (true, Some(wanted)) = (self.is_observed(), &self.desired) else {
            return BTreeSet::new();
        };
        let changing = self
            .assigned
            .iter()
            .filter(|(uuid, now)| wanted.get(*uuid) != Some(now))
            .map(|(uuid, _)| uuid);
        let coming = wanted.keys().filter(|uuid| !self.assigned.contains_key(*uuid));
        changing.chain(coming).map(String::as_str).collect()
    }

    /// Whether a device waits only because of what the kubelet's checkpoint has. The kubelet writes it after each device
    /// list, so another list brings it up to date.
    pub fn waits_for_checkpoint(&self) -> bool {
        self.waiting_devices().into_iter().any(|uuid| {
            let together: Vec<&str> = self.overlapping(uuid).chain([uuid]).collect();
            let any = |holds: &dyn Fn(&str) -> bool| together.iter().any(|device| holds(device));
            !any(&|device| self.held.holds_of(device, None))
                && any(&|device| self.held.checkpoint_holds_of(device, None))
        })
    }

    fn describe(&self, uuid: &str) -> PendingChange {
        let now = self.assigned.get(uuid);
        let next = self.desired.as_ref().and_then(|wanted| wanted.get(uuid));
        let whole_or_part: BTreeSet<&str> = self.overlapping(uuid).chain([uuid]).collect();
        let holds = |id: &String| whole_or_part.contains(device_of(id));
        let holding = self
            .held
            .observed()
            .iter()
            .filter(|holding| holding.ids.iter().any(holds));
        let pods: BTreeSet<String> = holding.map(|of| format!("{}/{}", of.namespace, of.pod)).collect();
        let until = if !pods.is_empty() {
            "the last pod that holds it is gone"
        } else if whole_or_part.iter().any(|device| self.held.holds_of(device, None)) {
            "it is certain that no container got the shares that were given out last"
        } else if whole_or_part
            .iter()
            .any(|device| self.held.checkpoint_holds_of(device, None))
        {
            "the kubelet's checkpoint names no container that holds it, such as an init container"
        } else {
            "the kubelet gives nothing of it out any more"
        };
        let name = self
            .devices
            .get(uuid)
            .map_or_else(|| uuid.to_owned(), |device| format!("GPU {}", device.index()));
        let message = match (now, next) {
            (Some(now), Some(next)) => format!("{name} stays {} until {until}, then it becomes {}", In(now), In(next)),
            (Some(now), None) if self.present.contains(uuid) => {
                format!("{name} stays {} until {until}, then it is no longer offered", In(now))
            }
            (Some(now), None) => format!(
                "{name} has left the node and stays {}, unhealthy, until {until}",
                In(now)
            ),
            (None, Some(next)) => format!("{name} is not offered until {until}, then it becomes {}", In(next)),
            (None, None) => format!("{name} is not offered"),
        };
        PendingChange {
            device: uuid.to_owned(),
            message,
            pods: pods.into_iter().collect(),
        }
    }
}

/// An assignment in words.
struct In<'a>(&'a Assignment);

impl std::fmt::Display for In<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Assignment { resource, sharing, .. } = self.0;
        match sharing {
            DeviceSharing::Whole => write!(f, "{resource}"),
            DeviceSharing::TimeSlicing { replicas } => write!(f, "{resource} ({replicas} replicas)"),
            DeviceSharing::Memory { unit, units } => write!(f, "{resource} ({units} units of {unit})"),
            DeviceSharing::Mps { replicas } => write!(f, "{resource} ({replicas} shares under MPS)"),
        }
    }
}
