//! The allocator: which container holds which share, what the kubelet gets to see, and what a container gets.
//!
//! A device passes three stages. It is *desired* under a resource by the configuration, *assigned* to one resource at a
//! time, and *advertised* to the kubelet as shares. Its assignment changes only on evidence that no container holds a share
//! of it and that the kubelet can allocate none any more.
//!
//! | module | what it does |
//! |---|---|
//! | `state` | the data: assignments, desired assignments, held shares |
//! | `held` | shares that containers hold, observed at the kubelet or allocated since |
//! | `claims` | devices that containers have from NVIDIA's DRA driver |
//! | `file_claims` | files that containers of companions have |
//! | `companions` | companions without all of their files, and those that an earlier plugin gave out |
//! | `observation` | an observation of the kubelet, and the holders and pending changes that follow |
//! | `slices` | changes of the number of time slices, which are no other sharing |
//! | `switch` | the step of a device to its desired assignment |
//! | `pending` | devices that wait for that step, and the event that each waits for |
//! | `device_shares` | the devices of a resource, with the held shares of each |
//! | `advertised` | the device lists that the kubelet gets |
//! | `preference` | the best of the available shares for a container |
//! | `allocation` | the devices that a container gets for the ids that the kubelet picked |
//! | `refusal` | reasons to refuse an allocation, and their texts |

mod advertised;
mod allocation;
mod claims;
mod companions;
mod device_shares;
mod file_claims;
mod held;
mod observation;
mod pending;
mod preference;
mod refusal;
mod slices;
mod state;
mod switch;

pub use allocation::AllocatedDevices;
pub use observation::{ContainerShares, DeviceHolder, KubeletObservation, PendingChange};
pub use preference::PreferredAllocation;
pub use refusal::AllocationRefusal;

use crate::{
    AdvertisedResource, Assignment, CompanionDevice, DesiredCompanions, DesiredDevice, DesiredDevices, DeviceSharing,
    device_of, is_companion,
};
use claims::DeviceClaims;
use file_claims::FileClaims;
use state::AllocatorState;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};
use switch::{adopt, switch};

/// The devices of a node and the containers that hold them.
#[derive(Clone, Debug, Default)]
pub struct Allocator {
    state: AllocatorState,
}

impl Allocator {
    /// Returns the allocator of a node with the assignments, and the companion of each file, that an earlier process saved.
    pub fn restore(saved: BTreeMap<String, Assignment>, files: BTreeMap<String, String>) -> Self {
        Self {
            state: AllocatorState {
                restored: !saved.is_empty() || !files.is_empty(),
                files: FileClaims::restore(files, saved.keys().filter(|id| is_companion(id))),
                assigned: saved,
                ..AllocatorState::default()
            },
        }
    }

    /// Returns the assignments. They have to be on disk before [`Self::advertised`] is published.
    pub fn assigned(&self) -> &BTreeMap<String, Assignment> {
        &self.state.assigned
    }

    /// Returns the id of the companion of each file that containers have or may have, by path on the host. They have to be on
    /// disk as the assignments.
    pub fn claimed_files(&self) -> &BTreeMap<String, String> {
        self.state.files.by_file()
    }

    /// Notes the claimed files that are on disk: only these are given to containers.
    pub fn set_saved_files(&mut self, saved: &BTreeMap<String, String>) {
        self.state.files.set_saved(saved);
    }

    /// Returns the companions that are desired, or assigned and known.
    pub fn companions(&self) -> &BTreeMap<String, CompanionDevice> {
        &self.state.companions
    }

    /// Takes the desired GPUs and MIG devices of a new configuration or of other hardware. New devices without holders are assigned at
    /// once; changes of the others wait for an observation that begins after `now`: an earlier one does not tell which of the
    /// shares that are withdrawn now were taken meanwhile.
    pub fn set_desired(&mut self, new: DesiredDevices, now: Instant) {
        self.state.evidence_from = self.state.evidence_from.max(Some(now));
        self.state.order.clear();
        for DesiredDevice { assignment, .. } in &new.devices {
            if !self.state.order.contains(&assignment.resource) {
                self.state.order.push(assignment.resource.clone());
            }
        }
        self.state
            .devices
            .retain(|uuid, _| self.state.assigned.contains_key(uuid));
        self.state.present.retain(|id| is_companion(id));
        let assigned = new.devices.iter().map(|desired| desired.device.clone());
        for device in new.present.into_iter().chain(assigned) {
            self.state.present.insert(device.uuid.clone());
            self.state.devices.insert(device.uuid.clone(), device);
        }
        self.state.rules = new.rules;
        self.state.scores = new.scores;
        self.state.known.gpus = true;
        self.state.desired.retain(|id, _| is_companion(id));
        let desired = new.devices.into_iter().map(|of| (of.device.uuid, of.assignment));
        self.state.desired.extend(desired);
        self.assign_desired();
    }

    /// Takes the desired companions of a new configuration or of other files, as [`Self::set_desired`] takes GPUs. `existing` are
    /// those of [`Self::claimed_files`] that exist: a device that is no longer desired stays healthy for its containers while all of
    /// its files do.
    pub fn set_companions(&mut self, new: &DesiredCompanions, existing: &BTreeSet<String>, now: Instant) {
        self.state.companion_evidence_from = self.state.companion_evidence_from.max(Some(now));
        companions::set_desired(&mut self.state, new, existing);
        self.assign_desired();
    }

    /// Gives devices what they get at once.
    fn assign_desired(&mut self) {
        slices::resize(&mut self.state);
        adopt(&mut self.state);
        companions::claim_files(&mut self.state);
        self.state.update_held_by_others();
    }

    /// Takes an observation of the kubelet, and switches the devices that it proves to be free. Ignores an observation that
    /// began before the newest one.
    pub fn observe(&mut self, observation: KubeletObservation) {
        let KubeletObservation {
            started,
            holders,
            allocatable,
            checkpoint,
        } = observation;
        if self.state.observed_at.is_some_and(|seen| started < seen) {
            return;
        }
        if self.state.observed_at.is_none() && self.state.restored {
            let restored_from = started.checked_add(held::GRANT_MEMORY);
            self.state.evidence_from = self.state.evidence_from.max(restored_from);
            self.state.companion_evidence_from = self.state.companion_evidence_from.max(restored_from);
        }
        self.state.observed_at = Some(started);
        let (claims, holders) = DeviceClaims::split_off(holders);
        self.state.claims = claims;
        let freed = self.state.held.observe(started, holders, checkpoint);
        self.state.withheld.retain(|resource| !freed.contains(resource));
        switch(&mut self.state, &allocatable, started);
        companions::release_files(&mut self.state, started);
        slices::resize(&mut self.state);
        adopt(&mut self.state);
        companions::claim_files(&mut self.state);
        self.state.update_held_by_others();
        slices::observe(&mut self.state, started, &allocatable);
    }

    /// Sets the devices that no container can get now, by UUID with the reason. All their shares are unhealthy, and their
    /// allocations refused. A GPU stands for its MIG devices too.
    pub fn set_unavailable(&mut self, reasons: BTreeMap<String, String>) {
        self.state.unavailable = reasons;
    }

    /// Sets the devices of which containers keep their shares and no container gets another one now, by UUID with the reason. A
    /// GPU stands for its MIG devices too.
    pub fn set_paused(&mut self, reasons: BTreeMap<String, String>) {
        self.state.paused = reasons;
    }

    /// Sets whether the pods on devices that switch are evicted. All shares of these devices are unhealthy then, also held
    /// ones, so that a share that a pod leaves goes to no other pod. Returns true if this changes anything.
    pub fn withdraw_switching(&mut self, withdraws: bool) -> bool {
        std::mem::replace(&mut self.state.withdraws_switching, withdraws) != withdraws
    }

    /// Returns true after the first observation; before it, nothing is advertised.
    pub fn is_observed(&self) -> bool {
        self.state.is_observed()
    }

    /// Returns true if a device waits for its change, an allocation is not observed yet, or shares are withheld until a
    /// container frees one: the agent then observes the kubelet often.
    pub fn needs_observation(&self) -> bool {
        self.state.held.has_grants()
            || self
                .state
                .withheld
                .iter()
                .any(|resource| self.state.held.holds_resource(resource))
            // Not those that others hold: a pod of another plugin may run for weeks.
            || !pending::changing_devices(&self.state).is_empty()
            || slices::is_settling(&self.state)
    }

    /// Returns the UUIDs of the devices that are shared by MPS.
    pub fn mps_devices(&self) -> Vec<String> {
        let mps = |of: &&Assignment| matches!(of.sharing, DeviceSharing::Mps { .. });
        self.state
            .assigned
            .iter()
            .filter(|(_, of)| mps(of))
            .map(|(uuid, _)| uuid.clone())
            .collect()
    }

    /// Returns the ids of the devices that containers hold or may hold, of any plugin.
    pub fn held_devices(&self) -> BTreeSet<String> {
        self.state.held.devices().cloned().collect()
    }

    /// Returns the shares of all containers, of any plugin, at the last observation.
    pub fn observed_shares(&self) -> &[ContainerShares] {
        self.state.held.observed()
    }

    /// Returns the holders of shares of known devices and resources, in order. A container with a claim of NVIDIA's DRA driver
    /// holds the GPU of the claim once, or every GPU if the claim does not tell which.
    pub fn holders(&self) -> Vec<DeviceHolder> {
        let mut counts: BTreeMap<DeviceHolder, u32> = BTreeMap::new();
        for holding in self.state.held.observed() {
            let ours = self.state.configured_resources().any(|name| *name == holding.resource)
                || self
                    .state
                    .assigned
                    .values()
                    .any(|assignment| assignment.resource == holding.resource);
            for device in holding.ids.iter().map(|id| device_of(id)) {
                if ours || self.state.devices.contains_key(device) || self.state.assigned.contains_key(device) {
                    *counts.entry(DeviceHolder::of(holding, device)).or_default() += 1;
                }
            }
        }
        for (claim, gpu) in self.state.claims.gpus(&self.state.devices) {
            counts.insert(DeviceHolder::of(claim, gpu), 1);
        }
        counts
            .into_iter()
            .map(|(holder, count)| DeviceHolder { count, ..holder })
            .collect()
    }

    /// Returns the device lists of the kubelet: first the resources of the configuration in its order, then those that it no
    /// longer has. A resource whose devices all still have another assignment has an empty list, so that its stream stays.
    pub fn advertised(&self) -> Vec<AdvertisedResource> {
        advertised::resource_lists(&self.state)
    }

    /// Withholds the free shares of all devices of `resource` except the device with the most, until a container frees a
    /// share: the scheduler then places no request that fits on no device. Returns the number of healthy shares. Does
    /// nothing where the shares of one container can come from several devices.
    pub fn withhold(&mut self, resource: &str) -> u32 {
        advertised::withhold(&mut self.state, resource)
    }

    /// Returns the devices that wait for containers to end, by index: their assignment is not the desired one, or containers
    /// hold more time slices than the device has.
    pub fn pending_changes(&self) -> Vec<PendingChange> {
        pending::pending_changes(&self.state)
    }

    /// Returns true if only the kubelet's checkpoint keeps a device from its change. The kubelet writes the checkpoint after
    /// each device list, so another list brings it up to date.
    pub fn waits_for_checkpoint(&self) -> bool {
        pending::waits_for_checkpoint(&self.state)
    }

    /// Returns `size` of the `available` ids, among them those of `must_include`, or fewer where there are not enough.
    /// Between equal devices `busy`, the utilisation of GPUs by index in percent, decides.
    pub fn preferred(
        &self,
        resource: &str,
        available: &[String],
        must_include: &[String],
        size: usize,
        busy: &BTreeMap<u32, u32>,
    ) -> PreferredAllocation {
        preference::preferred(&self.state, resource, available, must_include, size, busy)
    }

    /// Returns true if one of the shares is held as far as is known, so that only a new observation can tell if a container
    /// may get it. A kubelet can forget an allocation that it is about to record when it lists holders at that moment
    /// (`pkg/kubelet/cm/devicemanager/manager.go`, `UpdateAllocatedDevices`), and then picks the share again.
    pub fn is_doubtful(&self, resource: &str, ids: &[String]) -> bool {
        ids.iter()
            .any(|id| self.state.held.is_held(&(resource.to_owned(), id.clone())))
    }

    /// Allocates the shares `ids` to a container, which holds them from now on. A refusal changes nothing. `requested` is the
    /// time of the request, from before the wait for an observation, and `unseen` the reason why there is no new observation
    /// of doubtful shares.
    pub fn allocate(
        &mut self,
        resource: &str,
        ids: &[String],
        requested: Instant,
        now: Instant,
        unseen: Option<&str>,
    ) -> Result<AllocatedDevices, AllocationRefusal> {
        // A set: an id that comes twice is one share.
        let ids: BTreeSet<&str> = ids.iter().map(String::as_str).collect();
        let devices = allocation::check(&self.state, resource, &ids, requested, unseen)?;
        self.state.held.grant(resource, ids.into_iter(), now);
        Ok(devices)
    }
}

#[cfg(test)]
mod tests;
