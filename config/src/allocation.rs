//! Policies that choose a container's GPUs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Choice among the free devices of a resource for a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(description = "")]
pub enum Allocation {
    /// GPUs with the best links between them.
    #[default]
    Topology,
    /// As few GPUs and NUMA nodes as possible, GPUs in use first, so that whole GPUs stay free for large requests.
    Packed,
    /// GPUs far from each other and from GPUs in use, least loaded first.
    Spread,
}
