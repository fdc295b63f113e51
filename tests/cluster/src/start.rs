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
    cluster::{Options, ensure_file},
    cluster_file::ClusterFile,
    control_plane::ControlPlane,
    image,
    kubectl::Kubectl,
    layout::Layout,
    network,
    node::Node,
    node_start::{self, Surroundings},
    pki::Authority,
    progress::Progress,
    state::State,
    subnet::Subnet,
    wait,
};

const READY_TIMEOUT: Duration = Duration::from_mins(2);

/// The nodes of a cluster file; their indices make their addresses.
pub(crate) fn nodes(layout: &Layout, file: &ClusterFile, subnet: Subnet) -> Vec<Node> {
    (0..).zip(&file.nodes).map(|(index, spec)| Node::new(layout, spec, subnet.node(index))).collect()
}

/// Starts everything; nothing of the cluster is there yet.
pub(crate) fn start(layout: &Layout, trees: &Trees, options: &Options) -> Result<State> {
    let progress = options.progress;
    let has_gpus = options.nodes.nodes.iter().any(|node| node.gpus.is_some());
    let nvml_library = if has_gpus {
        ensure_file(
            &options.nvml_library,
            "build the simulated NVML (cargo build --release -p gpunode-fake-nvml), or say where it is",
        )?
    } else {
        PathBuf::new()
    };
    let images = image::build(&layout.bin(), &layout.images()).context("make test images")?;
    let authority = Authority::new()?;

    let control_plane = ControlPlane::new(layout);
    control_plane.start_sandbox()?;
    let subnet = network::connect_machine(control_plane.sandbox())?;
    let state = State { subnet, cgroup: trees.version, cluster: options.nodes.clone() };
    state.save(layout)?;
    progress.say("network", format_args!("nodes {}, pods {}", subnet.nodes(), subnet.pods()));

    let nodes = nodes(layout, &options.nodes, subnet);
    let group = cgroup::group(layout.folder());
    thread::scope(|scope| {
        let api = scope.spawn(|| {
            control_plane.start_api(&authority, subnet)?;
            control_plane.start_controllers()?;
            progress.say("control plane", "API server is ready");
            Ok(())
        });
        let starts: Vec<_> = (0_u8..)
            .zip(&nodes)
            .map(|(index, node)| {
                let (control_plane, group, images) = (&control_plane, &group, &images);
                let (authority, nvml_library) = (&authority, &nvml_library);
                scope.spawn(move || {
                    let around =
                        Surroundings { authority, subnet, cgroup: trees.create(group, node.name())?, nvml_library };
                    start_runtime(control_plane, node, index, &around, images)
                        .with_context(|| format!("start node {}", node.name()))?;
                    progress.say(node.name(), "containerd is ready");
                    Ok(())
                })
            })
            .collect();
        // A node that fails is reported before what waits for it.
        starts.into_iter().try_for_each(join)?;
        join(api)
    })?;
    for (index, node) in (0_u8..).zip(&nodes) {
        node.start_kubelet()?;
        node_start::start_kube_proxy(node, subnet.node_pods(index))?;
    }
    wait_ready(layout, &nodes, progress)?;
    Ok(state)
}

fn start_runtime(
    control_plane: &ControlPlane,
    node: &Node,
    index: u8,
    around: &Surroundings,
    images: &[PathBuf],
) -> Result<()> {
    node_start::start_sandbox(node, around)?;
    network::connect_node(control_plane.sandbox(), node.sandbox(), around.subnet, index)?;
    node_start::write_kubelet_files(node, around, node.address())?;
    node_start::start_containerd(node, around.subnet.node_pods(index))?;
    images.iter().try_for_each(|image| node.import_image(image))
}

fn wait_ready(layout: &Layout, nodes: &[Node], progress: Progress) -> Result<()> {
    let kubectl = Kubectl::new(layout);
    let mut waiting: Vec<_> = nodes.iter().collect();
    wait::until("all nodes to be Ready", READY_TIMEOUT, || {
        for node in &waiting {
            if node.process("kubelet")?.is_none() {
                bail!("the kubelet of node {} ended; {}", node.name(), node.sandbox().log_tail("kubelet"));
            }
        }
        let list = kubectl.output(["get", "nodes", "--output=json"])?;
        let list: Value = serde_json::from_str(&list).context("parse the list of nodes")?;
        waiting.retain(|node| {
            let ready = is_ready(&list, node.name());
            if ready {
                progress.say(node.name(), "Ready");
            }
            !ready
        });
        Ok(waiting.is_empty().then_some(()))
    })?;
    // A pod cannot be created without it.
    wait::until("the default service account", READY_TIMEOUT, || {
        Ok(kubectl.output(["get", "serviceaccount", "default"]).is_ok().then_some(()))
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
    handle.join().map_err(|_| anyhow!("a thread of the cluster's start panicked"))?
}
