//! Read access to the index.

use crate::{
    index::{ClusterIndex, evictions::EvictionKey},
    metrics::MAX_POLICIES,
};
use gpunode_crds::{ConditionType, NodeCounts};
use gpunode_plan::{NodeDrain, PodEviction, RejectedPod};
use jiff::Timestamp;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The index, which one task changes and others read.
#[derive(Clone)]
pub struct IndexReader(Arc<RwLock<ClusterIndex>>);

impl IndexReader {
    /// True once each cache has its first list.
    pub fn has_synced(&self) -> bool {
        self.read().has_synced()
    }

    /// True if nothing of gpunode exists in the cluster.
    pub fn is_first_install(&self) -> bool {
        self.read().is_first_install()
    }

    /// Returns the reason to evict a pod; `None` if there is none any more.
    pub fn eviction(&self, key: &EvictionKey) -> Option<PodEviction> {
        self.read().eviction(key).cloned()
    }

    /// Returns the taints that evict pods from a node; `None` if nobody has to look at its pods.
    pub fn drain(&self, node: &str) -> Option<NodeDrain> {
        self.read().drain(node).cloned()
    }

    /// Returns the number of nodes that still have what a deleted policy wrote, for metrics.
    pub fn removal_nodes(&self) -> usize {
        self.read().removal_nodes()
    }

    /// True if a policy wants this rejected pod to be deleted.
    pub fn deletes(&self, pod: &RejectedPod) -> bool {
        self.read().deletes(pod, Timestamp::now())
    }

    /// Returns the number of nodes whose discovery pod is of an earlier version, for metrics.
    pub fn outdated_discovery(&self) -> i32 {
        self.read().outdated_discovery()
    }

    /// Returns the numbers of nodes by policy and state, for metrics.
    pub fn node_numbers(&self) -> Vec<(String, &'static str, i32)> {
        let counts = self.read().node_counts();
        let by_state = |(policy, counts): (String, NodeCounts)| {
            [
                (policy.clone(), "matched", counts.matched),
                (policy.clone(), "ready", counts.ready),
                (policy.clone(), "updating", counts.updating),
                (policy.clone(), "failed", counts.failed),
                (policy, "conflicted", counts.conflicted),
            ]
        };
        counts.into_iter().take(MAX_POLICIES).flat_map(by_state).collect()
    }

    /// Returns the conditions of policies and whether they are True, for metrics.
    pub fn conditions(&self) -> Vec<(String, ConditionType, bool)> {
        self.read().conditions(MAX_POLICIES)
    }

    /// Returns how many policies cannot be read, for metrics.
    pub fn unreadable_policies(&self) -> usize {
        self.read().unreadable_policies()
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
