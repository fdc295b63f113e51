//! `kubectl gpunode topo`: shows the links between a node's GPUs, their holders, and which GPUs a container would get.
//!
//! | module | what it does |
//! |---|---|
//! | `topology` | collects links, holders and the answer to a request |
//! | `links` | the GPUs of a node and their links |
//! | `request` | answers a request with the agent's own function |
//! | `text` | prints the links as `nvidia-smi topo -m` does, and the answer |

mod links;
mod request;
#[cfg(test)]
mod tests;
mod text;
mod topology;

use crate::{cli::TopoArgs, cluster, output, snapshot::ClusterSnapshot};
use kube::ResourceExt;
use std::process::ExitCode;
use topology::topology;

/// Prints the links of a node's GPUs, and the answer to a request.
///
/// # Errors
/// When there is no such node or resource, the cluster or the file cannot be read, or the output cannot be written.
pub async fn run(args: &TopoArgs) -> anyhow::Result<ExitCode> {
    let snapshot = ClusterSnapshot::read(&args.source, Some(&args.node)).await?;
    snapshot.require(&["GpuNode"], &format!("show the links of node {}", args.node))?;
    for object in snapshot.unreadable.iter().filter(|object| object.name == args.node) {
        cluster::warn(object);
    }
    let gpu_node = snapshot
        .gpu_nodes
        .iter()
        .find(|gpu_node| gpu_node.name_any() == args.node);
    let Some(gpu_node) = gpu_node else {
        anyhow::bail!(
            "show the links of node {}: no agent reports a GPU there; list GPU nodes with `kubectl gpunode status`",
            args.node
        )
    };
    let topology = topology(gpu_node, args.request, args.resource.as_deref())?;
    output::print(args.output, &topology, |width| text::topology(&topology, width))?;
    Ok(ExitCode::SUCCESS)
}
