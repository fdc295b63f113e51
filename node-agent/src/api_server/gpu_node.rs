//! This node's GpuNode and the client for it.

use anyhow::Context as _;
use gpunode_crds::{GpuNode, GpuNodeSpec};
use gpunode_process::{RequestThrottle, paced_client};
use kube::{
    Api, Client, Config,
    core::{ApiResource, Object},
};
use serde_json::Value;
use std::{sync::Arc, time::Duration};

/// Time without a byte from the API server after which a connection is given up. Requests have shorter limits.
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

/// Returns a client for the API server of the pod's service account or of KUBECONFIG. It waits when the API server is
/// busy and says for how long.
pub async fn connect() -> anyhow::Result<Client> {
    let find = "find the API server; run in a pod with a service account";
    let mut config = Config::infer().await.context(find)?;
    config.read_timeout = Some(READ_TIMEOUT);
    // The time starts with a request, also on a connection that was idle before.
    config.reset_reader_on_write = true;
    // kube's own retries wait for as long as the API server says, without a bound.
    config.default_retry = false;
    let client = Client::try_from(config).context(find)?;
    Ok(paced_client(client, &RequestThrottle::default()))
}

/// Returns the API of GpuNodes.
pub fn api(client: Client) -> Api<ObservedGpuNode> {
    Api::all_with(client, &ApiResource::erase::<GpuNode>(&()))
}
