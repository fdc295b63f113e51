//! The agent's part of `GpuNode.status`.
//!
//! | module | what it does |
//! |---|---|
//! | `inputs` | inputs of a status |
//! | `report` | composes the status, pure |
//! | `conditions` | conditions and the text of `/readyz` |
//! | `resources` | resources with capacity, allocatable and devices |
//! | `hardware` | GPUs and MIG devices |
//! | `in_use` | summary of what is held, for the printer columns |
//! | `health` | times at which devices became healthy |
//! | `mig_phases` | times at which GPUs reached their phase on the way to a MIG layout |
//! | `missing` | keeps GPUs that vanished for 15 minutes |
//! | `step` | the last step of a rollout that the agent finished |
//! | `number` | numbers in the API's type |
//! | `patch` | the change of a status as a merge patch, pure |
//! | `start_mark` | the file that an agent leaves which dies soon after its start |
//! | `writer` | writes the status to the API server when it changes |

pub mod conditions;
pub mod hardware;
mod health;
mod in_use;
pub mod inputs;
mod mig_phases;
mod missing;
mod number;
mod patch;
pub mod report;
mod resources;
pub mod start_mark;
mod step;
pub mod writer;
