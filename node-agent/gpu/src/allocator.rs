//! Who holds what, what is offered now, and what waits.
//!
//! A device is offered by one [`Assignment`] at a time. Another one takes its place only on evidence that no container
//! holds anything of the device and that the kubelet can give nothing of it out any more (DESIGN 3.7).

mod allocation;
mod held;
mod observation;
mod offer;
mod preference;
mod settle;
mod waiting;

pub use allocation::{AllocatedDevices, AllocationRefusal};
pub use observation::{ContainerShares, DeviceHolder, KubeletObservation, PendingChange};
pub use preference::PreferredAllocation;

use crate::{Assignment, DesiredDevice, DesiredDevices, Device, DeviceSharing, PairScores, ResourceRules, device_of};
use held::Held;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

/// What the agent knows of the devices of its node and of what is held.
#[derive(Clone, Debug, Default)]
pub struct Allocator {
    /// What each device is offered as; this alone is saved.
    assigned: BTreeMap<String, Assignment>,
    /// Whether entries come from an earlier process, whose last allocations nobody remembers.
    restored: bool,
    /// What each device is to be offered as; none before anybody said.
    desired: Option<BTreeMap<String, Assignment>>,
    /// Names of the resources in the order of the configuration.
    order: Vec<String>,
    rules: BTreeMap<String, ResourceRules>,
    /// How the GPUs of the node are linked.
    scores: PairScores,
    /// Every device that the node has, and those with an entry that it had.
    devices: BTreeMap<String, Device>,
    present: BTreeSet<String>,
    held: Held,
    unavailable: BTreeMap<String, String>,
    /// Resources of which only one device's free shares are offered.
    withheld: BTreeSet<String>,
    /// When the newest observation was started.
    seen: Option<Instant>,
    /// Observations before this are no evidence for a switch.
    evidence_from: Option<Instant>,
}

impl Allocator {
    /// What was in force when an earlier process saved it.
    pub fn restore(saved: BTreeMap<String, Assignment>) -> Self {
        Self {
            restored: !saved.is_empty(),
            assigned: saved,
            ..Self::default()
        }
    }

    /// What has to be on disk before [`Self::advertised`] is published.
    pub fn assigned(&self) -> &BTreeMap<String, Assignment> {
        &self.assigned
    }

    /// A new configuration or other hardware. Devices that nobody holds and that no entry has are offered at once; what
    /// changes for the others waits for [`Self::observe`].
    pub fn set_desired(&mut self, wanted: DesiredDevices) {
        self.order.clear();
        for DesiredDevice { assignment, .. } in &wanted.devices {
            if !self.order.contains(&assignment.resource) {
                self.order.push(assignment.resource.clone());
            }
        }
        self.devices.retain(|uuid, _| self.assigned.contains_key(uuid));
        self.present.clear();
        let offered = wanted.devices.iter().map(|wanted| wanted.device.clone());
        for device in wanted.present.into_iter().chain(offered) {
            self.present.insert(device.uuid.clone());
            self.devices.insert(device.uuid.clone(), device);
        }
        self.note_parents();
        self.rules = wanted.rules;
        self.scores = wanted.scores;
        self.desired = Some(
            wanted
                .devices
                .into_iter()
                .map(|of| (of.device.uuid, of.assignment))
                .collect(),
        );
        self.adopt();
    }

    /// What the kubelet says. Carries out what waited and has its evidence now; an observation that was started before
    /// the newest one is ignored.
    pub fn observe(&mut self, observation: KubeletObservation) {
        let KubeletObservation {
            started,
            holders,
            allocatable,
            checkpoint,
        } = observation;
        if self.seen.is_some_and(|seen| started < seen) {
            return;
        }
        if self.seen.is_none() && self.restored {
            self.evidence_from = started.checked_add(held::GRANT_MEMORY);
        }
        self.seen = Some(started);
        let freed = self.held.observe(started, holders, checkpoint);
        self.withheld.retain(|resource| !freed.contains(resource));
        if self.evidence_from.is_none_or(|from| started >= from) {
            self.switch(&allocatable);
        }
        self.adopt();
    }

    /// Devices that cannot be given out now, and why: all their shares are unhealthy, and allocations of them refused. A GPU
    /// stands for its MIG devices too.
    pub fn set_unavailable(&mut self, reasons: BTreeMap<String, String>) {
        self.unavailable = reasons;
    }

    /// Why a device cannot be given out now.
    fn unavailable(&self, uuid: &str) -> Option<&str> {
        let of_gpu = || self.unavailable.get(&self.devices.get(uuid)?.gpu_uuid);
        self.unavailable.get(uuid).or_else(of_gpu).map(String::as_str)
    }

    /// Whether the kubelet was asked who holds what; before that nothing is offered.
    pub fn is_observed(&self) -> bool {
        self.seen.is_some()
    }

    /// Whether something waits, was given out and is not seen held yet, or is withheld until something that is held is
    /// free: then the kubelet is to be asked often.
    pub fn needs_observation(&self) -> bool {
        self.held.has_grants()
            || self.withheld.iter().any(|resource| self.held.holds_resource(resource))
            || !self.waiting_devices().is_empty()
    }

    /// The devices that are offered under MPS, by UUID.
    pub fn mps_devices(&self) -> Vec<String> {
        let mps = |of: &&Assignment| matches!(of.sharing, DeviceSharing::Mps { .. });
        self.assigned
            .iter()
            .filter(|(_, of)| mps(of))
            .map(|(uuid, _)| uuid.clone())
            .collect()
    }

    /// Which container holds how many shares of which device, for devices and resources that are known here; ordered.
    pub fn holders(&self) -> Vec<DeviceHolder> {
        let mut counts: BTreeMap<DeviceHolder, u32> = BTreeMap::new();
        for holding in self.held.observed() {
            let ours = self.order.contains(&holding.resource)
                || self.assigned.values().any(|entry| entry.resource == holding.resource);
            for device in holding.ids.iter().map(|id| device_of(id)) {
                if ours || self.devices.contains_key(device) || self.assigned.contains_key(device) {
                    *counts.entry(DeviceHolder::of(holding, device)).or_default() += 1;
                }
            }
        }
        counts
            .into_iter()
            .map(|(holder, count)| DeviceHolder { count, ..holder })
            .collect()
    }
}

#[cfg(test)]
mod tests;
