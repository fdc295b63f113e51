//! Writes a node: its `GpuNode`, then its labels, taints and record in one patch, or the other way round.

use crate::{
    index::{message::WrittenObject, work::NodeWrite},
    metrics::WorkKind,
    watched::Watched,
    write::{
        cluster_writer::{ClusterWriter, patch_params},
        error::WriteError,
        gpu_node::{write_conditions, write_gpu_node},
        rejected_patch::{RejectedPatch, RereadObject},
        results::ResultSlot,
    },
};
use gpunode_plan::{GpuNodeChange, Intervention, PatchBuilder};
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
    let node = patch_node(writer, name, write.patch, write.interventions);
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

async fn patch_node(
    writer: &ClusterWriter,
    name: &str,
    patch: Option<JsonPatch>,
    interventions: Vec<Intervention>,
) -> Result<(), WriteError> {
    let Some(patch) = patch else { return Ok(()) };
    let slot = writer.results.reserve().await?;
    let nodes: Api<Watched<Node>> = Api::all(writer.client.clone());
    let patched = nodes
        .patch(name, &patch_params(), &Patch::<Node>::Json(patch.clone()))
        .await;
    let node = match patched {
        Ok(node) => node,
        Err(source) => return Err(rejected(&nodes, name, &patch, format!("patch node {name}"), source, slot).await),
    };
    slot.accepted(WorkKind::Node, Some(written(node)));
    tracing::debug!(node = name, "wrote labels, taints and record");
    writer.audit.add(name, interventions);
    Ok(())
}

/// Removes stale resources from the status of a Node.
async fn patch_node_status(writer: &ClusterWriter, name: &str, patch: Option<JsonPatch>) -> Result<(), WriteError> {
    let Some(patch) = patch else { return Ok(()) };
    let slot = writer.results.reserve().await?;
    let nodes: Api<Watched<Node>> = Api::all(writer.client.clone());
    let patched = nodes
        .patch_status(name, &patch_params(), &Patch::<Node>::Json(patch.clone()))
        .await;
    let node = match patched {
        Ok(node) => node,
        Err(source) => {
            let action = format!("patch status of node {name}");
            return Err(rejected(&nodes, name, &patch, action, source, slot).await);
        }
    };
    slot.accepted(WorkKind::Node, Some(written(node)));
    tracing::debug!(node = name, "removed stale resources from node status");
    Ok(())
}

/// Returns the error of a patch that was not accepted. After a lost race the index learns the node as it is now, or that
/// it is gone, so that the next try need not wait for the watch.
async fn rejected(
    nodes: &Api<Watched<Node>>,
    name: &str,
    patch: &JsonPatch,
    action: String,
    source: kube::Error,
    slot: ResultSlot<'_>,
) -> WriteError {
    let rejected = RejectedPatch {
        name,
        patch,
        action,
        source,
    };
    let (error, reread) = rejected.explain(nodes).await;
    match reread {
        RereadObject::Unchanged => {}
        RereadObject::Changed(node) => slot.read(written(node), PatchBuilder::version_of(patch)),
        RereadObject::Gone { version } => {
            let name = name.to_owned();
            slot.read(WrittenObject::DeletedNode { name, version }, None);
        }
    }
    error
}

fn written(node: Watched<Node>) -> WrittenObject {
    WrittenObject::Node(Box::new(node.into_facts()))
}
