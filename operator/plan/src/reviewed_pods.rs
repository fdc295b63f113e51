//! The pods of a node as they were read for its drain.

use crate::pods::PodName;
use gpunode_crds::EvictablePods;
use jiff::Timestamp;
use std::collections::BTreeSet;

/// Result of reading the pods of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReviewedPods {
    /// Start of the drain.
    pub(crate) since: Timestamp,
    /// Pods that were read.
    pub(crate) pods: BTreeSet<PodName>,
    /// Those that cannot be evicted or would come straight back, each with the reason.
    pub(crate) obstacles: Vec<String>,
    /// Rules that select pods without devices that may be evicted.
    pub(crate) rules: Vec<EvictablePods>,
    /// Pods that they select.
    pub(crate) monitors: BTreeSet<PodName>,
    /// Those that cannot be evicted or would come straight back, each with the reason.
    pub(crate) monitor_obstacles: Vec<String>,
}

impl ReviewedPods {
    /// Returns the pods that keep a drain from its end. The monitors count while a handle is open.
    pub(crate) fn obstacles(&self, has_handles: bool) -> Vec<String> {
        let monitors = self.monitor_obstacles.iter().filter(|_| has_handles);
        self.obstacles.iter().chain(monitors).cloned().collect()
    }
}
