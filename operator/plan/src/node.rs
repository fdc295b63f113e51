//! Plans one node: its labels, taints and record, from the policies that match it.
//!
//! | module | what it does |
//! |---|---|
//! | `planner` | the plan for one node, from start to end |
//! | `plan` | the result: writes, outcomes, conflicts |
//! | `desired` | what the matching policies want together, and the plan that follows |
//! | `compose` | merges the wants of several policies; finds disagreements |
//! | `claim` | decides for each key: set, remove, leave alone or report |
//! | `conflicts` | keys that a policy wants and somebody else owns |
//! | `labels`, `taints` | labels and taints, with their JSON patch |
//! | `startup_taint` | the taint that keeps pods away until the GPUs are allocatable |
//! | `unhealthy_taint` | the taint of nodes with too few healthy GPUs |
//! | `stale_resources` | resources that nobody serves any more leave the node's status |
//! | `patches` | the patches of the node and its status |
//! | `hold` | nodes that are left as they are |
//! | `preview` | changes that a policy in mode Preview would make |

pub mod claim;
pub mod compose;
pub mod conflicts;
pub mod desired;
pub mod hold;
pub mod labels;
pub mod patches;
pub mod plan;
pub mod planner;
pub mod preview;
pub mod stale_resources;
pub mod startup_taint;
pub mod taints;
pub mod unhealthy_taint;
