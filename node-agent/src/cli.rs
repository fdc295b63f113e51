//! The command line.

use crate::{
    driver::{calls::DriverCalls, hardware_probe::DriverRoots, library::resolve_below},
    kubelet::{checkpoint::PodFolders, podresources::PodResources},
    mps::{self, MpsExecArgs},
    status::inputs::AgentIdentity,
};
use clap::{Args, CommandFactory as _, Parser, Subcommand, error::ErrorKind};
use gpunode_config::{CompanionRootList, DriverRootList, HostPath};
use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

/// Default of `--state-dir`.
const STATE: &str = "/var/lib/gpunode";

/// Default folder of device plugin sockets on the host; a constant of the kubelet, whatever its `--root-dir`.
const DEVICE_PLUGINS: &str = "/var/lib/kubelet/device-plugins";

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
    /// Say if pods on this node would get GPUs, and what to do. Needs no cluster and changes nothing.
    ///
    /// Exit code 1 if pods would get no GPU.
    Inspect(InspectArgs),
    /// Keep an MPS control daemon running for each device that pods share through MPS.
    Mps(MpsArgs),
    /// Run a program with a driver root as its root; `mps` starts its daemons this way.
    #[command(hide = true)]
    MpsExec(MpsExecArgs),
}

/// The host and the folders of its driver.
#[derive(Clone, Debug, Args)]
pub struct DriverArgs {
    /// Mount point of the host's root.
    #[arg(long, default_value = "/host")]
    pub host_root: PathBuf,

    /// Folders of the host below which the NVIDIA driver is searched, separated by commas, in this order; at most 16.
    #[arg(long, env = "DRIVER_ROOTS", default_value_t)]
    pub driver_roots: DriverRootList,

    /// Folder of the host that has `dev` with the device nodes of the GPUs. Nodes that it lacks are searched below the driver's root
    /// and below /.
    #[arg(long, env = "DEV_ROOT", default_value_t = HostPath::root())]
    pub dev_root: HostPath,
}

/// Paths on the node, the same for all its agents.
#[derive(Clone, Debug, Args)]
pub struct HostArgs {
    #[command(flatten)]
    pub driver: DriverArgs,

    /// The kubelet's --root-dir on the host, with its folders `pod-resources` and `pods`.
    #[arg(long, env = "KUBELET_ROOT", default_value_t = HostPath::kubelet_root())]
    pub kubelet_root: HostPath,

    /// Folder for files that outlive this process, the same for every agent of the node.
    #[arg(long, default_value = STATE)]
    pub state_dir: PathBuf,

    /// Folder of the MPS control daemons; it has the same path on the host, in this container and in client containers.
    #[arg(long, default_value = "/run/gpunode/mps")]
    pub mps_dir: PathBuf,

    /// Socket of the kubelet's PodResources API, which lists the devices of each pod. Default:
    /// KUBELET_ROOT/pod-resources/kubelet.sock.
    #[arg(long)]
    pub pod_resources_socket: Option<PathBuf>,

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
    #[arg(long, default_value = DEVICE_PLUGINS)]
    pub device_plugin_dir: PathBuf,

    /// Folders of the host whose files companions may hand out, separated by commas, such as /dev/infiniband, or starts of names, such
    /// as /dev/xclmgmt*. Default: none.
    #[arg(long, env = "COMPANION_ROOTS", default_value_t)]
    pub companion_roots: CompanionRootList,

    /// Folder of CDI files that container runtimes read, the same on the host and in this container.
    #[arg(long, default_value = "/var/run/cdi")]
    pub cdi_dir: PathBuf,
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

/// Arguments of `inspect`.
#[derive(Clone, Debug, Args)]
pub struct InspectArgs {
    #[command(flatten)]
    pub driver: DriverArgs,

    /// The kubelet's --root-dir on the host.
    #[arg(long, env = "KUBELET_ROOT", default_value_t = HostPath::kubelet_root())]
    pub kubelet_root: HostPath,
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
    pub fn roots(&self) -> DriverRoots {
        DriverRoots {
            host_root: self.host_root.clone(),
            driver_roots: self.driver_roots.roots(),
            dev_root: self.dev_root.as_path().to_owned(),
            calls: DriverCalls::default(),
        }
    }

    /// Returns the path in this container of a folder of the host, which may be a link. Blocks.
    fn mounted(&self, folder: &Path) -> PathBuf {
        let unresolved = || self.host_root.join(folder.strip_prefix("/").unwrap_or(folder));
        resolve_below(&self.host_root, folder).unwrap_or_else(unresolved)
    }
}

impl HostArgs {
    /// Returns the client for the kubelet's PodResources API. Blocks.
    fn pod_resources(&self, device_plugin_dir: PathBuf, pod_uid: &str) -> PodResources {
        let root = self.kubelet_root.as_path();
        let default_socket = || root.join("pod-resources/kubelet.sock");
        let socket = self.pod_resources_socket.clone().unwrap_or_else(default_socket);
        let pods = PodFolders {
            folder: self.driver.mounted(root).join("pods"),
            own: pod_uid.to_owned(),
        };
        PodResources::new(socket, device_plugin_dir, pods)
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
            .unwrap_or_else(|| self.host.driver.mounted(Path::new(DEVICE_PLUGINS)));
        mps::Settings {
            pod_resources: self.host.pod_resources(folder, &self.pod_uid),
            pod_uid: self.pod_uid,
            driver_roots: self.host.driver.roots(),
            state_dir: self.host.state_dir,
            mps_dir: self.host.mps_dir,
            admin_address: self.host.admin_address,
        }
    }
}

impl InspectArgs {
    /// Returns the kubelet's root and its folder of device plugin sockets, as this container sees them. Blocks.
    pub fn kubelet_folders(&self) -> (PathBuf, PathBuf) {
        let mounted = |folder: &Path| self.driver.mounted(folder);
        (mounted(self.kubelet_root.as_path()), mounted(Path::new(DEVICE_PLUGINS)))
    }

    /// Returns the folder of the agent's state on the host, as this container sees it. Blocks.
    pub fn state_dir(&self) -> PathBuf {
        self.driver.mounted(Path::new(STATE))
    }
}

impl AgentCli {
    /// Exits with an error if the command needs a node name and has none.
    pub fn check(&self) {
        let needs_node_name = match &self.command {
            AgentCommand::Discover(node) => node.node_name.is_empty(),
            AgentCommand::Run(run) => run.config.is_none() && run.node.node_name.is_empty(),
            AgentCommand::Inventory(_) | AgentCommand::Inspect(_) | AgentCommand::Mps(_) | AgentCommand::MpsExec(_) => {
                false
            }
        };
        if needs_node_name {
            let message = "--node-name (or NODE_NAME) is required to find this node's GpuNode; only `run --config FILE` works without it";
            Self::command()
                .error(ErrorKind::MissingRequiredArgument, message)
                .exit();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn parse(arguments: &[&str]) -> Result<AgentCommand, String> {
        let arguments = ["gpunode-agent"].into_iter().chain(arguments.iter().copied());
        AgentCli::try_parse_from(arguments)
            .map(|cli| cli.command)
            .map_err(|error| error.to_string())
    }

    fn inventory(arguments: &[&str]) -> DriverRoots {
        match parse(&[&["inventory"][..], arguments].concat()) {
            Ok(AgentCommand::Inventory(args)) => args.roots(),
            other => panic!("{other:?}"),
        }
    }

    fn mps(arguments: &[&str]) -> mps::Settings {
        match parse(&[&["mps"][..], arguments].concat()) {
            Ok(AgentCommand::Mps(args)) => args.settings(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn driver_and_device_nodes_are_where_the_flags_say() {
        let roots = inventory(&["--driver-roots", "/opt/nvidia/,/", "--dev-root=/opt/nvidia"]);
        assert_eq!(roots.driver_roots, [Path::new("/opt/nvidia"), Path::new("/")]);
        assert_eq!(roots.dev_root, Path::new("/opt/nvidia"));
        let defaults = inventory(&[]);
        assert_eq!(defaults.driver_roots, DriverRootList::default().roots());
        assert_eq!((defaults.host_root, defaults.dev_root), ("/host".into(), "/".into()));
    }

    #[test]
    fn commands_in_the_pod_of_an_agent_have_its_folders() {
        let command = AgentCli::command();
        for name in ["run", "discover", "mps", "inspect"] {
            let arguments = command.find_subcommand(name).unwrap().get_arguments();
            let variables: Vec<_> = arguments.filter_map(clap::Arg::get_env).collect();
            for variable in ["DRIVER_ROOTS", "DEV_ROOT", "KUBELET_ROOT"] {
                assert!(
                    variables.contains(&std::ffi::OsStr::new(variable)),
                    "{name}: {variables:?}"
                );
            }
        }
    }

    #[test]
    fn a_folder_that_is_no_path_of_the_host_is_refused_with_its_flag() {
        for (flag, reason) in [
            (
                "--driver-roots=/a,b",
                "--driver-roots <DRIVER_ROOTS>': \"b\" is not an absolute path",
            ),
            ("--dev-root=/../a", "--dev-root <DEV_ROOT>': \"/../a\" contains \"..\""),
            (
                "--kubelet-root=/a,/b",
                "--kubelet-root <KUBELET_ROOT>': \"/a,/b\" contains ','",
            ),
        ] {
            let error = parse(&["mps", flag]).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn pod_resources_are_in_the_kubelets_root_and_device_plugins_never() {
        let host = tempfile::tempdir().unwrap();
        let root = format!("--host-root={}", host.path().display());
        let kubelet = mps(&[&root, "--kubelet-root=/data/kubelet"]).pod_resources;
        assert_eq!(kubelet.socket, Path::new("/data/kubelet/pod-resources/kubelet.sock"));
        assert_eq!(
            kubelet.device_plugin_dir,
            host.path().join("var/lib/kubelet/device-plugins")
        );
        // A kubelet whose folder is a link on the host.
        std::fs::create_dir_all(host.path().join("data/kubelet/device-plugins")).unwrap();
        std::fs::create_dir_all(host.path().join("var/lib")).unwrap();
        symlink("/data/kubelet", host.path().join("var/lib/kubelet")).unwrap();
        let kubelet = mps(&[&root]).pod_resources;
        assert_eq!(kubelet.socket, Path::new("/var/lib/kubelet/pod-resources/kubelet.sock"));
        assert_eq!(
            kubelet.device_plugin_dir,
            host.path().join("data/kubelet/device-plugins")
        );
    }
}
