//! Runs the real agent process against the simulated NVML and a fake kubelet, for speed and for faults that a real kubelet
//! cannot be asked for.

mod agent;
mod api;
mod api_server;
mod built;
mod container_runtime;
mod foreign;
mod kubelet;
mod lab;
mod mps;
mod mps_programs;
mod namespace;
mod node;
mod other_plugin;
mod stopwatch;
mod wait;

pub use agent::{Agent, Image};
pub use api::Device;
pub use api_server::ApiServer;
pub use built::{Built, built};
pub use container_runtime::{CriAnswer, FakeRuntime};
pub use foreign::Foreign;
pub use kubelet::{Admitted, Endpoint, FakeKubelet, ListMessage, PodResourcesAnswer, Rejection};
pub use lab::{Lab, node_of};
pub use mps::MpsDaemons;
pub use mps_programs::{MpsClient, MpsNode};
pub use namespace::Namespace;
pub use node::Node;
pub use other_plugin::OtherPlugin;
pub use stopwatch::Stopwatch;
pub use wait::until;
