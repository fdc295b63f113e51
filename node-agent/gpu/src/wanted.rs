//! Which devices a configuration offers, under which names and how shared.

mod selection;

use crate::{Assignment, Device, Inventory};
use gpunode_config::{AgentConfig, Placement};
use std::collections::BTreeMap;

/// Why a configuration cannot be put in force with the GPUs of this node.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
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

/// What a configuration makes of the devices of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// What is to be offered, in the order of the configuration and, within a resource, of the devices' indices.
    pub devices: Vec<WantedDevice>,
    /// The rules of each resource that has a device.
    pub rules: BTreeMap<String, Rules>,
    /// Every device that the node has, wanted or not.
    pub present: Vec<Device>,
    /// What the configuration asks for and these devices cannot give.
    pub problems: Vec<DeviceProblem>,
}

/// A device and what it is to be offered as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedDevice {
    /// The device.
    pub device: Device,
    /// What it is to be offered as.
    pub assignment: Assignment,
}

/// What holds for a resource whatever its devices are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Whether a container that asks for more than one replica is refused.
    pub fail_requests_greater_than_one: bool,
    /// Which device a container's units of memory come from.
    pub placement: Placement,
}

/// Devices that cannot be offered as asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceProblem {
    /// What kind of problem it is.
    pub kind: ProblemKind,
    /// What was asked for, why it cannot be, and what to do.
    pub message: String,
}

/// Why devices cannot be offered as asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProblemKind {
    /// A resource of strategy `Single` would have unequal devices.
    MigInstancesUnequal,
    /// MIG is enabled on a GPU, and it has no MIG device.
    MigWithoutInstances,
    /// The GPU is too old for MPS with limits.
    MpsUnsupported,
    /// The device has less memory than one unit.
    MemoryBelowUnit,
}

impl Wanted {
    /// Nothing is to be offered on a node with these devices.
    pub fn nothing(inventory: &Inventory) -> Self {
        Self { present: Device::all(inventory), ..Self::default() }
    }
}

/// What `config` makes of the devices of `inventory`.
pub fn wanted(inventory: &Inventory, _config: &AgentConfig) -> Result<Wanted, Error> {
    Ok(Wanted::nothing(inventory))
}
