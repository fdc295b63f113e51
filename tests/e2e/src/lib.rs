//! Support for tests that run gpunode on the local cluster: the cluster itself, objects, waiting, the audit log.
//!
//! The cluster is started beforehand (`tests/run.sh`) and shared by all tests; [`Lab::enter`] gives one test the whole
//! of it, clean.

mod audit;
mod lab;
mod objects;
mod operator;
mod wait;

pub use audit::{AuditEvent, AuditLog};
pub use lab::{A100, CPU, GPU_NODES, Lab, NAMESPACE, NODES, T4, V100};
pub use objects::{condition, names, node_snapshot, taints};
pub use wait::eventually;
