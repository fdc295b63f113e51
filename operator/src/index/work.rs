//! What there is to do: keys of the queue, and what is to be written for each.

use crate::{events::Notice, index::evictions::HolderKey};
use gpunode_crds::{GpuNodePolicy, GpuNodePolicyStatus};
use gpunode_plan::{ConditionsChange, GpuNodeChange};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::DaemonSet;
use std::sync::Arc;

/// Something that may need a write.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// A node and its `GpuNode`, by name.
    Node(String),
    /// A DaemonSet, by name.
    DaemonSet(String),
    /// The status of a policy, by name.
    Status(String),
}

/// A key to look at, now or at a time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wake {
    /// What.
    pub key: Key,
    /// When; `None` is now.
    pub at: Option<Timestamp>,
}

/// What follows from a change.
#[derive(Debug, Default)]
pub struct Effects {
    /// What to look at.
    pub wakes: Vec<Wake>,
    /// What to tell people.
    pub notices: Vec<Notice>,
    /// Pods to evict.
    pub evictions: Vec<HolderKey>,
}

impl Effects {
    /// Asks for a look now.
    pub fn wake(&mut self, key: Key) {
        self.wakes.push(Wake { key, at: None });
    }

    /// Asks for a look at a time.
    pub fn wake_at(&mut self, key: Key, at: Timestamp) {
        self.wakes.push(Wake { key, at: Some(at) });
    }
}

/// What is to be written for a node; at least one of them.
#[derive(Debug, PartialEq)]
pub struct NodeWork {
    /// A patch of the Node.
    pub patch: Option<json_patch::Patch>,
    /// A patch of its status.
    pub status_patch: Option<json_patch::Patch>,
    /// A change of its `GpuNode`.
    pub gpu_node: GpuNodeChange,
    /// What the operator says in the status of its `GpuNode`.
    pub conditions: Option<ConditionsChange>,
}

/// What is to be written for a DaemonSet.
#[derive(Debug, PartialEq)]
pub enum DaemonSetWork {
    /// It is missing.
    Create(Box<DaemonSet>),
    /// It was edited; this is how it is to be, with the version that was read.
    Replace(Box<DaemonSet>),
    /// No policy wants it.
    Delete {
        /// `metadata.uid`.
        uid: String,
        /// `metadata.resourceVersion`.
        version: String,
    },
}

/// A status to write.
#[derive(Debug, PartialEq)]
pub struct StatusWork {
    /// The policy as it is known.
    pub policy: Arc<GpuNodePolicy>,
    /// Its new status.
    pub status: GpuNodePolicyStatus,
}
