//! Writes a node: its `GpuNode`, then its labels, taints and record in one patch, or the other way round.

use crate::{
    index::{message::WrittenObject, work::NodeWrite},
    metrics::WorkKind,
    write::{
        cluster_writer::{ClusterWriter, patch_params},
        error::WriteError,
        gpu_node::{write_conditions, write_gpu_node},
    },
};
use gpunode_plan::{GpuNodeChange, NodeFacts};
use json_patch::Patch as JsonPatch;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, api::Patch};

/// Carries out the writes for a node. One that fails does not stop the other.
pub async fn write_node(writer: &ClusterWriter, name: &str, write: NodeWrite) -> Result<(), WriteError> {
    // An agent that is about to start finds its configuration there; one that is about to leave keeps it until then.
    let gives_configuration = write.gpu_node.gives_configuration();
    // The facts about the GPUs outlive what is on the node because of them.
    let is_last = matches!(write.gpu_node, GpuNodeChange::Delete { .. });
    let gpu_node = async {
        write_gpu_node(writer, name, write.gpu_node).await?;
        write_conditions(writer, name, write.conditions).await
    };
    let node = patch_node(writer, name, write.patch);
    let (first, second) = if gives_configuration {
        let gpu_node = gpu_node.await;
        (gpu_node, node.await)
    } else {
        let node = node.await;
        if node.is_err() && is_last {
            return node;
        }
        (node, gpu_node.await)
    };
    let status = patch_node_status(writer, name, write.status_patch).await;
    first.and(second).and(status)
}

async fn patch_node(writer: &ClusterWriter, name: &str, patch: Option<JsonPatch>) -> Result<(), WriteError> {
    let Some(patch) = patch else { return Ok(()) };
    let slot = writer.results.reserve().await?;
    let nodes: Api<Node> = Api::all(writer.client.clone());
    let patched = nodes.patch(name, &patch_params(), &Patch::<Node>::Json(patch)).await;
    let node = patched.map_err(WriteError::request(format!("patch node {name}")))?;
    slot.accepted(WorkKind::Node, Some(written(&node)));
    tracing::info!(node = name, "wrote labels, taints and record");
    Ok(())
}

/// Removes stale resources from the status of a Node.
async fn patch_node_status(writer: &ClusterWriter, name: &str, patch: Option<JsonPatch>) -> Result<(), WriteError> {
    let Some(patch) = patch else { return Ok(()) };
    let slot = writer.results.reserve().await?;
    let nodes: Api<Node> = Api::all(writer.client.clone());
    let patch = Patch::<Node>::Json(patch);
    let patched = nodes.patch_status(name, &patch_params(), &patch).await;
    let node = patched.map_err(WriteError::request(format!("patch status of node {name}")))?;
    slot.accepted(WorkKind::Node, Some(written(&node)));
    tracing::info!(node = name, "removed stale resources from node status");
    Ok(())
}

fn written(node: &Node) -> WrittenObject {
    WrittenObject::Node(Box::new(NodeFacts::of(node)))
}
