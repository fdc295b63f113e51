//! Plans everything that gpunode writes to the API server: from policies and facts to the labels, taints, record and agent
//! configuration of one node, to DaemonSets, and to the status of a policy.
//!
//! Every function is pure: no IO, the clock is an argument, and planning the result of a plan gives no further change.
//!
//! | module | what it does |
//! |---|---|
//! | `input` | facts of nodes, policies, selectors, and the policies that match |
//! | `node` | plans one node: labels, taints, record |
//! | `gpu_node` | plans its `GpuNode`: configuration, requests, progress, conditions |
//! | `fleet` | rollout, counts and status of one policy over all nodes |
//! | `output` | DaemonSets, evictions, explanations |
//! | `fact_labels` | labels with facts about GPUs |
//! | `record` | the record of what gpunode wrote on a node |
//! | `outcome` | the outcome of one policy on one node |
//! | `rollout_stage` | the stage of a node in a rollout |
//! | `node_drain` | taints that evict pods from a node |
//! | `intervention` | writes that take something away from somebody |
//! | `pod_eviction` | the eviction of one pod |
//! | `reviewed_pods` | pods of a node as they were read for its drain |
//! | `pods` | names and resources of pods, and pods that have ended |
//! | `names` | names and labels of DaemonSets |
//! | `mig_layouts` | MIG layouts that GPUs have, and those that a configuration wants |
//! | `label_syntax` | texts that can be values and keys of labels |
//! | `taint` | a taint and its identity |
//! | `packed_map` | a compact map of texts |
//! | `interned` | values that many nodes have alike, kept once |
//! | `patch_builder` | JSON patches guarded by a version |
//! | `time` | helpers for moments |

mod fact_labels;
mod fleet;
mod gpu_node;
mod input;
mod interned;
mod intervention;
mod label_syntax;
mod mig_layouts;
mod names;
mod node;
mod node_drain;
mod outcome;
mod output;
mod packed_map;
mod patch_builder;
mod pod_eviction;
mod pods;
mod record;
mod reviewed_pods;
mod rollout_stage;
mod taint;
mod time;

pub use fact_labels::{NodeFactLabels, gpu_labels, is_fact_label};
pub use fleet::{
    messages::{policy_missing, policy_unreadable, removal_paced, rollout_stopped},
    policy_removal::{PolicyRemovals, RemovalBatch},
    policy_status::{AgentUpdate, policy_status, unreadable_policy_status},
    rollout::PolicyRollout,
    tally::PolicyTally,
};
pub use gpu_node::{
    change::GpuNodeChange,
    conditions::ConditionsChange,
    configuration::{ConfigurationObstacle, configuration_obstacle, missing_owner},
    drain::{DrainWork, PodReview, gpu_with_handles, switching_devices},
};
pub use input::{
    agent_images::{AgentImages, AgentImagesError},
    context::NodeContext,
    deselection::{Deselection, Deselections},
    facts::NodeFacts,
    gpu_node_facts::GpuNodeFacts,
    inventory::inventory,
    matching::may_match,
    node_fields::NodeFields,
    policies::{Policy, PolicySet},
    release::{PAUSE_LABEL, is_released},
    resource_presence::ResourcePresence,
    selection_grace::find_deselections,
};
pub use interned::interned_text;
pub use intervention::{Intervention, InterventionCause};
pub use mig_layouts::{
    observed::{CountedLayout, observed},
    selection::choice,
    wanted::{LayoutMisfit, LayoutObstacle, WantedLayout, on_board, wanted},
};
pub use names::{DISCOVERY_NAME, MANAGED_BY_LABEL, MPS_NAME, policy_daemonset_name};
pub use node::{
    compose::Disagreement,
    conflicts::{ConflictKey, KeyConflict},
    hold::NodeHold,
    permit::RolloutPermit,
    plan::NodePlan,
    planner::{plan_node, plan_node_with_permit, plan_writes, preview_node},
    settled::SettledNode,
    stale_resources::{StaleResources, find_stale_resources},
    startup_taint::has_startup_taint,
};
pub use node_drain::{NodeDrain, evicted_after};
pub use outcome::{PolicyNodeStatus, PolicyOutcome, PolicyOverride};
pub use output::{
    agent_pod::runs_discovery,
    daemonsets::{
        AgentPodSettings, ReplacedNodes, daemonset_has_drifted, desired_discovery, desired_for_policy, desired_mps,
        is_daemonset_observed, is_same_daemonset, outdated_agents, policy_of_daemonset, repaired_daemonset,
        without_policy_owner,
    },
    evictions::evictions,
    explain::{
        EntryKind, EntrySource, EntryState, Explanation, ExplanationEntry, OverriddenValue, PolicyMatch, explain,
    },
    host_paths::HostPaths,
    mismatch::{NearestNode, gpu_mismatch, nearest_node},
    rejected_pods::{RejectedPod, policies_delete_rejected_pods},
};
pub use packed_map::PackedMap;
pub use patch_builder::PatchBuilder;
pub use pod_eviction::{EvictionCause, PodEviction};
pub use pods::{PodName, has_ended};
pub use record::resource_use::{ResourceUse, ResourceUses};
pub use reviewed_pods::ReviewedPods;
pub use rollout_stage::RolloutStage;
pub use taint::{Taint, TaintKey};
