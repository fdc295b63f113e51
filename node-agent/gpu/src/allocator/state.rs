//! The data of the allocator: assignments, desired assignments, held shares.

use super::held::Held;
use crate::{Assignment, Device, PairScores, ResourceRules};
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
    /// Start of the last observation in which one was healthy or held.
    pub seen: Instant,
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

/// The devices of a node: their assignments, the desired ones, and the shares that containers hold.
#[derive(Clone, Debug, Default)]
pub struct AllocatorState {
    /// Assignment of each device by UUID; the agent saves it.
    pub assigned: BTreeMap<String, Assignment>,
    /// True if assignments come from an earlier process, whose last allocations are unknown.
    pub restored: bool,
    /// Desired assignment of each device by UUID; none before the first configuration.
    pub desired: Option<BTreeMap<String, Assignment>>,
    /// Names of the resources in the order of the configuration.
    pub order: Vec<String>,
    /// Rules of each resource, by name.
    pub rules: BTreeMap<String, ResourceRules>,
    /// Links between the GPUs of the node.
    pub scores: PairScores,
    /// Devices by UUID: those of the node, and assigned ones that have left it.
    pub devices: BTreeMap<String, Device>,
    /// UUIDs of the devices that the node has.
    pub present: BTreeSet<String>,
    /// Shares that containers hold.
    pub held: Held,
    /// Reason for each device that no container can get now, by UUID.
    pub unavailable: BTreeMap<String, String>,
    /// Resources with the free shares of one device only.
    pub withheld: BTreeSet<String>,
    /// Changes of the number of time slices that are not over yet.
    pub resizes: Resizes,
    /// Start of the newest observation.
    pub observed_at: Option<Instant>,
    /// Start of the first observation that can prove a switch.
    pub evidence_from: Option<Instant>,
}

impl AllocatorState {
    /// Returns true after the first observation; before it, nothing is advertised.
    pub fn is_observed(&self) -> bool {
        self.observed_at.is_some()
    }

    /// Returns the desired assignment of a device.
    pub fn desired_assignment(&self, uuid: &str) -> Option<&Assignment> {
        self.desired.as_ref().and_then(|desired| desired.get(uuid))
    }

    /// Returns the reason why no container can get a device now. A reason of a GPU applies to its MIG devices too.
    pub fn unavailable_reason(&self, uuid: &str) -> Option<&str> {
        let of_gpu = || self.unavailable.get(&self.devices.get(uuid)?.gpu_uuid);
        self.unavailable.get(uuid).or_else(of_gpu).map(String::as_str)
    }

    /// Returns true if a container holds or may hold a share of the device, except those of `except`, or a share of an
    /// overlapping device.
    pub fn is_taken(&self, uuid: &str, except: Option<&Assignment>) -> bool {
        let taken =
            |uuid: &str, except| self.held.holds_of(uuid, except) || self.held.checkpoint_holds_of(uuid, except);
        taken(uuid, except) || self.overlapping(uuid).any(|other| taken(other, None))
    }

    /// Returns the UUIDs of the devices that overlap this one: a GPU and its MIG devices.
    pub fn overlapping(&self, uuid: &str) -> impl Iterator<Item = &str> {
        let this = self.devices.get(uuid);
        let known = self
            .devices
            .values()
            .filter(move |other| this.is_some_and(|this| this.overlaps(other)));
        // A MIG device that has left the node can be a part of any GPU, unless its assignment names the GPU.
        let lost = move |uuid: &&String| {
            let of = || {
                self.assigned
                    .get(*uuid)
                    .and_then(|assignment| assignment.gpu_uuid.as_ref())
            };
            let of_this = |whole: &Device| of().is_none_or(|gpu| *gpu == whole.gpu_uuid);
            uuid.starts_with(MIG_UUID)
                && !self.devices.contains_key(*uuid)
                && this.is_some_and(|this| this.mig.is_none() && of_this(this))
        };
        let lost = self.assigned.keys().chain(self.held.devices()).filter(lost);
        known.map(|other| other.uuid.as_str()).chain(lost.map(String::as_str))
    }
}
