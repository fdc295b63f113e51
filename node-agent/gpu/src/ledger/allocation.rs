//! What a container is given for the ids that the kubelet picked, and what it is refused.

use crate::{Device, DeviceSharing};

/// What a container gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The devices and how many shares of each, by index.
    pub devices: Vec<(Device, u32)>,
    /// How they are shared; that of the first where a change is under way.
    pub sharing: DeviceSharing,
}

/// Why a container gets nothing.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum Refusal {
    /// Nothing was asked for.
    #[error("allocate {resource}: the request names no device")]
    Empty {
        /// The resource.
        resource: String,
    },
    /// Ids that are in no list of this resource.
    #[error("allocate {resource}: unknown devices {}; they are not in the list that is in force", .ids.join(", "))]
    Unknown {
        /// The resource.
        resource: String,
        /// The ids.
        ids: Vec<String>,
    },
    /// `failRequestsGreaterThanOne`.
    #[error(
        "allocate {resource}: the container asks for {asked} replicas, and two replicas do not give twice the GPU; \
         ask for 1 (sharing.failRequestsGreaterThanOne is on)"
    )]
    MoreThanOne {
        /// The resource.
        resource: String,
        /// Shares asked for.
        asked: usize,
    },
    /// Shares of several devices, where a container's shares have to come from one.
    #[error("allocate {resource}: {}", split(*.asked, *.free_total, *.most_free, .device_index))]
    Split {
        /// The resource.
        resource: String,
        /// Shares asked for.
        asked: u32,
        /// Shares that are free on the node.
        free_total: u32,
        /// Most shares that are free on one device.
        most_free: u32,
        /// The device on which they are, such as `3` or `3:1`.
        device_index: String,
    },
    /// The device cannot be given out now.
    #[error("allocate {resource}: {device} cannot be given out now: {reason}")]
    HeldBack {
        /// The resource.
        resource: String,
        /// UUID of the device.
        device: String,
        /// Why.
        reason: String,
    },
}

fn split(asked: u32, free_total: u32, most_free: u32, device_index: &str) -> String {
    if asked <= most_free {
        return format!(
            "{asked} units of one GPU are needed, and the kubelet picked units of several though {most_free} are free on \
             GPU {device_index}; its topology manager put other NUMA nodes first"
        );
    }
    format!(
        "{asked} units fit in the {free_total} that are free on this node but not on one GPU: the most that is free on one \
         is {most_free} (GPU {device_index}); ask for at most that, or wait until units are freed"
    )
}
