//! Plans the `GpuNode` of one node: `spec`, and the operator's own conditions in `status`.
//!
//! | module | what it does |
//! |---|---|
//! | `change` | a write to the `GpuNode` |
//! | `configuration` | the configuration that an agent gets in `spec.config` |
//! | `drain` | evictions of pods on devices that change |
//! | `requests` | requests to agents: release the GPUs, clear recovered faults, leave the GPUs to a DRA driver |
//! | `mig_progress` | the progress of GPUs towards their MIG layouts |
//! | `progress` | the agent's progress with its configuration, and the node's rollout stage |
//! | `progress_messages` | messages about an agent that does not get there |
//! | `gpu_refusal` | nodes whose container runtime keeps the GPUs from pods |
//! | `conditions` | the operator's conditions in `status` |

pub mod change;
pub mod conditions;
pub mod configuration;
pub mod drain;
pub mod gpu_refusal;
pub mod mig_progress;
pub mod progress;
pub mod progress_messages;
pub mod requests;
