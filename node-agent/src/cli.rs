//! The command line.

use crate::{
    driver::{calls::DriverCalls, hardware_probe::DriverRoots},
    kubelet::{checkpoint::PodFolders, podresources::PodResources},
    mps::{self, MpsExecArgs},
    status::inputs::AgentIdentity,
};
use clap::{Args, CommandFactory as _, Parser, Subcommand, error::ErrorKind};
use std::{net::SocketAddr, path::PathBuf};

/// Default folder of device plugin sockets, relative to the host's root.
const DEVICE_PLUGINS: &str = "var/lib/kubelet/device-plugins";

/// Runs gpunode on one node.
#[derive(Debug, Parser)]
#[command(name = "gpunode-agent", version, about)]
pub struct AgentCli {
    #[command(subcommand)]
    pub command: AgentCommand,
}

/// Modes of the agent.
#[derive(Debug, Subcommand)]
pub enum AgentCommand {
    /// Report the GPUs of this node in its GpuNode, without advertising them.
    Discover(NodeArgs),
    /// Advertise the GPUs of this node to its kubelet.
    Run(RunArgs),
    /// Print the GPUs of this node as the agent reads them, in JSON. Changes nothing.
    Inventory(DriverArgs),
    /// Keep an MPS control daemon running for each device that pods share through MPS.
    Mps(MpsArgs),
    /// Run a program with a driver root as its root; `mps` starts its daemons this way.
    #[command(hide = true)]
    MpsExec(MpsExecArgs),
}

/// Paths below which the agent looks for the driver.
#[derive(Clone, Debug, Args)]
pub struct DriverArgs {
    /// Mount point of the host's root.
    #[arg(long, default_value = "/host")]
    pub host_root: PathBuf,

    /// Root of the NVIDIA driver's files. Default: HOST_ROOT/run/nvidia/driver, then HOST_ROOT.
    #[arg(long)]
    pub driver_root: Option<PathBuf>,
}

/// Paths on the node, the same for all its agents.
#[derive(Clone, Debug, Args)]
pub struct HostArgs {
    #[command(flatten)]
    pub driver: DriverArgs,

    /// Folder for files that outlive this process, the same for every agent of the node.
    #[arg(long, default_value = "/var/lib/gpunode")]
    pub state_dir: PathBuf,

    /// Folder of the MPS control daemons; it has the same path on the host, in this container and in client containers.
    #[arg(long, default_value = "/run/gpunode/mps")]
    pub mps_dir: PathBuf,

    /// Socket of the kubelet's PodResources API, which lists the devices of each pod.
    #[arg(long, default_value = "/var/lib/kubelet/pod-resources/kubelet.sock")]
    pub pod_resources_socket: PathBuf,

    /// Address of /livez, /readyz and /metrics.
    #[arg(long, default_value = "0.0.0.0:8081")]
    pub admin_address: SocketAddr,
}

/// Identity of the node, the pod and its policy.
#[derive(Clone, Debug, Args)]
pub struct NodeArgs {
    /// Name of this Node.
    #[arg(long, env = "NODE_NAME", default_value = "")]
    pub node_name: String,

    /// Name of this pod.
    #[arg(long, env = "POD_NAME", default_value = "")]
    pub pod_name: String,

    /// UID of this pod.
    #[arg(long, env = "POD_UID", default_value = "")]
    pub pod_uid: String,

    /// Name of the policy whose DaemonSet owns this pod; empty without a policy.
    #[arg(long, env = "POLICY_NAME", default_value = "")]
    pub policy_name: String,

    #[command(flatten)]
    pub host: HostArgs,

    /// Folder of the kubelet's device plugin sockets.
    #[arg(long, default_value = "/var/lib/kubelet/device-plugins")]
    pub device_plugin_dir: PathBuf,
}

/// Arguments of `run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    #[command(flatten)]
    pub node: NodeArgs,

    /// Configuration file; the agent then needs neither operator nor API server. Default: the configuration comes from this
    /// node's GpuNode.
    #[arg(long)]
    pub config: Option<PathBuf>,
}

/// Arguments of `mps`.
#[derive(Clone, Debug, Args)]
pub struct MpsArgs {
    #[command(flatten)]
    pub host: HostArgs,

    /// Folder of the kubelet's device plugin sockets. Default: HOST_ROOT/var/lib/kubelet/device-plugins.
    #[arg(long)]
    pub device_plugin_dir: Option<PathBuf>,

    /// UID of this pod.
    #[arg(long, env = "POD_UID", default_value = "")]
    pub pod_uid: String,
}

impl DriverArgs {
    /// Returns the folders in which to look for the driver. A process clones one value, which counts its calls to the driver.
    pub fn hardware(&self) -> DriverRoots {
        DriverRoots {
            host_root: self.host_root.clone(),
            driver_root: self.driver_root.clone(),
            calls: DriverCalls::default(),
        }
    }
}

impl HostArgs {
    /// Returns the client for the kubelet's PodResources API.
    fn pod_resources(&self, device_plugin_dir: PathBuf, pod_uid: &str) -> PodResources {
        let pods = PodFolders::on_host(&self.driver.host_root, pod_uid);
        PodResources::new(self.pod_resources_socket.clone(), device_plugin_dir, pods)
    }
}

impl NodeArgs {
    /// Returns the client for this kubelet's PodResources API.
    pub fn pod_resources(&self) -> PodResources {
        self.host.pod_resources(self.device_plugin_dir.clone(), &self.pod_uid)
    }

    /// Returns the identity under which this process reports.
    pub fn identity(&self) -> AgentIdentity {
        AgentIdentity {
            pod: self.pod_name.clone(),
            pod_uid: self.pod_uid.clone(),
            policy: self.policy_name.clone(),
        }
    }
}

impl MpsArgs {
    /// Converts the arguments into settings of the MPS supervisor.
    pub fn settings(self) -> mps::Settings {
        let folder = self
            .device_plugin_dir
            .unwrap_or_else(|| self.host.driver.host_root.join(DEVICE_PLUGINS));
        mps::Settings {
            pod_resources: self.host.pod_resources(folder, &self.pod_uid),
            host_root: self.host.driver.host_root,
            driver_root: self.host.driver.driver_root,
            state_dir: self.host.state_dir,
            mps_dir: self.host.mps_dir,
            admin_address: self.host.admin_address,
        }
    }
}

impl AgentCli {
    /// Exits with an error if the command needs a node name and has none.
    pub fn check(&self) {
        let needs_node_name = match &self.command {
            AgentCommand::Discover(node) => node.node_name.is_empty(),
            AgentCommand::Run(run) => run.config.is_none() && run.node.node_name.is_empty(),
            AgentCommand::Inventory(_) | AgentCommand::Mps(_) | AgentCommand::MpsExec(_) => false,
        };
        if needs_node_name {
            let message = "--node-name (or NODE_NAME) is required to find this node's GpuNode; only `run --config FILE` works without it";
            Self::command()
                .error(ErrorKind::MissingRequiredArgument, message)
                .exit();
        }
    }
}
