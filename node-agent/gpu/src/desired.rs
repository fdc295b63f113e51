//! Which devices a configuration offers, under which names and how shared.

mod entry;
mod selection;

use crate::{Assignment, Device, DeviceSharing, Inventory, MigMode, PairScores};
use entry::Entry;
use gpunode_config::{AgentConfig, Allocation, MigStrategy, Placement};
use std::collections::BTreeMap;

/// Why a configuration cannot be put in force with the GPUs of this node.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum DesiredDevicesError {
    /// The kubelet would refuse the device list.
    #[error(
        "offer {resource}: the list of {shares} shares takes {bytes} bytes, more than the {MAX_LIST_BYTES} that a kubelet \
         receives; {remedy}"
    )]
    ListTooLong {
        /// The resource.
        resource: String,
        /// Shares in its list.
        shares: usize,
        /// Size of the list.
        bytes: usize,
        /// What to change.
        remedy: &'static str,
    },
    /// A glob that the loader let through cannot be compiled.
    #[error("offer {resource}: devices.{field}: {reason}")]
    Glob {
        /// The resource.
        resource: String,
        /// The field of the selector.
        field: &'static str,
        /// What is wrong with the glob.
        reason: String,
    },
}

/// Largest device list in bytes: gRPC's default receive limit, which the kubelet does not raise.
const MAX_LIST_BYTES: usize = 4 * 1024 * 1024;

/// Most bytes of one share in an encoded `ListAndWatchResponse` beside the UUID: tag and length of the share (4) and of the
/// id (2), separator and number (3 + 10), the health with its longest value (2 + 9), the topology with one node and its
/// number (2 + 2 + 11).
const AROUND_UUID: usize = 4 + 2 + 13 + 11 + 15;

/// What a configuration makes of the devices of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DesiredDevices {
    /// What is to be offered, in the order of the configuration and, within a resource, of the devices' indices.
    pub devices: Vec<DesiredDevice>,
    /// The rules of each resource that has a device.
    pub rules: BTreeMap<String, ResourceRules>,
    /// Every device that the node has, wanted or not.
    pub present: Vec<Device>,
    /// How the GPUs of the node are linked.
    pub scores: PairScores,
    /// What the configuration asks for and these devices cannot give.
    pub problems: Vec<DeviceProblem>,
}

/// A device and what it is to be offered as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredDevice {
    /// The device.
    pub device: Device,
    /// What it is to be offered as.
    pub assignment: Assignment,
}

/// What holds for a resource whatever its devices are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResourceRules {
    /// Whether a container that asks for more than one replica is refused.
    pub fail_requests_greater_than_one: bool,
    /// Which device a container's units of memory come from.
    pub placement: Placement,
    /// Which devices a container gets.
    pub allocation: Allocation,
}

/// Devices that cannot be offered as asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceProblem {
    /// Name of the resource, such as `nvidia.com/gpu`.
    pub resource: String,
    /// What kind of problem it is.
    pub kind: DeviceProblemKind,
    /// What was asked for, why it cannot be, and what to do.
    pub message: String,
}

/// Why devices cannot be offered as asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeviceProblemKind {
    /// A resource of strategy `Single` would have unequal devices.
    MigInstancesUnequal,
    /// MIG is enabled on a GPU, and it has no MIG device.
    MigWithoutInstances,
    /// The GPU is too old for MPS with limits.
    MpsUnsupported,
    /// The device has less memory than one unit.
    MemoryBelowUnit,
}

impl ResourceRules {
    /// What decides between devices of which a container gets all its shares, with so many shares free and so many held;
    /// less is better.
    pub fn rank_of_one(&self, sharing: DeviceSharing, free: u32, held: u32) -> i64 {
        let (free, held) = (i64::from(free), i64::from(held));
        match (sharing, self.placement, self.allocation) {
            (DeviceSharing::Memory { .. }, Placement::Packed, _) => free,
            (DeviceSharing::Memory { .. }, Placement::Spread, _) => -free,
            (_, _, Allocation::Packed) => -held,
            (_, _, Allocation::Topology | Allocation::Spread) => held,
        }
    }
}

impl DesiredDevices {
    /// Nothing is to be offered on a node with these devices.
    pub fn nothing(inventory: &Inventory) -> Self {
        Self {
            present: Device::all(inventory),
            scores: PairScores::new(inventory),
            ..Self::default()
        }
    }
}

/// What `config` makes of the devices of `inventory`. A device belongs to the first entry that selects it.
pub fn desired_devices(inventory: &Inventory, config: &AgentConfig) -> Result<DesiredDevices, DesiredDevicesError> {
    let strategy = config.mig_strategy();
    let mut wanted = DesiredDevices::nothing(inventory);
    let mut left = offerable(&wanted.present, inventory, strategy);
    // Divided by MIG, and into nothing: neither a whole GPU nor a part of one.
    let mut empty: Vec<_> = inventory
        .gpus
        .iter()
        .filter(|gpu| gpu.mig_mode == Some(MigMode::Enabled) && gpu.mig_devices.is_empty())
        .collect();
    let resources = config.effective_resources();
    for resource in &resources {
        let entry = Entry::new(resource, strategy)?;
        let (taken, rest) = left.into_iter().partition(|device| entry.selects(device));
        left = rest;
        let (hollow, rest) = empty.into_iter().partition(|gpu| entry.lacks_instances(gpu));
        empty = rest;
        entry.offer(taken, &hollow, &mut wanted);
    }
    if strategy == MigStrategy::Mixed {
        for device in left.into_iter().filter(|device| device.mig.is_some()) {
            entry::offer_by_profile(device, &mut wanted);
        }
    }
    group_by_resource(&mut wanted.devices);
    check_lists(&wanted.devices)?;
    Ok(wanted)
}

/// What stands for each GPU under `strategy`: the GPU or its MIG devices.
fn offerable(present: &[Device], inventory: &Inventory, strategy: MigStrategy) -> Vec<Device> {
    let divided: Vec<&str> = inventory
        .gpus
        .iter()
        .filter(|gpu| gpu.mig_mode == Some(MigMode::Enabled))
        .filter(|gpu| strategy != MigStrategy::None || gpu.mig_devices.is_empty())
        .map(|gpu| gpu.uuid.as_str())
        .collect();
    let stands = |device: &&Device| match device.mig {
        Some(_) => strategy != MigStrategy::None,
        None => !divided.contains(&device.gpu_uuid.as_str()),
    };
    present.iter().filter(stands).cloned().collect()
}

/// Devices of one name together, where an entry has the name that others get by default.
fn group_by_resource(devices: &mut [DesiredDevice]) {
    let mut place = BTreeMap::new();
    for wanted in devices.iter() {
        let next = place.len();
        place.entry(wanted.assignment.resource.clone()).or_insert(next);
    }
    devices.sort_by_key(|wanted| (place.get(&wanted.assignment.resource).copied(), wanted.device.order()));
}

/// Whether the kubelet can receive the list of each resource.
fn check_lists(devices: &[DesiredDevice]) -> Result<(), DesiredDevicesError> {
    let mut lists: BTreeMap<&str, (usize, usize, DeviceSharing)> = BTreeMap::new();
    for DesiredDevice { device, assignment } in devices {
        let shares = assignment.sharing.shares() as usize;
        let list = lists.entry(&assignment.resource).or_insert((0, 0, assignment.sharing));
        list.0 = list.0.saturating_add(shares);
        list.1 = list
            .1
            .saturating_add(shares.saturating_mul(device.uuid.len() + AROUND_UUID));
    }
    match lists.into_iter().find(|(_, (_, bytes, _))| *bytes > MAX_LIST_BYTES) {
        None => Ok(()),
        Some((resource, (shares, bytes, sharing))) => {
            let by_memory = matches!(sharing, DeviceSharing::Memory { .. });
            let remedy = if by_memory {
                "raise sharing.unit"
            } else {
                "lower sharing.replicas"
            };
            Err(DesiredDevicesError::ListTooLong {
                resource: resource.to_owned(),
                shares,
                bytes,
                remedy,
            })
        }
    }
}

#[cfg(test)]
mod tests;
