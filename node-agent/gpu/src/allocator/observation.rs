//! Observations of the kubelet: containers and the shares that they hold.

use std::{collections::BTreeSet, time::Instant};

/// One observation of the kubelet, by its `PodResources` API and its checkpoint. Observations do not overlap.
#[derive(Clone, Debug)]
pub struct KubeletObservation {
    /// Time before its first call.
    pub started: Instant,
    /// Result of `List`, called after `GetAllocatableResources`. A container with claims of NVIDIA's DRA driver holds devices
    /// of a resource that has the driver's name, by the driver's own names of devices.
    pub holders: Vec<ContainerShares>,
    /// Result of `GetAllocatableResources`: resource and id of each share that the kubelet takes for healthy.
    pub allocatable: BTreeSet<(String, String)>,
    /// Content of the kubelet's checkpoint, read after `List`: resource and id of each share that it takes for held. It has
    /// all held shares and may have free ones; `List` leaves out init containers that run to their end.
    pub checkpoint: BTreeSet<(String, String)>,
}

/// Shares of one resource that one container holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerShares {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub pod: String,
    /// Name of the container.
    pub container: String,
    /// Name of the extended resource.
    pub resource: String,
    /// Ids of the shares.
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
    /// Name of the extended resource.
    pub resource: String,
    /// UUID of the device.
    pub device: String,
    /// Number of shares of the device.
    pub count: u32,
}

/// A device that waits for an event before its assignment changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingChange {
    /// UUID of the device.
    pub device: String,
    /// Message for people: the present state, the event, the state after it.
    pub message: String,
    /// Pods that hold it, as `NAMESPACE/NAME`, in order.
    pub pods: Vec<String>,
    /// True if the device of this node gets another assignment, or none, once nobody holds it.
    pub switches: bool,
}

impl ContainerShares {
    /// Returns resource and id of each share.
    pub(super) fn shares(&self) -> impl Iterator<Item = (&str, &str)> {
        self.ids.iter().map(|id| (self.resource.as_str(), id.as_str()))
    }
}

impl DeviceHolder {
    /// Returns the holder of shares of `device`, with a count of 0.
    pub(crate) fn of(holding: &ContainerShares, device: &str) -> Self {
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
