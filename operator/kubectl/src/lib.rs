//! `kubectl gpunode`: what GPU nodes and policies are doing, and what a policy would do before it is applied.
//!
//! One module per subcommand. The library exists for `main.rs` and the tests.

pub mod cli;
mod cluster;
pub mod completion;
mod configuration;
pub mod dump;
pub mod explain;
mod output;
pub mod plan;
mod snapshot;
pub mod status;
pub mod topo;
pub mod uninstall;
pub mod validate;
