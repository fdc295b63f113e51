//! The configuration of the agent, from the operator or from a file, and which one is in force.
//!
//! | module | what it does |
//! |---|---|
//! | `operator` | takes the configuration from this node's GpuNode |
//! | `file` | takes it from `run --config FILE` |
//! | `saved` | keeps the last good one on the node |
//! | `in_force` | decides which one is in force, pure |

pub mod file;
pub mod in_force;
pub mod operator;
pub mod saved;
