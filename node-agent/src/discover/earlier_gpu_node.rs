//! The `GpuNode` of a node that had GPUs before and has none now: its status must say so.

use crate::api_server::gpu_node::{api, connect};
use anyhow::Context as _;
use gpunode_process::OnChange;
use kube::api::ListParams;
use std::time::Duration;
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tracing::{info, warn};

const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause before the API server is asked again. Nothing waits for the answer.
const RETRY: Duration = Duration::from_secs(30);

/// Task that looks for a `GpuNode` of this node. It asks the API server until it answers once.
pub struct EarlierGpuNode {
    /// Name of this node.
    pub node_name: String,
    /// Set to true if there is one.
    pub found: watch::Sender<bool>,
}

impl EarlierGpuNode {
    /// Runs the task. Does not end.
    pub async fn run(self) {
        let mut errors = OnChange::default();
        loop {
            match self.exists().await {
                Ok(found) => {
                    if found {
                        info!(node = self.node_name, "the node has a GpuNode and no GPU any more");
                    }
                    self.found.send_replace(found);
                    std::future::pending::<()>().await;
                }
                Err(error) => {
                    if let Some(error) = errors.changed(format!("{error:#}")) {
                        warn!(error, "look for a GpuNode from before; trying again");
                    }
                    sleep(RETRY).await;
                }
            }
        }
    }

    async fn exists(&self) -> anyhow::Result<bool> {
        let client = connect().await?;
        let only = ListParams::default()
            .fields(&format!("metadata.name={}", self.node_name))
            .limit(1);
        let listed = timeout(CALL_TIMEOUT, api(client).list(&only)).await;
        let listed = listed.context("list the GpuNode of this node: no answer")?;
        Ok(!listed.context("list the GpuNode of this node")?.items.is_empty())
    }
}
