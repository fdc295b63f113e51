//! Which GPUs a container gets.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which of the free devices of a resource a container gets.
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
