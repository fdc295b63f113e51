//! The agent's configuration: its two sources, its saved copy, and the choice between them.
//!
//! | module | what it does |
//! |---|---|
//! | `operator` | reads the configuration from this node's GpuNode |
//! | `file` | reads it from `run --config FILE` |
//! | `saved` | keeps the last good configuration on the node |
//! | `in_force` | chooses the configuration in force, pure |

pub mod file;
pub mod in_force;
pub mod operator;
pub mod saved;
