//! The data of the allocator: assignments, desired assignments, held shares.

use super::{claims::DeviceClaims, file_claims::FileClaims, held::Held};
use crate::{Assignment, CompanionDevice, Device, DeviceSharing, PairScores, ResourceRules, is_companion};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

/// Prefix of the UUIDs of MIG devices.
const MIG_UUID: &str = "MIG-";

/// Changes of the number of time slices that are not over yet.
#[derive(Clone, Debug, Default)]
pub struct Resizes {
    /// Slices that a device has no longer though the kubelet may pick them, by UUID.
    pub former: BTreeMap<String, FormerSlices>,
    /// Largest number of held slices of late, by resource.
    pub peaks: BTreeMap<String, Peak>,
}

/// Slices that a device has no longer though the kubelet may pick them.
#[derive(Clone, Debug)]
pub struct FormerSlices {
    /// Their numbers.
    pub numbers: BTreeSet<u32>,
    /// Start of the last observation in which one was healthy or held; of the first one after a new number. None before it.
    pub seen: Option<Instant>,
}

/// Largest number of held slices of a resource of late.
#[derive(Clone, Copy, Debug)]
pub struct Peak {
    /// Number of held slices.
    pub held: usize,
    /// Number of devices with slices for containers; the peak says nothing about any other number of them.
    pub devices: usize,
    /// Start of the observation.
    pub at: Instant,
}

/// Kinds of devices that are known, with their desired assignments.
#[derive(Clone, Copy, Debug, Default)]
pub struct KnownDeviceKinds {
    /// GPUs and MIG devices.
    pub gpus: bool,
    /// Companions.
    pub companions: bool,
}

/// The devices of a node: their assignments, the desired ones, and the shares that containers hold.
#[derive(Clone, Debug, Default)]
pub struct AllocatorState {
    /// Assignment of each device by UUID; the agent saves it.
    pub assigned: BTreeMap<String, Assignment>,
    /// True if assignments come from an earlier process, whose last allocations are unknown.
    pub restored: bool,
    /// Desired assignment of each device by UUID.
    pub desired: BTreeMap<String, Assignment>,
    /// Kinds of devices whose desired assignments are known.
    pub known: KnownDeviceKinds,
    /// Names of the resources of GPUs in the order of the configuration.
    pub order: Vec<String>,
    /// Names of the resources of companions in the order of the configuration, also of those without a device.
    pub companion_order: Vec<String>,
    /// Rules of each resource, by name.
    pub rules: BTreeMap<String, ResourceRules>,
    /// Links between the GPUs of the node.
    pub scores: PairScores,
    /// GPUs and MIG devices by UUID: those of the node, and assigned ones that have left it.
    pub devices: BTreeMap<String, Device>,
    /// Companions by id: desired ones, and assigned ones from before.
    pub companions: BTreeMap<String, CompanionDevice>,
    /// Files that containers of companions have or may have.
    pub files: FileClaims,
    /// Held companions of which nobody knows the files.
    pub unknown_companions: BTreeSet<String>,
    /// UUIDs of the devices that the node has, and ids of the companions with a file.
    pub present: BTreeSet<String>,
    /// Shares that containers hold.
    pub held: Held,
    /// Devices that containers have from NVIDIA's DRA driver.
    pub claims: DeviceClaims,
    /// UUIDs of the assigned devices that containers have from another plugin.
    pub held_by_others: BTreeSet<String>,
    /// Reason for each device that no container can get now, by UUID.
    pub unavailable: BTreeMap<String, String>,
    /// Reason for each device of which containers keep their shares and get no other ones now, by UUID.
    pub paused: BTreeMap<String, String>,
    /// True while the pods on devices that switch are evicted: no share of these devices is healthy.
    pub withdraws_switching: bool,
    /// Resources with the free shares of one device only.
    pub withheld: BTreeSet<String>,
    /// Changes of the number of time slices that are not over yet.
    pub resizes: Resizes,
    /// Start of the newest observation.
    pub observed_at: Option<Instant>,
    /// Start of the first observation that can prove a switch of a GPU or MIG device.
    pub evidence_from: Option<Instant>,
    /// Start of the first observation that can prove a switch of a companion.
    pub companion_evidence_from: Option<Instant>,
}

impl AllocatorState {
    /// Returns true after the first observation; before it, nothing is advertised.
    pub fn is_observed(&self) -> bool {
        self.observed_at.is_some()
    }

    /// Returns the desired assignment of a device.
    pub fn desired_assignment(&self, uuid: &str) -> Option<&Assignment> {
        self.desired.get(uuid)
    }

    /// Returns true if a device of the node gets another assignment, or none, once nobody holds it.
    pub fn switches(&self, uuid: &str) -> bool {
        let desired = self.desired_assignment(uuid);
        let is_wanted = || desired.is_some() || self.present.contains(uuid);
        !self.awaits_device(uuid) && self.assigned.get(uuid) != desired && is_wanted()
    }

    /// Returns true if a device with this assignment is known to get another one, or none.
    pub fn is_to_change(&self, uuid: &str, now: &Assignment) -> bool {
        !self.awaits_device(uuid) && self.desired.get(uuid) != Some(now)
    }

    /// Returns true if an observation that began then can prove a switch of a device.
    pub fn is_proven(&self, uuid: &str, started: Instant) -> bool {
        let from = if is_companion(uuid) {
            self.companion_evidence_from
        } else {
            self.evidence_from
        };
        from.is_none_or(|from| started >= from)
    }

    /// Returns the names of the resources of the configuration, each once: while one of the two kinds is still to be known, a name
    /// may be with both.
    pub fn configured_resources(&self) -> impl Iterator<Item = &String> {
        let companions = self.companion_order.iter().filter(|name| !self.order.contains(name));
        self.order.iter().chain(companions)
    }

    /// Returns the desired assignment of a device that does not have it yet, if held shares of that one do not keep the device
    /// from it. They do where a share could be of the present assignment too, and where an MPS daemon would come between
    /// processes that know nothing of it.
    pub fn already_as_desired(&self, uuid: &str) -> Option<&Assignment> {
        let next = self.desired_assignment(uuid)?;
        let is_clear = |now: &Assignment| {
            let is_mps = matches!(next.sharing, DeviceSharing::Mps { .. });
            !is_mps && !self.held.holds_share_of_both(uuid, now, next)
        };
        self.assigned.get(uuid).is_none_or(is_clear).then_some(next)
    }

    /// Returns the reason why no share of a device is healthy now. A reason of a GPU applies to its MIG devices too.
    pub fn unavailable_reason(&self, uuid: &str) -> Option<&str> {
        self.reason(&self.unavailable, uuid)
    }

    /// Returns the reason why no container gets another share of a device now. A reason of a GPU applies to its MIG devices too.
    pub fn paused_reason(&self, uuid: &str) -> Option<&str> {
        self.reason(&self.paused, uuid)
    }

    fn reason<'a>(&self, reasons: &'a BTreeMap<String, String>, uuid: &str) -> Option<&'a str> {
        let of_gpu = || {
            // Before the driver has answered, only the assignment names the GPU.
            let gpu = match self.devices.get(uuid) {
                Some(device) => &device.gpu_uuid,
                None => self.assigned.get(uuid)?.gpu_uuid.as_ref()?,
            };
            reasons.get(gpu)
        };
        reasons.get(uuid).or_else(of_gpu).map(String::as_str)
    }

    /// Returns true before the first desired devices of its kind: the driver has not answered this process yet, no file has been
    /// looked for, or the configuration is not known. The assignments of an earlier process stand until then.
    pub fn awaits_device(&self, uuid: &str) -> bool {
        let is_known = if is_companion(uuid) {
            self.known.companions
        } else {
            self.known.gpus
        };
        !is_known
    }

    /// Returns true if a container holds or may hold a share of the device, except those of `except`, or a share of a device
    /// that may overlap it.
    pub fn is_taken(&self, uuid: &str, except: Option<&Assignment>) -> bool {
        self.may_be_held(uuid, except) || self.maybe_overlapping(uuid).any(|other| self.may_be_held(other, None))
    }

    /// Notes the devices that containers have from another plugin. Runs after each change of devices, assignments or observed
    /// shares, since each device list needs them at once.
    pub fn update_held_by_others(&mut self) {
        let assigned = self.assigned.iter().filter(|(uuid, of)| {
            self.may_be_held(uuid, Some(of)) || self.overlapping(uuid).any(|other| self.may_be_held(other, None))
        });
        self.held_by_others = assigned.map(|(uuid, _)| uuid.clone()).collect();
    }

    /// Returns true if a container holds or may hold a share of the device itself, except those of `except`.
    pub fn may_be_held(&self, uuid: &str, except: Option<&Assignment>) -> bool {
        self.held.holds_of(uuid, except)
            || self.held.checkpoint_holds_of(uuid, except)
            || (!is_companion(uuid) && self.claims.of_device(uuid, &self.devices).next().is_some())
    }

    /// Returns the UUIDs of the devices that overlap this one: a GPU and its MIG devices, also those that have left the node if
    /// their assignment names the GPU.
    pub fn overlapping(&self, uuid: &str) -> impl Iterator<Item = &str> {
        let this = self.devices.get(uuid);
        let known = self
            .devices
            .values()
            .filter(move |other| this.is_some_and(|this| this.overlaps(other)));
        let whole = this.filter(|this| this.mig.is_none());
        let lost = whole.into_iter().flat_map(move |gpu| {
            let of_gpu = self
                .assigned
                .iter()
                .filter(move |(_, of)| of.gpu_uuid.as_ref() == Some(&gpu.gpu_uuid));
            of_gpu
                .map(|(lost, _)| lost)
                .filter(move |lost| !self.devices.contains_key(*lost))
        });
        known.map(|other| other.uuid.as_str()).chain(lost.map(String::as_str))
    }

    /// Returns the UUIDs of the devices that overlap this one or may: a held MIG device that nobody knows can be a part of any
    /// GPU.
    pub fn maybe_overlapping(&self, uuid: &str) -> impl Iterator<Item = &str> {
        let is_whole = self.devices.get(uuid).is_some_and(|this| this.mig.is_none());
        let is_unknown = move |other: &&String| {
            is_whole
                && other.starts_with(MIG_UUID)
                && !self.devices.contains_key(*other)
                && self.assigned.get(*other).is_none_or(|of| of.gpu_uuid.is_none())
        };
        let unknown = self.assigned.keys().chain(self.held.devices()).filter(is_unknown);
        self.overlapping(uuid).chain(unknown.map(String::as_str))
    }
}
