//! Command line arguments.

use clap::Parser;
use std::net::SocketAddr;

/// Labels, taints and configures GPU nodes as `GpuNodePolicy` objects say.
#[derive(Debug, Parser)]
#[command(version)]
pub struct OperatorArgs {
    /// Image of the agent, unless a policy names one.
    #[arg(long, env = "AGENT_IMAGE")]
    pub agent_image: String,

    /// Registries and repositories, separated by commas, whose images policies may use in `spec.image`. If empty: the
    /// repository of the agent's image.
    #[arg(long, env = "AGENT_IMAGES", value_delimiter = ',')]
    pub agent_images: Vec<String>,

    /// Namespace of the agents and of the operator's Lease.
    #[arg(long, env = "POD_NAMESPACE", default_value = "gpunode-system")]
    pub namespace: String,

    /// Name of this pod, the holder identity in the Lease.
    #[arg(long, env = "POD_NAME")]
    pub pod_name: String,

    /// Adds GPU fact labels to nodes, with the keys of GPU feature discovery. False removes those that gpunode wrote.
    #[arg(long, env = "GPU_LABELS", default_value_t = true, action = clap::ArgAction::Set)]
    pub gpu_labels: bool,

    /// Address of /livez, /readyz and /metrics.
    #[arg(long, default_value = "0.0.0.0:8080")]
    pub admin_address: SocketAddr,
}
