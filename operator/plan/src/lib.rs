//! Plans what gpunode writes: from policies and facts to the labels, taints, record and agent configuration of one node, to
//! DaemonSets, and to the status of a policy.
//!
//! Everything here is a pure function: no IO, the clock is an argument, and planning one's own result again gives the same.
//!
//! | module | what it does |
//! |---|---|
//! | `input` | facts of nodes, policies, selectors, and which policies match |
//! | `node` | the plan for one node: labels, taints, record |
//! | `gpu_node` | the plan for its `GpuNode`: configuration, requests, progress, conditions |
//! | `fleet` | rollout, counts and status of one policy over all nodes |
//! | `output` | DaemonSets, evictions, explanations |
//! | `record` | the record of what gpunode wrote on a node |
//! | `fact_labels` | labels with facts about GPUs |
//! | `outcome` | what became of one policy on one node |
//! | `packed_map` | a compact map of texts |
//! | `patch_builder` | JSON patches that a changed object refuses |

mod fact_labels;
mod fleet;
mod gpu_node;
mod input;
mod node;
mod outcome;
mod output;
mod packed_map;
mod patch_builder;
mod record;

pub use fact_labels::gpu_labels;
pub use fleet::policy_status::{AgentUpdate, policy_status};
pub use fleet::rollout::{PolicyRollout, RolloutStage};
pub use fleet::tally::PolicyTally;
pub use gpu_node::conditions::ConditionsChange;
pub use gpu_node::configuration::GpuNodeChange;
pub use gpu_node::requests::PAUSE_LABEL;
pub use input::facts::{NodeFacts, Taint, TaintKey};
pub use input::inventory::inventory;
pub use input::matching::gpu_mismatch;
pub use input::policies::{Policy, PolicySet};
pub use node::conflicts::{ConflictKey, KeyConflict};
pub use node::hold::NodeHold;
pub use node::plan::{NodePlan, RolloutPermit};
pub use node::planner::{plan_node, plan_node_with_permit};
pub use node::stale_resources::{ResourcePresence, ResourceUse, ResourceUses, StaleResources, find_stale_resources};
pub use outcome::{PolicyNodeStatus, PolicyOutcome};
pub use output::daemonsets::{
    AgentPodSettings, COMPONENT_LABEL, DISCOVERY_NAME, MANAGED_BY_LABEL, MPS_NAME, POLICY_NAME_LABEL,
    daemonset_has_drifted, desired_discovery, desired_for_policy, desired_mps, is_daemonset_observed,
    is_same_daemonset, outdated_agents, policy_daemonset_name, policy_of_daemonset, repaired_daemonset,
};
pub use output::evictions::{PodEviction, evictions, retain_holders_of_unhealthy};
pub use output::explain::{
    EntryKind, EntrySource, EntryState, Explanation, ExplanationEntry, OverriddenValue, PolicyMatch, explain,
};
pub use output::mismatch::{NearestNode, SelectorMismatch, mismatches, nearest_node};
pub use output::pods::PodName;
pub use output::rejected_pods::{RejectedPod, policies_delete_rejected_pods};
pub use packed_map::PackedMap;
