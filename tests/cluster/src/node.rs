//! A node of a running cluster, for tests.

use std::{
    ffi::OsStr,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use rustix::process::Signal;

use crate::{
    cluster_file::NodeSpec,
    hardware,
    layout::Layout,
    node_start,
    process::{self, Process},
    run,
    sandbox::{BIN, Sandbox},
};

/// A node.
#[derive(Debug, Clone)]
pub struct Node {
    layout: Layout,
    spec: NodeSpec,
    address: Ipv4Addr,
    sandbox: Sandbox,
}

impl Node {
    pub(crate) fn new(layout: &Layout, spec: &NodeSpec, address: Ipv4Addr) -> Self {
        Node {
            sandbox: Sandbox::new(layout.folder(), &layout.logs(), format!("nodes/{}", spec.name)),
            layout: layout.clone(),
            spec: spec.clone(),
            address,
        }
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(crate) fn sandbox(&self) -> &Sandbox {
        &self.sandbox
    }

    pub(crate) fn folder(&self) -> PathBuf {
        self.layout.node(&self.spec.name)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// What the cluster file says about it.
    pub fn spec(&self) -> &NodeSpec {
        &self.spec
    }

    /// Its address; the machine and all pods reach it.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// The folder of the simulated NVML library, with the scenario and state files beside it: the outside, writable
    /// view of what the node sees read-only under `/run/nvidia/driver`.
    pub fn driver_dir(&self) -> Result<PathBuf> {
        if self.spec.gpus.is_none() {
            bail!("node {} has no GPUs and so no driver", self.spec.name);
        }
        Ok(hardware::library_folder(&self.folder().join("driver")))
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
            .wait(std::time::Duration::from_secs(20))
            .with_context(|| format!("stop the kubelet of node {}", self.spec.name))
    }

    /// Starts the kubelet if it does not run.
    pub fn start_kubelet(&self) -> Result<()> {
        if self.sandbox.process("kubelet")?.is_some() {
            return Ok(());
        }
        node_start::start_kubelet(self, self.address)
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

    /// The main process of a running container.
    pub fn container_process(&self, namespace: &str, pod: &str, container: &str) -> Result<Process> {
        let Some(inside) = self.main_pid(namespace, pod, container)? else {
            bail!("container {container} of pod {namespace}/{pod} does not run on node {}", self.spec.name);
        };
        match self.outside(inside)? {
            Some(process) => Ok(process),
            None => bail!("container {container} of pod {namespace}/{pod} has just ended"),
        }
    }

    /// All processes of a running container.
    pub fn container_processes(&self, namespace: &str, pod: &str, container: &str) -> Result<Vec<Process>> {
        let mut processes = Vec::new();
        for id in self.container_ids(namespace, pod, container)? {
            // A container without a task has ended.
            let Ok(table) = self.ctr(["tasks", "ps", &id]) else {
                continue;
            };
            for line in table.lines().skip(1) {
                let pid = line.split_ascii_whitespace().next().and_then(|pid| pid.parse().ok());
                if let Some(pid) = pid
                    && let Some(process) = self.outside(pid)?
                {
                    processes.push(process);
                }
            }
        }
        Ok(processes)
    }

    fn main_pid(&self, namespace: &str, pod: &str, container: &str) -> Result<Option<i32>> {
        let ids = self.container_ids(namespace, pod, container)?;
        let tasks = self.ctr(["tasks", "list"])?;
        Ok(tasks.lines().find_map(|line| {
            // TASK PID STATUS; paused means stopped from outside, not ended.
            let mut fields = line.split_ascii_whitespace();
            let (id, pid, status) = (fields.next()?, fields.next()?, fields.next()?);
            let runs = status == "RUNNING" || status == "PAUSED";
            (runs && ids.iter().any(|other| other == id)).then(|| pid.parse().ok())?
        }))
    }

    fn container_ids(&self, namespace: &str, pod: &str, container: &str) -> Result<Vec<String>> {
        let filter = format!(
            "labels.\"io.kubernetes.pod.namespace\"=={namespace},\
             labels.\"io.kubernetes.pod.name\"=={pod},\
             labels.\"io.kubernetes.container.name\"=={container}"
        );
        let ids = self.ctr(["containers", "list", "--quiet", &filter])?;
        Ok(ids.lines().map(str::to_owned).collect())
    }

    /// The process that has this id inside.
    fn outside(&self, inside: i32) -> Result<Option<Process>> {
        let holder = self.sandbox.holder()?.pid();
        let processes = process::all()?;
        let parents: std::collections::BTreeMap<_, _> =
            processes.iter().filter_map(|process| Some((process.pid(), process.parent()?))).collect();
        // Orphans become children of the holder, so it is an ancestor of every process inside.
        let is_inside = |pid: i32| {
            std::iter::successors(Some(pid), |pid| parents.get(pid).copied())
                .take(parents.len())
                .any(|ancestor| ancestor == holder)
        };
        Ok(processes.into_iter().find(|process| {
            let pids = process.namespace_pids().unwrap_or_default();
            pids.get(1) == Some(&inside) && is_inside(process.pid())
        }))
    }
}
