//! The eviction of one pod, and the check that a pod is the one that is meant.

use crate::{intervention::InterventionCause, pods};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use std::{collections::BTreeSet, fmt};

/// Time after the start of a drain in which a pod may have got a share that was not withdrawn yet.
const LATE_ALLOCATION: SignedDuration = SignedDuration::from_secs(30);

/// Eviction of a pod. An agent reports holders by name, so check the pod before ([`PodEviction::is_of`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodEviction {
    /// Policy that wants it.
    pub policy: String,
    /// Reason for it.
    pub cause: EvictionCause,
    /// Grace period in seconds; none for that of the pod.
    pub grace_seconds: Option<i64>,
}

/// Reason to evict a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EvictionCause {
    /// The pod holds a broken device.
    Broken {
        /// UUID of the device.
        device: String,
        /// Resource through which the pod got the device.
        resource: String,
        /// Moment since which the device is unhealthy, by the node's clock.
        since: Timestamp,
        /// Fault of the device, for people.
        fault: String,
    },
    /// The pod holds a device that changes.
    Change {
        /// Resources of the node.
        resources: BTreeSet<String>,
        /// Start of the drain.
        since: Timestamp,
    },
    /// The pod may have an open handle on a device that changes, and the policy names it.
    OpenHandle {
        /// Start of the drain.
        since: Timestamp,
    },
}

impl EvictionCause {
    /// Returns the cause as audits count it.
    pub fn intervention(&self) -> InterventionCause {
        match self {
            Self::Broken { .. } => InterventionCause::BrokenDevice,
            Self::Change { .. } | Self::OpenHandle { .. } => InterventionCause::GpuChange,
        }
    }
}

impl fmt::Display for EvictionCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broken { device, fault, .. } => write!(f, "it holds {device}, which is broken: {fault}"),
            Self::Change { .. } => write!(f, "it holds a GPU that changes, and the policy has drain.policy Evict"),
            Self::OpenHandle { .. } => write!(
                f,
                "it keeps a GPU open that changes, and drain.evict of the policy names it"
            ),
        }
    }
}

impl PodEviction {
    /// Returns true if the eviction is about this pod: it runs on the node, requests a resource of the device, and is no later pod
    /// of the same name, which got another device. A forged report evicts no pod that requests no device.
    pub fn is_of(&self, pod: &Pod, node: &str) -> bool {
        let (spec, status) = (pod.spec.as_ref(), pod.status.as_ref());
        let is_there = spec.and_then(|spec| spec.node_name.as_deref()) == Some(node);
        let is_over = pod.metadata.deletion_timestamp.is_some() || pods::has_ended(pod);
        let requests =
            |is_one: &dyn Fn(&String) -> bool| spec.is_some_and(|spec| pods::extended_resources(spec).any(is_one));
        let created_until = |end: Timestamp| {
            let created = pod.metadata.creation_timestamp.as_ref();
            created.is_some_and(|created| created.0 <= end)
        };
        let late = |since: &Timestamp| since.saturating_add(LATE_ALLOCATION).unwrap_or(Timestamp::MAX);
        let is_meant = match &self.cause {
            EvictionCause::Broken { resource, since, .. } => {
                // Both times are by the node's clock; this one is rounded down to seconds.
                let started = status.and_then(|status| status.start_time.as_ref());
                started.is_some_and(|time| time.0 <= *since) && requests(&|name| name == resource)
            }
            EvictionCause::Change { resources, since } => {
                created_until(late(since)) && requests(&|name| resources.contains(name))
            }
            EvictionCause::OpenHandle { since } => created_until(late(since)),
        };
        is_meant && is_there && !is_over && !pods::is_mirror(pod)
    }
}
