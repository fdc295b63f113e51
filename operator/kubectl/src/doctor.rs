//! `kubectl gpunode doctor`: says on which nodes pods would get no GPU, and what to do about it.
//!
//! | module | what it does |
//! |---|---|
//! | `examination` | the findings about each node, from its last report |
//! | `problems` | the problems of a fleet, each with the nodes that have it |
//! | `text` | prints findings and problems |

mod examination;
mod problems;
mod text;

use crate::{
    cli::DoctorArgs,
    cluster::{self, ListedObjects, UnreadableObject},
    output,
    snapshot::ClusterSnapshot,
};
use examination::{NodeExamination, examine};
use gpunode_gpu::is_without_gpus;
use k8s_openapi::api::{core::v1::Node, node::v1::RuntimeClass};
use kube::{ResourceExt, api::ListParams};
use problems::FleetProblems;
use serde::Serialize;
use std::{collections::BTreeMap, process::ExitCode};

/// Kinds without which a node or its findings are missing.
const KINDS: [&str; 3] = ["GpuNode", "Node", "RuntimeClass"];

/// The output for programs: the findings about a node, or the problems of a fleet.
#[derive(Serialize)]
struct DoctorOutput<'a, T> {
    #[serde(flatten)]
    found: &'a T,
    /// Unreadable objects, which could hide findings.
    unreadable: &'a [UnreadableObject],
}

/// Prints the findings about a node, or the problems of all nodes. The exit code is 1 where pods would get no GPU.
///
/// # Errors
/// When no agent reports GPUs on the node, the cluster or the file cannot be read, or the output cannot be written.
pub async fn run(args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    let mut snapshot = ClusterSnapshot::read(&args.source, args.node.as_deref()).await?;
    snapshot.require(&["GpuNode"], "examine GPU nodes")?;
    let classes = runtime_classes(args).await?;
    let readable = classes.as_ref().filter(|classes| !classes.is_forbidden());
    let handlers: Option<Vec<(String, String)>> = readable.map(|classes| {
        let classes = classes.objects.iter();
        classes.map(|class| (class.name_any(), class.handler.clone())).collect()
    });
    let mut unreadable = std::mem::take(&mut snapshot.unreadable);
    unreadable.extend(classes.into_iter().flat_map(|classes| classes.unreadable));
    unreadable.retain(|object| KINDS.contains(&object.kind.as_str()));
    let by_name: BTreeMap<String, &Node> = snapshot.nodes.iter().map(|node| (node.name_any(), node)).collect();
    let examined = snapshot.gpu_nodes.iter().map(|gpu_node| {
        let node = by_name.get(&gpu_node.name_any()).copied();
        examine(gpu_node, node, handlers.as_deref())
    });
    let nodes: Vec<NodeExamination> = examined.collect();
    let fails = if let Some(name) = &args.node {
        let Some(node) = nodes.iter().find(|node| node.node == *name) else {
            anyhow::bail!(
                "examine node {name}: no agent reports a GPU there; list GPU nodes with `kubectl gpunode status`, or run \
                 `gpunode-agent inspect --host-root /` on the node"
            )
        };
        let found = DoctorOutput {
            found: node,
            unreadable: &unreadable,
        };
        output::print(args.output, &found, |width| text::node(node, &unreadable, width))?;
        is_without_gpus(&node.findings)
    } else {
        let problems = FleetProblems::of(&nodes);
        let found = DoctorOutput {
            found: &problems,
            unreadable: &unreadable,
        };
        output::print(args.output, &found, |width| text::fleet(&problems, &unreadable, width))?;
        problems.without_gpus > 0
    };
    Ok(if fails { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Lists the RuntimeClasses of the cluster; a dump has none.
async fn runtime_classes(args: &DoctorArgs) -> anyhow::Result<Option<ListedObjects<RuntimeClass>>> {
    if args.source.nodes.is_some() {
        return Ok(None);
    }
    let client = cluster::connect(&args.source.cluster).await?;
    let classes = cluster::list_permitted(&client, ListParams::default()).await?;
    Ok(Some(classes))
}
