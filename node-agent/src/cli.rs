//! Command line.

use crate::{
    driver::hardware::DriverRoots,
    kubelet::{checkpoint::PodFolders, podresources::PodResources},
    mps::{self, MpsExecArgs},
    status::report::AgentIdentity,
};
use clap::{Args, CommandFactory as _, Parser, Subcommand, error::ErrorKind};
use std::{net::SocketAddr, path::PathBuf};

/// The kubelet's folder of device plugins on the host, where none is named.
const DEVICE_PLUGINS: &str = "var/lib/kubelet/device-plugins";

/// Runs gpunode on one node.
#[derive(Debug, Parser)]
#[command(name = "gpunode-agent", version, about)]
pub struct AgentCli {
    /// What to do.
    #[command(subcommand)]
    pub command: AgentCommand,
}

/// What the agent does on its node.
#[derive(Debug, Subcommand)]
pub enum AgentCommand {
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

impl HostArgs {
    /// Where the hardware is looked for.
    pub fn hardware(&self) -> DriverRoots {
        DriverRoots {
            host_root: self.host_root.clone(),
            driver_root: self.driver_root.clone(),
        }
    }

    /// Where the kubelet says to the pod with this UID who holds what.
    fn pod_resources(&self, device_plugin_dir: PathBuf, pod_uid: &str) -> PodResources {
        let pods = PodFolders::on_host(&self.host_root, pod_uid);
        PodResources::new(self.pod_resources_socket.clone(), device_plugin_dir, pods)
    }
}

impl NodeArgs {
    /// Where the kubelet of this node says who holds what.
    pub fn pod_resources(&self) -> PodResources {
        self.host.pod_resources(self.device_plugin_dir.clone(), &self.pod_uid)
    }

    /// Which process reports.
    pub fn identity(&self) -> AgentIdentity {
        AgentIdentity {
            pod: self.pod_name.clone(),
            pod_uid: self.pod_uid.clone(),
            policy: self.policy_name.clone(),
        }
    }
}

impl MpsArgs {
    /// What the supervisor of the MPS control daemons works with.
    pub fn settings(self) -> mps::Settings {
        let folder = self
            .device_plugin_dir
            .unwrap_or_else(|| self.host.host_root.join(DEVICE_PLUGINS));
        mps::Settings {
            pod_resources: self.host.pod_resources(folder, &self.pod_uid),
            host_root: self.host.host_root,
            driver_root: self.host.driver_root,
            state_dir: self.host.state_dir,
            mps_dir: self.host.mps_dir,
            admin_address: self.host.admin_address,
        }
    }
}

impl AgentCli {
    /// Exits with a message where an argument is missing that only some uses need.
    pub fn check(&self) {
        let needs_node_name = match &self.command {
            AgentCommand::Discover(node) => node.node_name.is_empty(),
            AgentCommand::Run(run) => run.config.is_none() && run.node.node_name.is_empty(),
            AgentCommand::Mps(_) | AgentCommand::MpsExec(_) => false,
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
