//! Reads what the cluster says: nodes, policies, and which of them belong together.
//!
//! | module | what it does |
//! |---|---|
//! | `facts` | the fields of a `Node` that the planner needs |
//! | `policies` | the policies, checked and ordered by priority |
//! | `selectors` | node selectors and GPU selectors of a policy |
//! | `matching` | the policies that match a node |
//! | `inventory` | the GPUs that a `GpuNode` reports, as the allocation logic takes them |

pub mod facts;
pub mod inventory;
pub mod matching;
pub mod policies;
pub mod selectors;
