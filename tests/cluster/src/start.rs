//! The order in which a cluster starts.

use std::{
    path::PathBuf,
    thread::{self, ScopedJoinHandle},
    time::Duration,
};

use anyhow::{Context, Result, anyhow, bail};
use serde_json::Value;

use crate::{
    cgroup::{self, Trees},
    cluster::Options,
    cluster_file::ClusterFile,
    control_plane::ControlPlane,
    hardware::Driver,
    image,
    kubectl::Kubectl,
    layout::Layout,
    limits, network,
    node::Node,
    node_start,
    pki::Authority,
    progress::Progress,
    state::State,
    subnet::Subnet,
    wait,
};

const READY_TIMEOUT: Duration = Duration::from_mins(5);

/// The nodes of a cluster file; their indices make their addresses.
pub(crate) fn nodes(layout: &Layout, file: &ClusterFile, subnet: Subnet) -> Vec<Node> {
    (0..)
        .zip(&file.nodes)
        .map(|(index, spec)| Node::new(layout, spec, subnet, index))
        .collect()
}

/// Starts everything; nothing of the cluster is there yet.
pub(crate) fn start(layout: &Layout, trees: &Trees, options: &Options) -> Result<State> {
    let progress = options.progress;
    limits::raise(progress);
    let has_gpus = options.nodes.nodes.iter().any(|node| node.gpus.is_some());
    let driver = has_gpus.then(|| Driver::find(options)).transpose()?;
    if let Some(driver) = &driver {
        driver.install_kernel_program(&layout.bin())?;
    }
    let images = image::build(&layout.bin(), &layout.images()).context("make test images")?;
    let authority = Authority::new()?;

    let group = cgroup::group(layout.folder());
    let control_plane = ControlPlane::new(layout);
    control_plane.start_sandbox()?;
    let subnet = network::connect_machine(control_plane.sandbox(), &group)?;
    let state = State {
        subnet,
        cgroup: trees.version,
        cluster: options.nodes.clone(),
    };
    state.save(layout)?;
    progress.print(
        "network",
        format_args!("nodes {}, pods {}", subnet.nodes(), subnet.pods()),
    );

    let nodes = nodes(layout, &options.nodes, subnet);
    let runtime = Runtime {
        trees,
        group,
        authority: &authority,
        control_plane: &control_plane,
        driver: driver.as_ref(),
        images: &images,
    };
    let runtime = &runtime;
    thread::scope(|scope| {
        let api = scope.spawn(|| {
            control_plane.start_api(&authority, subnet, options.nodes.audit_contents)?;
            if options.nodes.controllers {
                control_plane.start_controllers()?;
            }
            progress.print("control plane", "API server is ready");
            Ok(())
        });
        let starts: Vec<_> = nodes
            .iter()
            .map(|node| {
                scope.spawn(move || {
                    runtime
                        .start(node)
                        .with_context(|| format!("start node {}", node.name()))?;
                    progress.print(node.name(), "containerd is ready");
                    Ok(())
                })
            })
            .collect();
        // A node that fails is reported before what waits for it.
        starts.into_iter().try_for_each(join)?;
        join(api)
    })?;
    for node in &nodes {
        node.start_kubelet()?;
        node_start::start_kube_proxy(node)?;
    }
    if options.nodes.controllers {
        wait_ready(layout, &nodes, progress)?;
    }
    Ok(state)
}

/// Inputs for the start of a node, up to containerd.
struct Runtime<'a> {
    trees: &'a Trees,
    group: String,
    authority: &'a Authority,
    control_plane: &'a ControlPlane,
    driver: Option<&'a Driver>,
    images: &'a [PathBuf],
}

impl Runtime<'_> {
    fn start(&self, node: &Node) -> Result<()> {
        let cgroup = self.trees.create(&self.group, node.name())?;
        node_start::write_hardware(node, self.driver)?;
        node_start::write_kubelet_files(node, self.authority, &cgroup)?;
        node_start::start_sandbox(node)?;
        network::connect_node(self.control_plane.sandbox(), node)?;
        node_start::start_containerd(node)?;
        self.images.iter().try_for_each(|image| node.import_image(image))
    }
}

fn wait_ready(layout: &Layout, nodes: &[Node], progress: Progress) -> Result<()> {
    let kubectl = Kubectl::new(layout);
    let mut waiting: Vec<_> = nodes.iter().collect();
    wait::until("all nodes to be Ready", READY_TIMEOUT, || {
        for node in &waiting {
            if node.process("kubelet")?.is_none() {
                bail!(
                    "the kubelet of node {} ended; {}",
                    node.name(),
                    node.sandbox().log_tail("kubelet")
                );
            }
        }
        // The API server may be too busy for one answer.
        let Ok(list) = kubectl.output(["get", "nodes", "--output=json"]) else {
            return Ok(None);
        };
        let list: Value = serde_json::from_str(&list).context("parse the list of nodes")?;
        waiting.retain(|node| {
            let ready = is_ready(&list, node.name());
            if ready {
                progress.print(node.name(), "Ready");
            }
            !ready
        });
        Ok(waiting.is_empty().then_some(()))
    })?;
    // A pod cannot be created without it.
    progress.print("controllers", "waiting for the default service account");
    wait::until("the default service account", READY_TIMEOUT, || {
        Ok(kubectl
            .output(["get", "serviceaccount", "default"])
            .is_ok()
            .then_some(()))
    })
}

fn is_ready(list: &Value, name: &str) -> bool {
    let all = |value: &Value| value.as_array().cloned().unwrap_or_default();
    all(&list["items"])
        .iter()
        .filter(|node| node["metadata"]["name"] == name)
        .flat_map(|node| all(&node["status"]["conditions"]))
        .any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

/// The result of a thread.
pub(crate) fn join(handle: ScopedJoinHandle<'_, Result<()>>) -> Result<()> {
    handle
        .join()
        .map_err(|_| anyhow!("a thread of the cluster's start panicked"))?
}
