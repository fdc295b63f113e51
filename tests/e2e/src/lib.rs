//! Support for tests that run gpunode on the local cluster: the cluster itself, objects, waiting, the audit log.
//!
//! The cluster is started beforehand (`tests/run.sh`) and shared by all tests; [`Lab::enter`] gives one test the whole
//! of it, clean.

mod audit;
mod broken_gpu;
mod container_devices;
mod difference;
mod documented_commands;
mod fleet;
mod gpu_operator;
mod hand_over;
mod held;
mod idle_daemonset;
mod installation;
mod kubelet_log;
mod lab;
mod mig;
mod mps;
mod node_watch;
mod objects;
mod operator;
mod page;
mod plugin;
mod policy_change;
mod reader;
mod wait;

pub use audit::{AuditEvent, AuditLog};
pub use broken_gpu::BrokenGpu;
pub use container_devices::Opened;
pub use documented_commands::{DocumentedCommand, documented_commands};
pub use gpu_operator::GpuOperator;
pub use hand_over::HandOvers;
pub use held::{Held, HeldRecorder, Recording, device_of, held};
pub use idle_daemonset::{idle_daemonset, nvidia_plugin_daemonset};
pub use kubelet_log::KubeletLog;
pub use lab::{A100, CPU, GPU_NODES, Lab, MIXED, NAMESPACE, NODES, T4, V100};
pub use mig::{MIG_A100, MIG_H100, MigDevices, of_profile};
pub use node_watch::NodeWatch;
pub use objects::{condition, is_event_since, is_fact, manifest, names, node_snapshot, owned, taints};
pub use operator::OperatorVariable;
pub use page::{page_commands, page_file, with_match_expressions};
pub use policy_change::{Compared, PolicyChange};
pub use wait::eventually;
