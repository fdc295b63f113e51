//! Keys of the work queue, and the write that each needs.

use crate::metrics::{WorkClass, WorkKind};
use gpunode_crds::{GpuNodePolicy, GpuNodePolicyStatus};
use gpunode_plan::{ConditionsChange, GpuNodeChange, Intervention};
use k8s_openapi::api::apps::v1::DaemonSet;
use std::sync::Arc;

/// Something that may need a write.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WorkKey {
    /// A node and its `GpuNode`, by name.
    Node(String),
    /// A DaemonSet, by name.
    DaemonSet(String),
    /// The status of a policy, by name.
    PolicyStatus(String),
    /// The removal of what a policy wrote that is gone, by name: it needs no write of its own.
    Removal(String),
    /// The next nodes of a sweep: it queues them. Comes after them, so that they are planned first.
    Sweep,
    /// The next nodes of a pass for previews.
    Previews,
}

impl WorkKey {
    /// Name of the object; empty for work on all nodes.
    pub fn name(&self) -> &str {
        match self {
            Self::Node(name) | Self::DaemonSet(name) | Self::PolicyStatus(name) | Self::Removal(name) => name,
            Self::Sweep | Self::Previews => "",
        }
    }

    /// Class of the work where nothing else is known. There may be thousands of nodes; of the others there are few, and
    /// people look at them.
    pub fn class(&self) -> WorkClass {
        match self {
            Self::Node(_) | Self::Sweep | Self::Previews => WorkClass::Ordinary,
            Self::DaemonSet(_) | Self::PolicyStatus(_) | Self::Removal(_) => WorkClass::Urgent,
        }
    }

    /// Kind of the work, for metrics.
    pub fn kind(&self) -> WorkKind {
        match self {
            Self::Node(_) => WorkKind::Node,
            Self::DaemonSet(_) => WorkKind::DaemonSet,
            Self::PolicyStatus(_) => WorkKind::Status,
            Self::Removal(_) | Self::Sweep => WorkKind::Sweep,
            Self::Previews => WorkKind::Previews,
        }
    }
}

/// The write that a key needs.
#[derive(Debug, PartialEq)]
pub enum PlannedWrite {
    Node(Box<NodeWrite>),
    DaemonSet(DaemonSetWrite),
    PolicyStatus(Box<PolicyStatusWrite>),
    UnreadableStatus(Box<UnreadableStatusWrite>),
}

/// Writes for a node; at least one of them.
#[derive(Debug, PartialEq)]
pub struct NodeWrite {
    /// A patch of the Node.
    pub patch: Option<json_patch::Patch>,
    /// Things that the patch takes away from somebody.
    pub interventions: Vec<Intervention>,
    /// A patch of its status.
    pub status_patch: Option<json_patch::Patch>,
    /// A change of its `GpuNode`.
    pub gpu_node: GpuNodeChange,
    /// The operator's conditions in the status of its `GpuNode`.
    pub conditions: Option<ConditionsChange>,
}

/// A write of a DaemonSet.
#[derive(Debug, PartialEq)]
pub enum DaemonSetWrite {
    /// It is missing.
    Create(Box<DaemonSet>),
    /// It differs; this is its repaired form, with the resourceVersion that was read.
    Replace(Box<DaemonSet>),
    /// No policy wants it.
    Delete {
        /// `metadata.uid`.
        uid: String,
        /// `metadata.resourceVersion`.
        version: String,
    },
}

/// A write of the status of a policy that cannot be read.
#[derive(Debug, PartialEq)]
pub struct UnreadableStatusWrite {
    /// `metadata.resourceVersion`.
    pub version: String,
    /// Its new status.
    pub status: GpuNodePolicyStatus,
}

/// A write of a policy's status.
#[derive(Debug, PartialEq)]
pub struct PolicyStatusWrite {
    /// The policy as the index has it.
    pub policy: Arc<GpuNodePolicy>,
    /// Its new status.
    pub status: GpuNodePolicyStatus,
}
