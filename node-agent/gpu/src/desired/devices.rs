//! Desired devices, and the problems of those that a resource cannot have.

use super::rules::ResourceRules;
use crate::{Assignment, Device, Inventory, PairScores};
use std::collections::BTreeMap;

/// The desired devices of a node under a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DesiredDevices {
    /// Devices with a resource, in the order of the configuration, then by index.
    pub devices: Vec<DesiredDevice>,
    /// Rules of each resource that has a device, by name.
    pub rules: BTreeMap<String, ResourceRules>,
    /// All devices of the node, with or without a resource.
    pub present: Vec<Device>,
    /// Links between the GPUs of the node.
    pub scores: PairScores,
    /// Parts of the configuration that these devices cannot give.
    pub problems: Vec<DeviceProblem>,
}

/// A device with its desired assignment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredDevice {
    /// The device.
    pub device: Device,
    /// Its desired resource and sharing.
    pub assignment: Assignment,
}

impl DeviceProblemKind {
    /// Returns true if people should know of it although the node works as its configuration says.
    pub fn is_remark(self) -> bool {
        matches!(self, Self::FileRefused | Self::FileMissing)
    }
}

impl DesiredDevices {
    /// Returns a node with these devices, none of which has a resource.
    pub fn nothing(inventory: &Inventory) -> Self {
        Self {
            present: Device::all(inventory),
            scores: PairScores::new(inventory),
            ..Self::default()
        }
    }
}

/// A device that a resource selects and cannot have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceProblem {
    /// Name of the resource, such as `nvidia.com/gpu`.
    pub resource: String,
    /// The kind, for the reason of a condition.
    pub kind: DeviceProblemKind,
    /// Message for people: the resource, the reason, the remedy.
    pub message: String,
}

/// Reason why a resource cannot have a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeviceProblemKind {
    /// A resource under MIG strategy `Single` selects unequal devices.
    MigInstancesUnequal,
    /// The GPU has MIG enabled and no MIG device.
    MigWithoutInstances,
    /// The GPU is too old for MPS with limits.
    MpsUnsupported,
    /// The device has less memory than one unit.
    MemoryBelowUnit,
    /// A companion matches files that it cannot hand out, beside others that it does.
    FileRefused,
    /// A companion matches only files that it cannot hand out.
    EveryFileRefused,
    /// A companion has no device because files are missing.
    FileMissing,
}
