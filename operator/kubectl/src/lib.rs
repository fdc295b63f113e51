//! `kubectl gpunode`: shows GPU nodes and policies, and previews policies before they are applied. The library exists for
//! `main.rs` and the tests.
//!
//! | module | what it does |
//! |---|---|
//! | `cli` | arguments and help |
//! | `status` | shows nodes, devices, policies, rollouts and problems |
//! | `plan` | shows what applying or deleting policies would change |
//! | `explain` | shows why a node has its labels, taints and configuration |
//! | `doctor` | says on which nodes pods would get no GPU, and what to do |
//! | `topo` | shows the links between a node's GPUs, and which GPUs a request would get |
//! | `mig` | places MIG layouts on a board, without a cluster |
//! | `import` | turns configurations of NVIDIA's programs into policies |
//! | `export` | shows what a node has in the form of a configuration |
//! | `validate` | checks policies as the API server and gpunode do |
//! | `dump` | writes the cluster state that other subcommands read instead of a cluster |
//! | `uninstall` | removes gpunode and restores every node |
//! | `completion` | completes arguments in a shell |
//! | `cluster` | connects to a cluster and lists its objects |
//! | `snapshot` | the cluster state that a plan reads, from a cluster or a dump |
//! | `layout_words` | the MIG layout of a configuration in words |
//! | `configuration` | describes an agent configuration in words |
//! | `output` | writes tables, JSON and YAML |

pub mod cli;
mod cluster;
pub mod completion;
mod configuration;
pub mod doctor;
pub mod dump;
pub mod explain;
pub mod export;
#[cfg(test)]
mod fuzz;
pub mod import;
mod layout_words;
pub mod mig;
mod output;
pub mod plan;
mod snapshot;
pub mod status;
pub mod topo;
pub mod uninstall;
pub mod validate;
