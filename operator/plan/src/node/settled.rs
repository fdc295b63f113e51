//! The node once the patch of its plan is carried out, where nothing else is left to do then.

use crate::{input::facts::NodeFacts, outcome::PolicyOutcome};
use std::collections::BTreeMap;

/// A node after its patch. Planning it again would give these outcomes and no write.
#[derive(Clone, Debug, PartialEq)]
pub struct SettledNode {
    /// The node.
    pub(crate) facts: NodeFacts,
    /// Outcome of each matching policy.
    pub outcomes: BTreeMap<String, PolicyOutcome>,
}

impl SettledNode {
    /// Returns true if `node` is as the patch leaves it. Nobody else can have changed what it does not compare: the
    /// patch is guarded by the version.
    pub fn is(&self, node: &NodeFacts) -> bool {
        let facts = &self.facts;
        // The order of taints means nothing.
        let has_taints =
            || facts.taints.len() == node.taints.len() && facts.taints.iter().all(|taint| node.taints.contains(taint));
        (facts.ready, facts.ready_since, facts.created) == (node.ready, node.ready_since, node.created)
            && (&facts.uid, &facts.boot) == (&node.uid, &node.boot)
            && (&facts.owned, &facts.recovered) == (&node.owned, &node.recovered)
            && facts.allocatable == node.allocatable
            && facts.recorded_resources == node.recorded_resources
            && facts.labels == node.labels
            && has_taints()
    }
}
