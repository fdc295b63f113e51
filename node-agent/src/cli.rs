//! Command line.

use clap::{Args, CommandFactory as _, Parser, Subcommand, error::ErrorKind};
use std::{
    ffi::OsString,
    net::SocketAddr,
    path::{Path, PathBuf},
};

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
    /// Keep an MPS control daemon running for each device that is shared by MPS.
    Mps(MpsArgs),
    /// Become another program that sees a driver root as its root; `mps` starts the daemons this way.
    #[command(hide = true)]
    MpsExec(MpsExecArgs),
}

/// Where things are on the node, the same for all agents of the node.
#[derive(Clone, Debug, Args)]
pub struct HostArgs {
    /// Where the root of the host is mounted.
    #[arg(long, default_value = "/host")]
    pub host_root: PathBuf,

    /// Root of the NVIDIA driver's files. Left out: HOST_ROOT/run/nvidia/driver, then HOST_ROOT.
    #[arg(long)]
    pub driver_root: Option<PathBuf>,

    /// Folder of files that outlive this process, the same for every agent of the node.
    #[arg(long, default_value = "/var/lib/gpunode")]
    pub state_dir: PathBuf,

    /// Folder of the MPS control daemons, under the same path on the host, here and in containers.
    #[arg(long, default_value = "/run/gpunode/mps")]
    pub mps_dir: PathBuf,

    /// Socket on which the kubelet says which pod holds which device.
    #[arg(long, default_value = "/var/lib/kubelet/pod-resources/kubelet.sock")]
    pub pod_resources_socket: PathBuf,

    /// Address of /livez, /readyz and /metrics.
    #[arg(long, default_value = "0.0.0.0:8081")]
    pub admin_address: SocketAddr,
}

/// Which node this is, and what the agent looks at.
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

    /// Name of the policy whose DaemonSet this pod belongs to; empty where there is none.
    #[arg(long, env = "POLICY_NAME", default_value = "")]
    pub policy_name: String,

    #[command(flatten)]
    pub host: HostArgs,

    /// The kubelet's folder of device plugin sockets.
    #[arg(long, default_value = "/var/lib/kubelet/device-plugins")]
    pub device_plugin_dir: PathBuf,
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
}

/// How the MPS control daemons run.
#[derive(Clone, Debug, Args)]
pub struct MpsArgs {
    #[command(flatten)]
    pub host: HostArgs,

    /// The kubelet's folder of device plugin sockets. Left out: HOST_ROOT/var/lib/kubelet/device-plugins.
    #[arg(long)]
    pub device_plugin_dir: Option<PathBuf>,

    /// UID of this pod.
    #[arg(long, env = "POD_UID", default_value = "")]
    pub pod_uid: String,
}

/// Which program is started, and what it sees.
#[derive(Debug, Args)]
pub struct MpsExecArgs {
    /// What the program sees as its root.
    #[arg(long)]
    pub root: PathBuf,

    /// Folder that it sees under the same path.
    #[arg(long)]
    pub folder: PathBuf,

    /// Folder that it sees as /dev/shm.
    #[arg(long)]
    pub shm: PathBuf,

    /// The program below ROOT, and its arguments.
    #[arg(last = true, required = true)]
    pub program: Vec<PathBuf>,
}

impl MpsExecArgs {
    /// The arguments of this agent that say so, before `--` and the program.
    pub fn arguments(root: &Path, folder: &Path, shm: &Path) -> [OsString; 7] {
        let [root, folder, shm] = [root, folder, shm].map(|path| path.as_os_str().to_owned());
        [
            "mps-exec".into(),
            "--root".into(),
            root,
            "--folder".into(),
            folder,
            "--shm".into(),
            shm,
        ]
    }
}

impl Cli {
    /// Exits with a message where an argument is missing that only some uses need.
    pub fn check(&self) {
        let needs_node_name = match &self.command {
            Command::Discover(node) => node.node_name.is_empty(),
            Command::Run(run) => run.config.is_none() && run.node.node_name.is_empty(),
            Command::Mps(_) | Command::MpsExec(_) => false,
        };
        if needs_node_name {
            let message =
                "--node-name (or NODE_NAME) is required, to find this node's GpuNode; `run --config FILE` needs none";
            Self::command()
                .error(ErrorKind::MissingRequiredArgument, message)
                .exit();
        }
    }
}
