//! A cluster: start, find, stop.

use std::{
    ffi::OsStr,
    fs::File,
    path::{Path, PathBuf},
    process::Output,
    thread,
};

use anyhow::{Context, Result, anyhow, bail};
use rustix::fs::{FlockOperation, flock};

use crate::{
    cgroup::CgroupVersion,
    cluster_file::ClusterFile,
    kubectl::Kubectl,
    layout::{Layout, default_root},
    node::Node,
    process::Process,
    progress::Progress,
    remove, requirements, start,
    state::State,
};

/// Name of the cluster unless another is given.
pub const DEFAULT_NAME: &str = "default";

/// Settings of a cluster to start.
#[derive(Debug, Clone)]
pub struct Options {
    /// Name of the cluster.
    pub name: String,
    /// Folder of all clusters; programs are in `bin` there.
    pub root: PathBuf,
    /// Its nodes.
    pub nodes: ClusterFile,
    /// The simulated NVML library.
    pub nvml_library: PathBuf,
    /// Folder of the stand-ins for NVIDIA's MPS programs.
    pub mps_programs: PathBuf,
    /// The program that shows MIG instances in the files of a node.
    pub kernel_program: PathBuf,
    /// Receiver of progress lines.
    pub progress: Progress,
}

impl Options {
    /// The defaults for a cluster of this name: four nodes, in `target/cluster` of the checkout around the
    /// current folder.
    pub fn new(name: impl Into<String>) -> Result<Self> {
        Self::in_root(default_root()?, name)
    }

    /// The same for another folder of clusters; what stands for the driver is expected where it is built, in the folder
    /// above.
    pub fn in_root(root: impl Into<PathBuf>, name: impl Into<String>) -> Result<Self> {
        let root = root.into();
        Ok(Options {
            name: name.into(),
            nvml_library: root.join("../release/libgpunode_fake_nvml.so"),
            mps_programs: root.join("../mps-control"),
            kernel_program: root.join("../release/gpunode-kernel-files"),
            root,
            nodes: ClusterFile::parse(include_str!("../clusters/default.yaml"))?,
            progress: Progress::silent(),
        })
    }
}

/// A running cluster. It goes on when this value is dropped; see [`Cluster::down`].
#[derive(Debug)]
pub struct Cluster {
    layout: Layout,
    state: State,
}

impl Cluster {
    /// Starts a cluster and waits until its nodes are Ready. One of the same name, and what is left of one, is
    /// stopped first. If it fails, what has started stays for a look at it, until the next start or stop.
    pub fn up(options: &Options) -> Result<Self> {
        let layout = Layout::new(&options.root, &options.name)?;
        let trees = requirements::ensure(&layout.bin())?;
        let _lock = lock(&layout)?;
        options.progress.print("earlier cluster", "is removed if there is one");
        remove::stop(&layout).context("stop what an earlier start left")?;
        remove::clear(&layout)?;
        let state =
            start::start(&layout, &trees, options).with_context(|| format!("start cluster {}", options.name))?;
        Ok(Cluster { layout, state })
    }

    /// A cluster that was started before, by whomever.
    pub fn attach(name: &str) -> Result<Self> {
        Self::attach_in(&default_root()?, name)
    }

    /// The same for another folder of clusters.
    pub fn attach_in(root: &Path, name: &str) -> Result<Self> {
        let layout = existing(root, name)?;
        match State::load(&layout)? {
            Some(state) => Ok(Cluster { layout, state }),
            None => bail!("cluster {name} does not run: start it with gpunode-cluster up"),
        }
    }

    /// Stops it; nothing but logs stays in its folder, nothing at all outside.
    pub fn down(self) -> Result<()> {
        stop(&self.layout)
    }

    /// Stops the cluster of this name, whatever state it is in; none at all is fine.
    pub fn stop(root: &Path, name: &str) -> Result<()> {
        if root.join(name).exists() {
            stop(&existing(root, name)?)
        } else {
            Ok(())
        }
    }

    /// Folder of the cluster.
    pub fn folder(&self) -> &Path {
        self.layout.folder()
    }

    /// Kubeconfig of the administrator.
    pub fn kubeconfig(&self) -> PathBuf {
        self.layout.admin_kubeconfig()
    }

    /// Audit log of the API server: JSON lines, with request and response of writes to nodes, daemonsets and
    /// gpunode's own kinds.
    pub fn audit_log(&self) -> PathBuf {
        self.layout.audit_log()
    }

    /// Logs of all programs, a folder per node and one for the control plane.
    pub fn logs(&self) -> PathBuf {
        self.layout.logs()
    }

    /// Version of the control groups that the nodes use.
    pub fn cgroup_version(&self) -> CgroupVersion {
        self.state.cgroup
    }

    /// Its nodes.
    pub fn nodes(&self) -> Vec<Node> {
        start::nodes(&self.layout, &self.state.cluster, self.state.subnet)
    }

    /// The node with this name.
    pub fn node(&self, name: &str) -> Result<Node> {
        self.nodes()
            .into_iter()
            .find(|node| node.name() == name)
            .ok_or_else(|| anyhow!("the cluster has no node {name}"))
    }

    /// Runs kubectl as the administrator to its end, whatever that is.
    pub fn kubectl<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Result<Output> {
        Kubectl::new(&self.layout).run(arguments)
    }

    /// Standard output of a run of kubectl that must succeed.
    pub fn kubectl_output<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Result<String> {
        Kubectl::new(&self.layout).output(arguments)
    }

    /// A kubectl command that can be given input or another credential.
    pub fn kubectl_command(&self) -> std::process::Command {
        Kubectl::new(&self.layout).command()
    }

    /// Brings an image archive into every node.
    pub fn import_image_everywhere(&self, archive: &Path) -> Result<()> {
        let nodes = self.nodes();
        thread::scope(|scope| {
            let imports: Vec<_> = nodes
                .iter()
                .map(|node| scope.spawn(|| node.import_image(archive)))
                .collect();
            imports.into_iter().try_for_each(start::join)
        })
    }

    /// The main process of a running container, on whichever node.
    pub fn container_process(&self, namespace: &str, pod: &str, container: &str) -> Result<Process> {
        let node = [
            "--namespace",
            namespace,
            "get",
            "pod",
            pod,
            "--output=jsonpath={.spec.nodeName}",
        ];
        self.node(&self.kubectl_output(node)?)?
            .container_process(namespace, pod, container)
    }

    /// Kills the API server and starts it again; returns when it is ready. Watches from before it start anew.
    pub fn restart_api_server(&self) -> Result<()> {
        crate::control_plane::ControlPlane::new(&self.layout)
            .restart_api_server(self.state.subnet)
            .context("restart the API server")
    }

    /// The process of one of the control plane's programs, such as `kube-apiserver`.
    pub fn control_plane_process(&self, program: &str) -> Result<Option<Process>> {
        crate::control_plane::ControlPlane::new(&self.layout)
            .sandbox()
            .process(program)
    }
}

/// Lists what this machine lacks for a cluster in this folder, one line each.
pub fn missing(root: &Path) -> Vec<String> {
    requirements::missing(&root.join("bin"))
}

fn existing(root: &Path, name: &str) -> Result<Layout> {
    if !root.join(name).is_dir() {
        bail!("no cluster {name} in {}", root.display());
    }
    Layout::new(root, name)
}

fn stop(layout: &Layout) -> Result<()> {
    requirements::root()?;
    let _lock = lock(layout)?;
    remove::stop(layout)?;
    remove::forget(layout)
}

/// Keeps others from starting or stopping the same cluster meanwhile. The kernel lets go when the holder ends.
fn lock(layout: &Layout) -> Result<File> {
    let path = layout.lock();
    let file = File::create(&path).with_context(|| format!("create {}", path.display()))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => bail!(
            "cluster {} is being started or stopped by another process: wait for it, or end it",
            layout.folder().display()
        ),
        Err(error) => Err(error).with_context(|| format!("lock {}", path.display())),
    }
}
