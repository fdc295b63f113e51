//! What gpunode wants of a cluster: from policies and facts to the labels, taints, owned record and agent configuration
//! of one node, to the DaemonSets, and to the status of a policy.
//!
//! Everything here is a pure function: no IO, the clock is an argument, and planning one's own result again gives the same.
//!
//! | module | answers |
//! |---|---|
//! | `facts` | what is known of a node |
//! | `policies` | the policies, checked and ordered by priority |
//! | `select`, `matching` | which policies match |
//! | `compose` | what they want together, and where they disagree |
//! | `features` | the labels that tell the facts about GPUs |
//! | `owned` | the record of what gpunode wrote on a node |
//! | `claim` | what to set, remove, leave alone or report, key by key |
//! | `labels`, `taints` | the same for the two kinds of keys, and their JSON patch |
//! | `startup`, `unhealthy` | the taints that come and go with what the agent reports |
//! | `agent_config` | the configuration in `GpuNode.spec` |
//! | `progress` | whether the agent of a node is there yet, and where it is in a rollout |
//! | `inventory` | the GPUs that are reported, as the agent's own logic takes them |
//! | `retired` | when the keys of resources that nobody serves leave the node's status |
//! | `rollout` | which nodes of a policy may change next |
//! | `conditions` | what the operator says in `GpuNode.status` |
//! | `hold` | which nodes are left as they are |
//! | `wishes` | what the policies that match want together, and what is to be written |
//! | `node`, `node_plan`, `node_patch` | all of it for one node |
//! | `explain`, `mismatch` | why a node looks as it does, and why a policy does not match |
//! | `pods` | which pods are to be evicted from a broken GPU, and which rejected ones deleted |
//! | `preview` | what a policy in mode Preview would change |
//! | `tally`, `status` | the state of one policy over all nodes |
//! | `daemonset`, `agent_pod` | the DaemonSets |

mod agent_config;
mod agent_pod;
mod asked;
mod claim;
mod compose;
mod conditions;
mod conflict;
mod daemonset;
mod explain;
mod facts;
mod features;
mod hold;
mod inventory;
mod labels;
mod matching;
mod mismatch;
mod node;
mod node_patch;
mod node_plan;
mod outcome;
mod owned;
mod patch;
mod pods;
mod policies;
mod preview;
mod progress;
mod retired;
mod rollout;
mod select;
mod startup;
mod status;
mod taints;
mod tally;
mod texts;
mod unhealthy;
mod wishes;

pub use agent_config::GpuNodeChange;
pub use asked::PAUSE_LABEL;
pub use conditions::ConditionsChange;
pub use conflict::{Conflict, ConflictKey};
pub use daemonset::{
    AgentPods, COMPONENT_LABEL, DISCOVERY_NAME, MANAGED_BY_LABEL, MPS_NAME, POLICY_NAME_LABEL, agents_behind,
    daemonset_drifted, desired_discovery, desired_for_policy, desired_mps, is_alike, is_observed,
    policy_daemonset_name, policy_of_daemonset, repaired_daemonset,
};
pub use explain::{Entry, Explanation, Kind, Overridden, PolicyVerdict, Source, State, explain};
pub use facts::{NodeFacts, Taint, TaintKey};
pub use features::gpu_labels;
pub use hold::Hold;
pub use inventory::inventory;
pub use matching::gpus_missing;
pub use mismatch::{Mismatch, NearestNode, mismatches, nearest};
pub use node::{plan_node, plan_node_at};
pub use node_plan::{NodePlan, Turn};
pub use outcome::{Outcome, Standing};
pub use pods::{Eviction, PodName, RejectedPod, evictions, keep_holders_of_broken, wants_rejected_pods};
pub use policies::{Policy, PolicySet};
pub use retired::{Retirement, Seen, Served, Use, retire};
pub use rollout::{Rollout, Stage};
pub use status::{Agents, policy_status};
pub use tally::Tally;
pub use texts::Texts;
