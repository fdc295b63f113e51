//! Numbers of the cluster for probes, metrics and the election, which read neither the index nor its lock.

use gpunode_crds::{ConditionType, NodeCounts};

/// The index in numbers, as of a moment ago.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterSummary {
    /// True once each cache has its first list.
    pub has_synced: bool,
    /// True if nothing of gpunode exists in the cluster.
    pub is_first_install: bool,
    /// Numbers of nodes of the first policies, by name.
    pub node_counts: Vec<(String, NodeCounts)>,
    /// Conditions of the first policies as they were last written: policy, type, true if its status is True.
    pub conditions: Vec<(String, ConditionType, bool)>,
    /// Policies that cannot be read.
    pub unreadable_policies: usize,
    /// Nodes that keep what a deleted policy wrote, once for each policy.
    pub removal_nodes: usize,
    /// Nodes whose discovery pod is of an earlier version.
    pub outdated_discovery: i32,
    /// Objects of each cache, by plural name of the resource.
    pub cache_sizes: Vec<(&'static str, usize)>,
    /// Nodes that the sweep under way has not planned yet.
    pub sweep_nodes: usize,
}

impl ClusterSummary {
    /// Returns the numbers of nodes by policy and state.
    pub fn node_numbers(&self) -> impl Iterator<Item = (String, &'static str, i32)> {
        self.node_counts.iter().flat_map(|(policy, counts)| {
            [
                (policy.clone(), "matched", counts.matched),
                (policy.clone(), "ready", counts.ready),
                (policy.clone(), "updating", counts.updating),
                (policy.clone(), "failed", counts.failed),
                (policy.clone(), "conflicted", counts.conflicted),
            ]
        })
    }
}
