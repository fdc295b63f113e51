//! Policies that choose a container's GPUs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Choice among the free devices of a resource for a container. `Topology` prefers GPUs with the best links between
/// them. `Packed` uses as few GPUs and NUMA nodes as possible and prefers GPUs in use. `Spread` prefers GPUs far from
/// each other and from GPUs in use. Ignored for units of memory, which follow `sharing.placement`. Default: Topology.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Allocation {
    /// GPUs with the best links between them.
    #[default]
    Topology,
    /// As few GPUs and NUMA nodes as possible, GPUs in use first, so that whole GPUs stay free for large requests.
    Packed,
    /// GPUs far from each other and from GPUs in use, least loaded first.
    Spread,
}
