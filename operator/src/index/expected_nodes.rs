//! Nodes as the writes under way leave them. A result that is as expected needs no other plan: what it counts as is
//! known.

use crate::index::outcomes::PolicyNodeStatuses;
use gpunode_plan::{NodeFacts, NodePlan, SettledNode};
use std::collections::HashMap;

/// Nodes whose only write under way is their last one, by name.
#[derive(Debug, Default)]
pub struct ExpectedNodes(HashMap<String, ExpectedNode>);

#[derive(Debug)]
struct ExpectedNode {
    node: SettledNode,
    statuses: PolicyNodeStatuses,
}

impl ExpectedNodes {
    /// Records the plan that a node is about to be written by.
    pub fn put(&mut self, name: &str, plan: &NodePlan) {
        if let (Some(node), Some(statuses)) = (plan.settled_node().cloned(), plan.settled_statuses()) {
            self.0.insert(name.to_owned(), ExpectedNode { node, statuses });
        } else {
            self.remove(name);
        }
    }

    /// Takes the status of each policy on a node that is as its write leaves it; none for a node that nobody expects
    /// so.
    pub fn take(&mut self, node: &NodeFacts) -> Option<PolicyNodeStatuses> {
        let expected = self.0.remove(&node.name)?;
        expected.node.is(node).then_some(expected.statuses)
    }

    /// Forgets a node whose write is over, or that is planned again.
    pub fn remove(&mut self, name: &str) {
        self.0.remove(name);
    }
}
