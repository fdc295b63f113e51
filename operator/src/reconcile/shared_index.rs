//! Read access to the index.

use crate::index::{ClusterIndex, drains::PendingDrain, evictions::EvictionKey};
use gpunode_plan::{PodEviction, RejectedPod};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The index for the tasks about pods. Probes, metrics and the election read its summary instead, which waits for
/// nobody.
#[derive(Clone)]
pub struct IndexReader(Arc<RwLock<ClusterIndex>>);

impl IndexReader {
    /// Returns the reason to evict a pod; `None` if there is none any more.
    pub fn eviction(&self, key: &EvictionKey) -> Option<PodEviction> {
        self.read().eviction(key).cloned()
    }

    /// True if a node changed since its plan, so that nobody knows yet which pods have to go.
    pub fn is_plan_due(&self, node: &str) -> bool {
        self.read().is_plan_due(node)
    }

    /// Returns why somebody has to look at the pods of a node; `None` if nobody has to.
    pub fn drain(&self, node: &str) -> Option<PendingDrain> {
        self.read().drain(node).cloned()
    }

    /// Returns the policy that wants this rejected pod to be deleted.
    pub fn deleting_policy(&self, pod: &RejectedPod) -> Option<String> {
        self.read().deleting_policy(pod, Timestamp::now()).map(str::to_owned)
    }

    /// Returns a reference to a policy, for events; none if it is gone.
    pub fn policy_reference(&self, name: &str) -> Option<ObjectReference> {
        self.read().policy_reference(name)
    }

    fn read(&self) -> RwLockReadGuard<'_, ClusterIndex> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The index as the one task that changes it has it.
pub struct IndexOwner(Arc<RwLock<ClusterIndex>>);

impl IndexOwner {
    /// Shares an index.
    pub fn new(index: ClusterIndex) -> (Self, IndexReader) {
        let index = Arc::new(RwLock::new(index));
        (Self(index.clone()), IndexReader(index))
    }

    /// Locks the index for changes.
    pub fn lock(&mut self) -> RwLockWriteGuard<'_, ClusterIndex> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}
