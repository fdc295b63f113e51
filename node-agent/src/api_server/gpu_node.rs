//! Watches this node's GpuNode.

use anyhow::Context as _;
use futures::TryStreamExt as _;
use gpunode_crds::{GpuNode, GpuNodeSpec};
use kube::{
    Api, Client, Config,
    core::{ApiResource, Object},
    runtime::{
        WatchStreamExt as _,
        watcher::{self, Event, watcher},
    },
};
use serde_json::Value;
use std::{pin::pin, sync::Arc, time::Duration};
use tokio::sync::watch;
use tracing::{info, warn};

/// Time without a byte from the API server after which a request fails. Longer than a watch without events, which the server
/// ends after 290 s.
const READ_TIMEOUT: Duration = Duration::from_secs(310);
/// A GpuNode whose status may have been written by another version of the agent.
pub type ObservedGpuNode = Object<GpuNodeSpec, Value>;

/// State of this node's GpuNode.
#[derive(Clone, Debug, Default)]
pub enum GpuNodeState {
    /// The API server has not answered yet.
    #[default]
    Unknown,
    /// It does not exist.
    Absent,
    /// It exists.
    Present(Arc<ObservedGpuNode>),
}

/// Returns a client for the API server of the pod's service account or of KUBECONFIG.
pub async fn connect() -> anyhow::Result<Client> {
    let find = "find the API server; run in a pod with a service account";
    let mut config = Config::infer().await.context(find)?;
    config.read_timeout = Some(READ_TIMEOUT);
    // The time starts with a request, also on a connection that was idle before.
    config.reset_reader_on_write = true;
    Client::try_from(config).context(find)
}

/// Returns the API of GpuNodes.
pub fn api(client: Client) -> Api<ObservedGpuNode> {
    Api::all_with(client, &ApiResource::erase::<GpuNode>(&()))
}

/// Task that watches this node's GpuNode.
pub struct GpuNodeWatch {
    pub client: Client,
    /// Name of the Node and its GpuNode.
    pub node_name: String,
    pub gpu_node: watch::Sender<GpuNodeState>,
}

impl GpuNodeWatch {
    /// Watches. Does not end.
    pub async fn run(self) {
        let only = watcher::Config::default().fields(&format!("metadata.name={}", self.node_name));
        let mut events = pin!(watcher(api(self.client), only).default_backoff());
        let mut listed = None;
        let mut failing = false;
        loop {
            match events.try_next().await {
                Ok(Some(Event::Init)) => listed = None,
                Ok(Some(Event::InitApply(object))) => listed = Some(object),
                Ok(Some(Event::InitDone)) => {
                    self.gpu_node.send_replace(
                        listed
                            .take()
                            .map_or(GpuNodeState::Absent, |object| GpuNodeState::Present(Arc::new(object))),
                    );
                    if failing {
                        info!("the API server answers again");
                    }
                    failing = false;
                }
                Ok(Some(Event::Apply(object))) => {
                    _ = self.gpu_node.send_replace(GpuNodeState::Present(Arc::new(object)));
                }
                Ok(Some(Event::Delete(_))) => _ = self.gpu_node.send_replace(GpuNodeState::Absent),
                Ok(None) => std::future::pending().await,
                Err(error) => {
                    if !failing {
                        warn!(%error, "cannot watch the GpuNode; retrying");
                    }
                    failing = true;
                }
            }
        }
    }
}
