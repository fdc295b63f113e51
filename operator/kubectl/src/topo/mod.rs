//! `kubectl gpunode topo`: how the GPUs of a node are linked and who holds them, and which of them a container would get, by
//! the function that the agent uses.

mod links;
mod request;
#[cfg(test)]
mod tests;
mod text;

use crate::{cli::TopoArgs, cluster, output, snapshot::Snapshot};
use gpunode_crds::GpuNode;
use kube::ResourceExt;
use links::Gpu;
use request::Answer;
use serde::Serialize;
use std::process::ExitCode;

/// The GPUs of one node.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Topology {
    node: String,
    gpus: Vec<Gpu>,
    /// Indices of GPUs that are missing now: nothing is said of their links.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    missing: Vec<i32>,
    /// Whether somebody may hold a GPU who is not named.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    holders_truncated: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    request: Option<Answer>,
}

/// Prints the links of a node's GPUs, and what a request would get.
///
/// # Errors
/// When there is no such node or resource, the cluster or the file cannot be read, or the output cannot be written.
pub async fn run(args: &TopoArgs) -> anyhow::Result<ExitCode> {
    let snapshot = Snapshot::read(&args.source, Some(&args.node)).await?;
    for object in snapshot.unreadable.iter().filter(|object| object.name == args.node) {
        cluster::warn(object);
    }
    let gpu_node = snapshot
        .gpu_nodes
        .iter()
        .find(|gpu_node| gpu_node.name_any() == args.node);
    let Some(gpu_node) = gpu_node else {
        anyhow::bail!(
            "show the links of node {}: no GPU is reported there; `kubectl gpunode status` lists the nodes with GPUs",
            args.node
        )
    };
    let topology = topology(gpu_node, args.request, args.resource.as_deref())?;
    output::print(args.output, &topology, || text::topology(&topology))?;
    Ok(ExitCode::SUCCESS)
}

/// What a GpuNode says, and the answer to a request.
fn topology(gpu_node: &GpuNode, request: Option<u32>, resource: Option<&str>) -> anyhow::Result<Topology> {
    let status = gpu_node.status.clone().unwrap_or_default();
    let missing = status
        .gpus
        .iter()
        .filter(|gpu| gpu.missing_since.is_some())
        .map(|gpu| gpu.index)
        .collect();
    Ok(Topology {
        node: gpu_node.name_any(),
        gpus: links::gpus(&status),
        missing,
        holders_truncated: status.holders_truncated,
        request: request
            .map(|size| request::answer(gpu_node, &status, resource, size))
            .transpose()?,
    })
}
