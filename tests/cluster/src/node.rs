//! A node of a running cluster, for tests.

use std::{
    ffi::OsStr,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use gpunode_scenario::KernelFiles;
use rustix::process::Signal;

use crate::{
    cluster_file::NodeSpec,
    hardware,
    layout::Layout,
    node_start,
    process::Process,
    run,
    sandbox::{BIN, Sandbox},
    subnet::Subnet,
};

/// A node.
#[derive(Debug, Clone)]
pub struct Node {
    layout: Layout,
    spec: NodeSpec,
    subnet: Subnet,
    index: u8,
    sandbox: Sandbox,
}

impl Node {
    pub(crate) fn new(layout: &Layout, spec: &NodeSpec, subnet: Subnet, index: u8) -> Self {
        Node {
            sandbox: Sandbox::new(layout.folder(), &layout.logs(), format!("nodes/{}", spec.name)),
            layout: layout.clone(),
            spec: spec.clone(),
            subnet,
            index,
        }
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(crate) fn sandbox(&self) -> &Sandbox {
        &self.sandbox
    }

    /// Folder that the node sees as `/run/nvidia/driver`.
    pub(crate) fn driver(&self) -> PathBuf {
        self.layout.node(&self.spec.name).join("driver")
    }

    /// Folder that the node sees as `/proc/driver`.
    pub(crate) fn proc_driver(&self) -> PathBuf {
        self.layout.node(&self.spec.name).join("proc-driver")
    }

    /// The files in which it shows its GPUs and MIG instances, as seen from outside: without its own `/dev`, which is made with its
    /// sandbox.
    pub(crate) fn kernel_files(&self) -> KernelFiles {
        hardware::kernel_files(self.proc_driver(), vec![self.driver().join("dev")])
    }

    /// Folder that the node sees as `/sys/bus`.
    pub(crate) fn sys_bus(&self) -> PathBuf {
        self.layout.node(&self.spec.name).join("sys-bus")
    }

    pub(crate) fn subnet(&self) -> Subnet {
        self.subnet
    }

    pub(crate) fn index(&self) -> u8 {
        self.index
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// Entry of the node in the cluster file.
    pub fn spec(&self) -> &NodeSpec {
        &self.spec
    }

    /// Its address; the machine and all pods reach it.
    pub fn address(&self) -> Ipv4Addr {
        self.subnet.node(self.index)
    }

    /// The folder of the simulated NVML library, with the scenario and state files beside it: the outside, writable
    /// view of what the node sees read-only under `/run/nvidia/driver`.
    pub fn driver_dir(&self) -> Result<PathBuf> {
        if self.spec.gpus.is_none() {
            bail!("node {} has no GPUs and so no driver", self.spec.name);
        }
        Ok(hardware::library_folder(&self.driver()))
    }

    /// The outside view of a path of the node's file system, unless it is on a mount inside.
    pub fn path(&self, inside: &str) -> PathBuf {
        self.sandbox.root().join(inside.trim_start_matches('/'))
    }

    /// The kubelet's own credential: user `system:node:NAME`, group `system:nodes`.
    pub fn kubelet_kubeconfig(&self) -> PathBuf {
        self.path("/etc/kubernetes/kubelet.kubeconfig")
    }

    /// Log of the kubelet.
    pub fn kubelet_log(&self) -> PathBuf {
        self.sandbox.log("kubelet")
    }

    /// Log of containerd.
    pub fn containerd_log(&self) -> PathBuf {
        self.sandbox.log("containerd")
    }

    /// A command that runs in the node: its file system, processes and network.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Result<Command> {
        self.sandbox.command(program)
    }

    /// Asks the kubelet to end, and waits until it has. Containers go on.
    pub fn stop_kubelet(&self) -> Result<()> {
        let Some(kubelet) = self.sandbox.process("kubelet")? else {
            return Ok(());
        };
        kubelet.signal(Signal::TERM)?;
        kubelet
            .wait(std::time::Duration::from_mins(1))
            .with_context(|| format!("stop the kubelet of node {}", self.spec.name))
    }

    /// Starts the kubelet if it does not run.
    pub fn start_kubelet(&self) -> Result<()> {
        if self.sandbox.process("kubelet")?.is_some() {
            return Ok(());
        }
        node_start::start_kubelet(self)
    }

    /// This node with a kubelet that, when it is started and the cluster does not know the node, registers it with other taints
    /// than the cluster file says, `key=value:Effect`.
    #[must_use]
    pub fn registering_with(mut self, taints: &[&str]) -> Self {
        self.spec.register_with_taints = taints.iter().map(|taint| (*taint).to_owned()).collect();
        self
    }

    /// This node with a kubelet that, when it is started, reports what is new so often.
    #[must_use]
    pub fn reporting_every(mut self, frequency: std::time::Duration) -> Self {
        self.spec.status_update_frequency = Some(frequency);
        self
    }

    /// Stops the kubelet and starts it again.
    pub fn restart_kubelet(&self) -> Result<()> {
        self.stop_kubelet()?;
        self.start_kubelet()
    }

    /// The process of one of the node's programs: `kubelet`, `containerd` or `kube-proxy`.
    pub fn process(&self, program: &str) -> Result<Option<Process>> {
        self.sandbox.process(program)
    }

    /// Brings an image archive (of `docker save`, or OCI) into the node's containerd.
    pub fn import_image(&self, archive: &Path) -> Result<()> {
        node_start::import_image(self, archive)
    }

    /// Standard output of `ctr` in the kubelet's namespace of containerd.
    pub fn ctr<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Result<String> {
        run::output(self.ctr_command()?.args(arguments))
    }

    pub(crate) fn ctr_command(&self) -> Result<Command> {
        let mut command = self.sandbox.command(format!("{BIN}/ctr"))?;
        command.args(["--namespace", "k8s.io"]);
        Ok(command)
    }
}
