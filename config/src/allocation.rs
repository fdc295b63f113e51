//! Which GPUs a container gets.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which of the free devices of a resource a container gets. `Topology`: GPUs that are linked best. `Packed`: as few GPUs and
/// NUMA nodes as possible, those in use first. `Spread`: GPUs far from one another and from those in use. Units of memory go by
/// `sharing.placement` instead. Default: Topology.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Allocation {
    /// GPUs that are linked best.
    #[default]
    Topology,
    /// As few GPUs and NUMA nodes as possible, those in use first, which keeps the others whole for large requests.
    Packed,
    /// GPUs far from one another and from those in use, the least loaded first.
    Spread,
}
