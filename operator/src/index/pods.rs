//! What the index knows of pods that are to go.

use super::Index;
use crate::index::evictions::HolderKey;
use gpunode_plan::{PodEviction, RejectedPod, RolloutPermit, plan_node_with_permit, policies_delete_rejected_pods};
use jiff::Timestamp;

impl Index {
    /// Why a pod is to be evicted, if it still is.
    pub fn eviction(&self, key: &HolderKey) -> Option<&PodEviction> {
        self.evictions.get(key)
    }

    /// Whether a policy in force wants rejected pods to be deleted.
    pub fn wants_rejected_pods(&self) -> bool {
        policies_delete_rejected_pods(&self.set)
    }

    /// Whether a rejected pod is to be deleted.
    pub fn is_to_go(&self, pod: &RejectedPod, now: Timestamp) -> bool {
        let Some(facts) = self.nodes.get(&pod.node) else {
            return false;
        };
        let gpu_node = self.gpu_nodes.get(&pod.node).map(AsRef::as_ref);
        pod.goes(
            &self.set,
            &plan_node_with_permit(RolloutPermit::Withheld, &self.set, facts, gpu_node, now),
            facts,
            gpu_node,
        )
    }
}
