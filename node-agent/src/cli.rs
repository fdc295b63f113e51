//! Command line.

use clap::{Args, CommandFactory as _, Parser, Subcommand, error::ErrorKind};
use std::{net::SocketAddr, path::PathBuf};

/// Runs gpunode on one node.
#[derive(Debug, Parser)]
#[command(name = "gpunode-agent", version, about)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What the agent does on its node.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Report the GPUs of this node in its GpuNode, and offer none of them.
    Discover(NodeArgs),
    /// Offer the GPUs of this node to its kubelet.
    Run(RunArgs),
}

/// Where the agent is and what it looks at.
#[derive(Clone, Debug, Args)]
pub struct NodeArgs {
    /// Name of this node in Kubernetes.
    #[arg(long, env = "NODE_NAME", default_value = "")]
    pub node_name: String,

    /// Name of this pod.
    #[arg(long, env = "POD_NAME", default_value = "")]
    pub pod_name: String,

    /// UID of this pod.
    #[arg(long, env = "POD_UID", default_value = "")]
    pub pod_uid: String,

    /// Where the root of the host is mounted.
    #[arg(long, default_value = "/host")]
    pub host_root: PathBuf,

    /// Root of the NVIDIA driver's files. Left out: HOST_ROOT/run/nvidia/driver, then HOST_ROOT.
    #[arg(long)]
    pub driver_root: Option<PathBuf>,

    /// Folder of files that outlive this process, the same for every agent of the node.
    #[arg(long, default_value = "/var/lib/gpunode")]
    pub state_dir: PathBuf,

    /// Address of /livez and /readyz.
    #[arg(long, default_value = "0.0.0.0:8081")]
    pub admin_address: SocketAddr,
}

/// How the device plugin runs.
#[derive(Debug, Args)]
pub struct RunArgs {
    #[command(flatten)]
    pub node: NodeArgs,

    /// Configuration file; the agent then needs no operator and no API server. Left out: the configuration comes from this
    /// node's GpuNode.
    #[arg(long)]
    pub config: Option<PathBuf>,

    /// The kubelet's folder of device plugin sockets.
    #[arg(long, default_value = "/var/lib/kubelet/device-plugins")]
    pub device_plugin_dir: PathBuf,
}

impl Cli {
    /// Exits with a message where an argument is missing that only some uses need.
    pub fn check(&self) {
        let needs_node_name = match &self.command {
            Command::Discover(node) => node.node_name.is_empty(),
            Command::Run(run) => run.config.is_none() && run.node.node_name.is_empty(),
        };
        if needs_node_name {
            let message =
                "--node-name (or NODE_NAME) is required, to find this node's GpuNode; `run --config FILE` needs none";
            Self::command().error(ErrorKind::MissingRequiredArgument, message).exit();
        }
    }
}
