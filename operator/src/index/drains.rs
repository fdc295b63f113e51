//! Nodes whose pods somebody has to look at. No IO.

use gpunode_plan::{NodeDrain, PodReview};
use std::collections::HashMap;

/// Reasons to look at the pods of a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PendingDrain {
    /// Taints that evict pods.
    pub taints: NodeDrain,
    /// Pods that hold devices which change, before they are evicted.
    pub review: Option<PodReview>,
}

/// The reasons, by node. Few nodes have any.
#[derive(Debug, Default)]
pub struct PendingDrains(HashMap<String, PendingDrain>);

impl PendingDrains {
    /// Replaces the reasons of one node. Returns true if somebody has to look at its pods who did not know.
    pub fn put(&mut self, node: &str, after: PendingDrain) -> bool {
        if after.taints.is_empty() && after.review.is_none() {
            self.0.remove(node);
            return false;
        }
        let is_known = self.0.get(node) == Some(&after);
        if !is_known {
            self.0.insert(node.to_owned(), after);
        }
        !is_known
    }

    /// Returns the reasons to look at the pods of a node; `None` if there are none.
    pub fn get(&self, node: &str) -> Option<&PendingDrain> {
        self.0.get(node)
    }

    /// Forgets all, so that the next `put` of each node returns true.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}
