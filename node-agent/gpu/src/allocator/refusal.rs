//! Reasons to refuse the allocation of a container, and their texts.

use std::time::Duration;

/// Reason to refuse the allocation of a container.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum AllocationRefusal {
    /// The request has no id.
    #[error("allocate {resource}: the request has no device id")]
    Empty {
        /// Name of the extended resource.
        resource: String,
    },
    /// The ids are not in the list of this resource.
    #[error("allocate {resource}: the current device list does not have {}", .ids.join(", "))]
    Unknown {
        /// Name of the extended resource.
        resource: String,
        /// The unknown ids.
        ids: Vec<String>,
    },
    /// A container holds a share.
    #[error(
        "allocate {resource}: pod {pod} holds {id} according to the kubelet {age:.1?} ago, so another container cannot get \
         it{}", unseen_text(.unseen.as_deref())
    )]
    Held {
        /// Name of the extended resource.
        resource: String,
        /// Id of the share.
        id: String,
        /// The pod, as `NAMESPACE/NAME`.
        pod: String,
        /// Age of the observation.
        age: Duration,
        /// Reason why there is no new observation.
        unseen: Option<String>,
    },
    /// The share was allocated, and the kubelet could not be asked for its holder.
    #[error(
        "allocate {resource}: {id} was allocated {age:.1?} ago and a container may hold it, so another container cannot get \
         it{}", unseen_text(Some(.unseen))
    )]
    Unproven {
        /// Name of the extended resource.
        resource: String,
        /// Id of the share.
        id: String,
        /// Time since the allocation.
        age: Duration,
        /// Reason why there is no new observation.
        unseen: String,
    },
    /// The request breaks `failRequestsGreaterThanOne`.
    #[error(
        "allocate {resource}: the container requests {asked} replicas, but two replicas do not give twice the GPU; \
         request 1 (sharing.failRequestsGreaterThanOne is true)"
    )]
    MoreThanOne {
        /// Name of the extended resource.
        resource: String,
        /// Number of requested shares.
        asked: usize,
    },
    /// The shares are of several devices, and have to come from one.
    #[error("allocate {resource}: {}", split_message(*.asked, *.free_total, *.most_free, .device_index))]
    Split {
        /// Name of the extended resource.
        resource: String,
        /// Number of requested shares.
        asked: u32,
        /// Number of free shares of the node.
        free_total: u32,
        /// Largest number of free shares of one device.
        most_free: u32,
        /// Index of that device, such as `3` or `3:1`.
        device_index: String,
    },
    /// No container can get the device now.
    #[error("allocate {resource}: {device} is unavailable: {reason}")]
    Unavailable {
        /// Name of the extended resource.
        resource: String,
        /// UUID of the device.
        device: String,
        /// The reason.
        reason: String,
    },
}

fn unseen_text(unseen: Option<&str>) -> String {
    unseen
        .map(|reason| format!(" (the kubelet does not answer now: {reason})"))
        .unwrap_or_default()
}

fn split_message(asked: u32, free_total: u32, most_free: u32, device_index: &str) -> String {
    if asked <= most_free {
        return format!(
            "the kubelet picked units of several GPUs for {asked} units, though GPU {device_index} has {most_free} free: \
             its topology manager prefers other NUMA nodes"
        );
    }
    format!(
        "{asked} units do not fit on one GPU: {free_total} units are free on this node, at most {most_free} on one GPU \
         (GPU {device_index}); request at most {most_free}, or wait until units are free"
    )
}
