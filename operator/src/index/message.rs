//! The one input of the index: updates from watches, and results of the operator's own writes.

use crate::index::{
    cache::{WatchUpdate, WriteKind},
    dra_nodes::SliceOwner,
    watched_policy::WatchedPolicy,
    work::{PolicyStatusWrite, WorkKey},
};
use gpunode_crds::GpuNodePolicy;
use gpunode_plan::{GpuNodeFacts, NodeDrain, NodeFacts, ReviewedPods};
use k8s_openapi::api::apps::v1::DaemonSet;

/// Something that the index learns.
#[derive(Debug)]
pub enum IndexMessage {
    Policies(WatchUpdate<WatchedPolicy>),
    Nodes(WatchUpdate<NodeFacts>),
    GpuNodes(WatchUpdate<GpuNodeFacts>),
    DaemonSets(WatchUpdate<DaemonSet>),
    /// ResourceSlices of NVIDIA's DRA driver.
    ResourceSlices(WatchUpdate<SliceOwner>),
    /// The API server accepted one request of a write, or returned the object that a lost race was about.
    Written(WrittenObject),
    /// All requests of a write are over. Comes after their [`IndexMessage::Written`].
    Finished(FinishedWrite),
    /// No pod of a node has to go any more for these taints.
    /// Somebody has read the pods of a node for its drain.
    PodsReviewed {
        node: String,
        reviewed: ReviewedPods,
    },
    Drained {
        node: String,
        drain: NodeDrain,
    },
}

#[cfg(test)]
impl IndexMessage {
    /// A whole list of one page.
    pub fn list<T>(message: fn(WatchUpdate<T>) -> Self, objects: Vec<T>) -> [Self; 3] {
        WatchUpdate::list(objects).map(message)
    }
}

/// Object that the API server returned for an accepted request, or for a read after a lost race; one that is gone too.
#[derive(Debug)]
pub enum WrittenObject {
    Node(Box<NodeFacts>),
    GpuNode(Box<GpuNodeFacts>, WriteKind),
    /// A write did not find the node that it was planned for, which had this version.
    DeletedNode {
        name: String,
        version: String,
    },
    /// The version is that of the object that was deleted, or that a write did not find.
    DeletedGpuNode {
        name: String,
        version: String,
    },
    DaemonSet {
        returned: Box<DaemonSet>,
        kind: WriteKind,
        sent: Box<DaemonSet>,
    },
    PolicyStatus {
        returned: Box<GpuNodePolicy>,
        sent: Box<PolicyStatusWrite>,
    },
}

/// The end of a write.
#[derive(Debug)]
pub struct FinishedWrite {
    pub key: WorkKey,
    pub result: WriteResult,
}

/// Result of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteResult {
    /// The API server accepted every request.
    Accepted,
    /// The API server refuses this very write, for this reason.
    Refused(String),
    /// The object changed, came or went meanwhile; the watch brings its new state.
    Conflict,
    /// The API server could not be asked, or was too busy.
    Failed,
}
