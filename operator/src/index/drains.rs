//! Nodes from which taints evict pods. No IO.

use gpunode_plan::NodeDrain;
use std::collections::HashMap;

/// Taints that evict pods, by node. Few nodes have any.
#[derive(Debug, Default)]
pub struct PendingDrains(HashMap<String, NodeDrain>);

impl PendingDrains {
    /// Replaces the taints of one node. Returns true if somebody has to look at its pods who did not know.
    pub fn put(&mut self, node: &str, after: NodeDrain) -> bool {
        if after.is_empty() {
            self.0.remove(node);
            return false;
        }
        let is_known = self.0.get(node) == Some(&after);
        if !is_known {
            self.0.insert(node.to_owned(), after);
        }
        !is_known
    }

    /// Returns the taints of a node that evict pods; `None` if there are none.
    pub fn get(&self, node: &str) -> Option<&NodeDrain> {
        self.0.get(node)
    }

    /// Forgets all, so that the next `put` of each node returns true.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}
