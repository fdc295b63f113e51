//! Builds everything beside the plan of a node: DaemonSets, evictions, explanations.
//!
//! | module | what it does |
//! |---|---|
//! | `daemonsets` | the DaemonSets of agents and MPS daemons |
//! | `agent_pod` | the pod template of a DaemonSet |
//! | `host_paths` | folders of the nodes, the same for all agents |
//! | `explain` | the policy and the field that each label, taint and configuration comes from |
//! | `mismatch` | the conditions of a policy that a node does not meet |
//! | `evictions` | pods that hold an unhealthy device |
//! | `rejected_pods` | pods that a node rejected |

pub mod agent_pod;
pub mod daemonsets;
pub mod evictions;
pub mod explain;
pub mod host_paths;
pub mod mismatch;
pub mod rejected_pods;
