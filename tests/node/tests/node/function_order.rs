//! The work of a node's agent in short, for `make function-order`: each function that is executed here gets its place beside the
//! others (`docs/adr/0020-function-order.md`).

use crate::figures::with_companions_alone;
use anyhow::{Context as _, Result};
use gpunode_node_tests::{Agent, ApiServer, FakeKubelet, Lab, Node};
use std::time::Duration;
use tokio::time::sleep;

/// Most of what is repeated has been done by then.
const IDLE: Duration = Duration::from_secs(70);

/// A start, a pod that comes and goes, probes and metrics, and a while without work.
async fn record(agent: &mut Agent, kubelet: &FakeKubelet, resource: &str) -> Result<()> {
    agent.await_ready().await?;
    kubelet.has(resource, |endpoint| !endpoint.healthy().is_empty()).await?;
    kubelet.admit("pod", "main", resource, 1).await?;
    kubelet.is_listed().await?;
    // A second pod finds the first in the lists.
    kubelet.admit("other", "main", resource, 2).await?;
    kubelet.is_listed().await?;
    for path in ["/livez", "/readyz", "/metrics"] {
        agent.get(path).await?;
    }
    kubelet.release("pod");
    sleep(IDLE).await;
    agent.get("/metrics").await.context("the agent is still there")?;
    agent.stop().await?;
    Ok(())
}

#[tokio::test]
#[ignore = "a recording: make function-order"]
async fn record_companions_alone() -> Result<()> {
    let (_node, kubelet, mut agent) = with_companions_alone().await?;
    record(&mut agent, &kubelet, "rdma/hca").await
}

#[tokio::test]
#[ignore = "a recording: make function-order"]
async fn record_gpus_and_an_api_server() -> Result<()> {
    let api_server = ApiServer::start().await?;
    let shared = "resources: [{name: nvidia.com/gpu, sharing: {strategy: TimeSlicing, replicas: 64}}]";
    let mut lab = Lab::start_beside(&api_server, Node::with_v100()?, shared)?;
    record(&mut lab.agent, &lab.kubelet, "nvidia.com/gpu").await
}
