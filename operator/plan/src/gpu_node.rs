//! Plans the `GpuNode` of one node: `spec`, and the operator's own conditions in `status`.
//!
//! | module | what it does |
//! |---|---|
//! | `configuration` | the configuration that an agent gets in `spec.config` |
//! | `requests` | requests of people: release the GPUs, clear recovered faults |
//! | `progress` | whether the agent has the configuration in force, and the stage of the node's rollout |
//! | `conditions` | the operator's conditions in `status` |

pub mod conditions;
pub mod configuration;
pub mod progress;
pub mod requests;
