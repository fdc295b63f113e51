//! Writes to the API server. Each carries a resourceVersion, so that a late one changes nothing; results go one way, as messages
//! to the index.
//!
//! | module | what it does |
//! |---|---|
//! | `worker` | task: carries out planned writes, a few at a time, urgent ones first |
//! | `node` | a Node and its `GpuNode`, in the order that agents need |
//! | `gpu_node` | configuration and conditions of a `GpuNode` |
//! | `daemonset` | DaemonSets |
//! | `policy_status` | status of a policy |
//! | `cluster_writer` | client, namespace and parameters of the writes |
//! | `rejected_patch` | tells a lost race from a refused JSON patch |
//! | `results` | counts results and hands them to the index |
//! | `error` | errors of writes, and what they mean for the next try |

mod cluster_writer;
mod daemonset;
mod error;
mod gpu_node;
mod node;
mod policy_status;
mod rejected_patch;
mod results;
mod worker;

pub use cluster_writer::ClusterWriter;
pub use results::WriteResults;
pub use worker::{MAX_PLANNED_URGENT_WRITES, WriteCounts, WriteRequest, WriteWorker, class_with_room};

#[cfg(test)]
mod tests;
