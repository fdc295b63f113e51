//! Command line arguments.

use clap::Parser;
use std::net::SocketAddr;

/// The cluster-side controller of gpunode: labels, taints and configures GPU nodes as `GpuNodePolicy` objects say.
#[derive(Debug, Parser)]
#[command(version)]
pub struct Args {
    /// Image of the agent, where a policy names none.
    #[arg(long, env = "AGENT_IMAGE")]
    pub agent_image: String,

    /// Namespace of the agents and of the operator's Lease.
    #[arg(long, env = "POD_NAMESPACE", default_value = "gpunode-system")]
    pub namespace: String,

    /// Name of this pod, by which it holds the Lease.
    #[arg(long, env = "POD_NAME")]
    pub pod_name: String,

    /// Whether nodes get labels with the facts about their GPUs, as GPU feature discovery has them. With false, the ones that
    /// gpunode wrote are removed.
    #[arg(long, env = "GPU_LABELS", default_value_t = true, action = clap::ArgAction::Set)]
    pub gpu_labels: bool,

    /// Address of /livez, /readyz and /metrics.
    #[arg(long, default_value = "0.0.0.0:8080")]
    pub admin_address: SocketAddr,
}
