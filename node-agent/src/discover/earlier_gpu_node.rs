//! The `GpuNode` of a node that had GPUs before and has none now: its status must say so.

use crate::api_server::gpu_node::{api, connect};
use anyhow::Context as _;
use gpunode_process::{OnChange, random_up_to, within};
use kube::{Client, api::ListParams};
use std::time::Duration;
use tokio::{sync::watch, time::sleep};
use tracing::{info, warn};

const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest pause before the API server is asked again; the shortest is half of it. Nothing waits for the answer.
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
        self.look(connect).await;
    }

    async fn look<F: Future<Output = anyhow::Result<Client>>>(self, connect: impl Fn() -> F) {
        let mut errors = OnChange::default();
        loop {
            let found = async { self.exists(connect().await?).await };
            match found.await {
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
                    sleep(RETRY / 2 + random_up_to(RETRY / 2)).await;
                }
            }
        }
    }

    async fn exists(&self, client: Client) -> anyhow::Result<bool> {
        let only = ListParams::default()
            .fields(&format!("metadata.name={}", self.node_name))
            .limit(1);
        let listed = within(CALL_TIMEOUT, api(client).list(&only)).await;
        let listed = listed.context("list the GpuNode of this node: no answer")?;
        Ok(!listed.context("list the GpuNode of this node")?.items.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::json;
    use std::{
        convert::Infallible,
        sync::atomic::{AtomicUsize, Ordering},
    };
    use tower::service_fn;

    /// A client of an API server with one `GpuNode`, which fails this often before it answers.
    fn client(name: &'static str, failures: usize) -> Client {
        let requests = AtomicUsize::new(0);
        let service = service_fn(move |request: Request<Body>| {
            let is_asked = request.uri().query().is_some_and(|query| {
                let mut pairs = query.split('&');
                pairs.any(|pair| pair == format!("fieldSelector=metadata.name%3D{name}"))
            });
            let (code, body) = if requests.fetch_add(1, Ordering::Relaxed) < failures {
                (
                    503,
                    json!({"kind": "Status", "status": "Failure", "code": 503, "reason": "", "message": "no"}),
                )
            } else {
                let object = json!({"apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": name}, "spec": {}});
                let items = Vec::from_iter(is_asked.then_some(object));
                (
                    200,
                    json!({"apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNodeList", "metadata": {}, "items": items}),
                )
            };
            let response = Response::builder()
                .status(code)
                .body(Body::from(body.to_string().into_bytes()));
            async move { Ok::<_, Infallible>(response.unwrap()) }
        });
        Client::new(service, "ns")
    }

    /// Returns what the task of node `a` finds.
    async fn found(client: Client) -> bool {
        let (found, mut answer) = watch::channel(false);
        let node_name = "a".to_owned();
        let task = EarlierGpuNode { node_name, found };
        tokio::select! {
            () = task.look(|| std::future::ready(anyhow::Ok(client.clone()))) => panic!("the task ended"),
            changed = answer.changed() => changed.unwrap(),
        }
        *answer.borrow()
    }

    #[tokio::test(start_paused = true)]
    async fn gpu_node_of_the_node_is_found_also_after_errors() {
        assert!(found(client("a", 0)).await);
        assert!(!found(client("b", 0)).await, "it is of another node");
        assert!(found(client("a", 2)).await);
    }
}
