//! The same requests without an operator: what a bare client needs for them on this API server.

use crate::{
    api::{ApiClient, GPU_NODES, Metadata, NODES, Named, PatchForm, refusal},
    fleet::Fleet,
    progress::{WaitProgress, with_progress},
};
use anyhow::{Context as _, Result};
use futures::{Stream, StreamExt as _, future::try_join_all, stream};
use gpunode_crds::AGENT_FIELD_MANAGER;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};
use std::{pin::pin, time::Instant};

/// Writes at the same time: `MAX_CONCURRENT_WRITES` of `operator/src/write/worker.rs`. HTTP/1.1 has a connection for each.
pub const CONNECTIONS: usize = 4;
/// Attempts at a patch that lost a race.
const ATTEMPTS: usize = 5;
/// Key of the label, the taint and the annotation.
const KEY: &str = "bench.example.com/raw";
/// Length of the record that the operator writes with a label and a taint of one policy.
const RECORD_LENGTH: usize = 300;

/// Fields that a patch of a node depends on.
#[derive(Clone, Deserialize)]
struct RawNode {
    metadata: Metadata,
    #[serde(default)]
    spec: RawSpec,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct RawSpec {
    taints: Vec<Value>,
}

/// Patches a label, a taint and an annotation of every node; returns the seconds that the patches took.
pub async fn raw_change(fleet: &Fleet, round: usize) -> Result<f64> {
    let list = Box::pin(fleet.admin().list::<RawNode>(NODES, ""));
    let nodes = with_progress("nodes are listed for the bare client", list).await?;
    let count = nodes.len();
    timed(
        count,
        stream::iter(nodes).map(|node| write(fleet.account(), node, round)),
    )
    .await
}

/// Awaits the writes of all nodes, as many at a time as there are connections; returns the seconds that they took.
async fn timed(count: usize, writes: impl Stream<Item = impl Future<Output = Result<()>>>) -> Result<f64> {
    let (begin, mut progress) = (Instant::now(), WaitProgress::start());
    let mut writes = pin!(writes.buffer_unordered(CONNECTIONS));
    let mut written = 0;
    while let Some(result) = writes.next().await {
        result?;
        written += 1;
        progress.tick(|| format!("{written} of {count} nodes are written by the bare client"));
    }
    Ok(begin.elapsed().as_secs_f64())
}

async fn write(api: &ApiClient, mut node: RawNode, round: usize) -> Result<()> {
    let path = format!("{NODES}/{}", node.metadata.name);
    for attempt in 1.. {
        let request = format!("{path}?fieldManager=gpunode-fleet");
        let written = api
            .patch::<Named>(&request, PatchForm::Json, &patch(&node, round))
            .await;
        match written {
            Ok(_) => break,
            // A heartbeat came first.
            Err(error) if attempt < ATTEMPTS && matches!(refusal(&error), Some(409 | 422)) => {
                node = api.get(&path).await?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn patch(node: &RawNode, round: usize) -> Value {
    let key = KEY.replace('/', "~1");
    let value = format!("round-{round}");
    let mut taints = node.spec.taints.clone();
    taints.retain(|taint| taint["key"] != KEY);
    taints.push(json!({"key": KEY, "value": value, "effect": "PreferNoSchedule"}));
    json!([
        {"op": "test", "path": "/metadata/resourceVersion", "value": node.metadata.resource_version},
        {"op": "add", "path": format!("/metadata/labels/{key}"), "value": value},
        {"op": "add", "path": format!("/metadata/annotations/{key}"), "value": format!("{round:0>RECORD_LENGTH$}")},
        {"op": "add", "path": "/spec/taints", "value": taints},
    ])
}

/// Fields that a patch of a `GpuNode` depends on.
#[derive(Clone, Deserialize)]
struct RawGpuNode {
    metadata: Metadata,
    #[serde(default)]
    spec: RawGpuNodeSpec,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct RawGpuNodeSpec {
    config: Value,
}

/// Returns the configuration that the first `GpuNode` has.
pub async fn configuration_of_fleet(fleet: &Fleet) -> Result<Value> {
    let gpu_nodes: Vec<RawGpuNode> = fleet.admin().list(GPU_NODES, "").await?;
    let first = gpu_nodes.into_iter().next().context("the fleet has no GpuNode")?;
    Ok(first.spec.config)
}

/// Patches a configuration and a step into every `GpuNode`, and then the status that answers it, as a rollout and its agents
/// do; returns the seconds that the patches took.
pub async fn raw_configuration(fleet: &Fleet, config: &Value) -> Result<f64> {
    let gpu_nodes: Vec<RawGpuNode> = fleet.admin().list(GPU_NODES, "").await?;
    let (count, step) = (gpu_nodes.len(), Timestamp::now().to_string());
    let writes = stream::iter(gpu_nodes).map(|gpu_node| configure(fleet, gpu_node.metadata, config, &step));
    timed(count, writes).await
}

async fn configure(fleet: &Fleet, gpu_node: Metadata, config: &Value, step: &str) -> Result<()> {
    let path = format!("{GPU_NODES}/{}", gpu_node.name);
    let spec = json!({
        "metadata": {"resourceVersion": gpu_node.resource_version},
        "spec": {"config": config, "step": {"startedAt": step, "generation": 1, "failed": null}},
    });
    let status = json!({"status": {"configHash": config["hash"], "finishedStep": step}});
    let writes = [
        (fleet.account(), format!("{path}?fieldManager=gpunode-fleet"), spec),
        (
            fleet.admin(),
            format!("{path}/status?fieldManager={AGENT_FIELD_MANAGER}"),
            status,
        ),
    ];
    for (api, path, change) in writes {
        let written = api.patch::<Named>(&path, PatchForm::Merge, &change).await;
        written.context("write what a rollout writes")?;
    }
    Ok(())
}

/// Lists Nodes and `GpuNode`s in pages by so many clients at once, one for each replica that lists; returns the seconds until
/// all have everything.
pub async fn bare_list(fleet: &Fleet, clients: usize) -> Result<f64> {
    let begin = Instant::now();
    let list = |path: &'static str| Box::pin(fleet.account().list::<Named>(path, ""));
    let lists = (0..clients).flat_map(|_| [list(NODES), list(GPU_NODES)]);
    with_progress("a bare client lists everything", Box::pin(try_join_all(lists))).await?;
    Ok(begin.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patch_keeps_the_taints_of_others() {
        let node: RawNode = serde_json::from_value(json!({
            "metadata": {"name": "a", "resourceVersion": "7"},
            "spec": {"taints": [{"key": "b", "effect": "NoSchedule"}, {"key": KEY, "value": "round-0", "effect": "PreferNoSchedule"}]},
        }))
        .unwrap();
        let patch = patch(&node, 1);
        assert_eq!(patch[0]["value"], "7");
        let taints = patch[3]["value"].as_array().unwrap();
        assert_eq!(taints.len(), 2);
        assert_eq!(
            (&taints[0]["key"], &taints[1]["value"]),
            (&json!("b"), &json!("round-1"))
        );
    }
}
