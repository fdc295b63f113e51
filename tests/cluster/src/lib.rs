//! A real Kubernetes cluster on one Linux machine, for tests and demonstrations.
//!
//! etcd, API server, controller manager and scheduler run in one sandbox; every node has its own with containerd,
//! kubelet, kube-proxy and simulated GPUs. A sandbox is a set of namespaces ([`Node::command`] enters it), so nothing
//! is written outside the folder of the cluster, and nothing stays behind but that folder.
//!
//! Functions block and wait for what they promise.

#![forbid(unsafe_code)]

mod audit_log;
mod cgroup;
mod cluster;
mod cluster_file;
mod container;
mod control_plane;
mod files;
mod hardware;
mod image;
mod kubeconfig;
mod kubectl;
mod layout;
mod limits;
mod network;
mod node;
mod node_start;
mod pki;
mod power;
mod process;
mod progress;
mod remove;
mod requirements;
mod run;
mod sandbox;
mod start;
mod state;
mod subnet;
mod wait;

pub use audit_log::end_of_whole_lines;
pub use cgroup::CgroupVersion;
pub use cluster::{Cluster, DEFAULT_NAME, Options, missing};
pub use cluster_file::{ClusterFile, NodeSpec};
pub use hardware::kernel_files;
pub use image::{BUSYBOX, CUDA};
pub use layout::{ROOT_VARIABLE, default_root};
pub use node::Node;
pub use process::Process;
pub use progress::Progress;
pub use rustix::process::Signal;
