//! Restores the labels, taints and annotations of every node.

use super::{
    removal::Removal,
    requests::request,
    undo::{NodeUndo, undo},
};
use crate::{cluster, output::plural};
use anyhow::anyhow;
use futures::{StreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DynamicObject, Patch, PatchParams},
};
use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

/// Nodes patched at the same time.
const AT_ONCE: usize = 16;
/// Attempts for one node, which its kubelet writes too.
const TRIES: u32 = 8;
/// Wait after an attempt, times the attempt's number.
const BACKOFF: Duration = Duration::from_millis(50);

const STEP: &str = "nodes";

/// Restores every node.
pub async fn undo_nodes(removal: &mut Removal) {
    let nodes = match cluster::list::<Node>(&removal.requests.client).await {
        Ok(nodes) => nodes,
        Err(error) => return removal.leave("labels and taints of nodes", format!("{error:#}")),
    };
    for unreadable in nodes.unreadable {
        // A node without a readable status can be restored.
        if !nodes.objects.iter().any(|node| node.name_any() == unreadable.name) {
            removal.leave(&format!("node {}", unreadable.name), unreadable.message);
        }
    }
    let all = nodes.objects.len();
    let (client, end) = (removal.requests.client.clone(), removal.end);
    let mut undone = stream::iter(
        nodes
            .objects
            .into_iter()
            .map(|node| undo_node(client.clone(), node, end)),
    )
    .buffer_unordered(AT_ONCE);
    let (mut seen, mut changed, mut failed) = (0_usize, 0_usize, Vec::new());
    while let Some((name, undone)) = undone.next().await {
        seen += 1;
        match undone {
            Ok(true) => changed += 1,
            Ok(false) => {}
            Err(error) => failed.push((name, format!("{error:#}"))),
        }
        removal.progress.doing(STEP, &format!("{seen} of {all}"));
    }
    drop(undone);
    for (name, why) in failed {
        removal.leave(&format!("node {name}"), why);
    }
    removal.progress.done(
        STEP,
        &format!("{} restored, {} checked", plural(changed, "node", "nodes"), all),
    );
}

/// Restores one node. Returns false where there was nothing to restore.
async fn undo_node(client: Client, mut node: Node, end: Instant) -> (String, anyhow::Result<bool>) {
    let name = node.name_any();
    let nodes: Api<Node> = Api::all(client.clone());
    // The answer may hold a status that cannot be parsed.
    let written: Api<DynamicObject> = Api::all_with(client, &ApiResource::erase::<Node>(&()));
    for attempt in 1..=TRIES {
        if Instant::now() >= end {
            return (name, Err(anyhow!("out of time; run this again")));
        }
        let patch = match undo(&node, Timestamp::now()) {
            Err(error) => return (name, Err(error)),
            Ok(NodeUndo::Nothing) => return (name, Ok(attempt > 1)),
            Ok(NodeUndo::Held(hold)) => {
                let error = anyhow!("{hold}; remove the label or fix the annotation, then run this again");
                return (name, Err(error));
            }
            Ok(NodeUndo::Patch { patch, .. }) => patch,
        };
        let params = PatchParams::default();
        match written.patch(&name, &params, &Patch::<()>::Json(patch)).await {
            Ok(_) => return (name, Ok(true)),
            // The node was deleted.
            Err(kube::Error::Api(status)) if status.code == 404 => return (name, Ok(false)),
            // Its kubelet wrote it in between.
            Err(kube::Error::Api(status)) if matches!(status.code, 409 | 422 | 429) && attempt < TRIES => {}
            Err(kube::Error::Api(status)) => return (name, Err(anyhow!("patch node: {}", status.message))),
            Err(error) => return (name, Err(anyhow::Error::new(error).context("patch node"))),
        }
        tokio::time::sleep(BACKOFF * attempt).await;
        node = match request("read node", nodes.get(&name)).await {
            Ok(Some(node)) => node,
            Ok(None) => return (name, Ok(false)),
            Err(error) => return (name, Err(error)),
        };
    }
    (
        name,
        Err(anyhow!(
            "it changed between read and write {TRIES} times; run this again"
        )),
    )
}

/// Returns the names of the nodes whose kubelet reports Ready.
pub async fn ready_nodes(client: &Client) -> anyhow::Result<BTreeSet<String>> {
    let nodes = cluster::list::<Node>(client).await?;
    Ok(nodes
        .objects
        .iter()
        .filter(|node| gpunode_plan::NodeFacts::of(node).ready)
        .map(ResourceExt::name_any)
        .collect())
}
