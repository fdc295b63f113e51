//! What the kubelet says about who holds what, and what is told of it.

use std::{collections::BTreeSet, time::Instant};

/// One look at the kubelet: its `PodResources` API and its checkpoint. Looks are made one after the other.
#[derive(Clone, Debug)]
pub struct KubeletObservation {
    /// When the first of its calls was made.
    pub started: Instant,
    /// What `List` says; it is called after `GetAllocatableResources`.
    pub holders: Vec<ContainerShares>,
    /// What `GetAllocatableResources` says: resource and id of every share that the kubelet takes for healthy.
    pub allocatable: BTreeSet<(String, String)>,
    /// What the kubelet's checkpoint has, read after `List`: resource and id of every share that it takes for held. It
    /// misses none, and may have some that are free; `List` leaves out init containers that run to their end.
    pub checkpoint: BTreeSet<(String, String)>,
}

/// What one container holds of one resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerShares {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub pod: String,
    /// Name of the container.
    pub container: String,
    /// The resource.
    pub resource: String,
    /// The ids that the kubelet gave it.
    pub ids: Vec<String>,
}

/// A container that holds shares of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceHolder {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub pod: String,
    /// Name of the container.
    pub container: String,
    /// The resource that it asked for.
    pub resource: String,
    /// UUID of the device.
    pub device: String,
    /// How many shares of the device it holds.
    pub count: u32,
}

/// A device that has to wait before it changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingChange {
    /// UUID of the device.
    pub device: String,
    /// What it waits for, in words.
    pub message: String,
    /// The pods that hold it, as `NAMESPACE/NAME`, ordered.
    pub pods: Vec<String>,
}

impl ContainerShares {
    /// Resource and id of each share.
    pub(super) fn shares(&self) -> impl Iterator<Item = (&str, &str)> {
        self.ids.iter().map(|id| (self.resource.as_str(), id.as_str()))
    }
}

impl DeviceHolder {
    /// One that holds something of `device`, without a count.
    pub(super) fn of(holding: &ContainerShares, device: &str) -> Self {
        Self {
            namespace: holding.namespace.clone(),
            pod: holding.pod.clone(),
            container: holding.container.clone(),
            resource: holding.resource.clone(),
            device: device.to_owned(),
            count: 0,
        }
    }
}
