//! Plans one node: its labels, taints and record, from the policies that match it.
//!
//! | module | what it does |
//! |---|---|
//! | `planner` | the plan for one node, from start to end |
//! | `plan` | the result: writes, and the outcome of each policy |
//! | `settled` | the node once its plan is carried out |
//! | `permit` | the permit of a node to change its configuration |
//! | `desired` | everything that the matching policies want together, and the plan that follows |
//! | `compose` | merges what several policies want; finds disagreements |
//! | `claim` | decides about each key: set, remove, leave alone or report |
//! | `conflicts` | keys that a policy wants and somebody else owns |
//! | `owner_conditions` | conditions about keys that somebody else owns |
//! | `labels` | labels, and their JSON patch |
//! | `taints` | taints, and their JSON patch |
//! | `startup_taint` | the taint that keeps pods off until the GPUs are allocatable |
//! | `unhealthy_taint` | the taint of nodes with too few healthy GPUs |
//! | `paced_taints` | the pace of taints that evict pods |
//! | `stale_resources` | removes resources that nobody serves from the node's status |
//! | `patches` | the patches of the node and of its status |
//! | `hold` | reasons to leave a node as it is |
//! | `held_plans` | plans for nodes that are left as they are |
//! | `preview` | changes that a policy in mode Preview would make |

pub mod claim;
pub mod compose;
pub mod conflicts;
pub mod desired;
pub mod held_plans;
pub mod hold;
pub mod labels;
pub mod owner_conditions;
pub mod paced_taints;
pub mod patches;
pub mod permit;
pub mod plan;
pub mod planner;
pub mod preview;
pub mod settled;
pub mod stale_resources;
pub mod startup_taint;
pub mod taints;
pub mod unhealthy_taint;
