//! The pods of a node as they were read for its drain.

use crate::pods::PodName;
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
    /// Pods without devices that may be evicted.
    pub(crate) monitors: BTreeSet<PodName>,
}
