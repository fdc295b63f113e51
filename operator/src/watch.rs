//! Watches that fill the index.
//!
//! | module | what it does |
//! |---|---|
//! | `watch_health` | kinds that cannot be listed or watched |
//! | `trim` | trims objects to the fields that the planner reads |
//! | `resource_slices` | the metadata of the ResourceSlices of NVIDIA's DRA driver, where the API server has them |

mod resource_slices;
mod trim;
mod watch_health;

pub use watch_health::WatchHealth;

use crate::{
    index::{
        cache::{DeletedObject, WatchUpdate},
        message::IndexMessage,
    },
    lenient::Lenient,
    watch::{
        resource_slices::watch_resource_slices,
        trim::{trimmed_gpu_node, trimmed_policy, without_managed_fields},
    },
};
use futures::StreamExt;
use gpunode_plan::NodeFacts;
use k8s_openapi::api::{apps::v1::DaemonSet, core::v1::Node};
use kube::{
    Api, Client, Resource,
    runtime::{
        WatchStreamExt,
        watcher::{Config, Event, watcher},
    },
};
use serde::de::DeserializeOwned;
use std::{fmt::Debug, pin::pin};
use tokio::{sync::mpsc, time::Instant};

/// Objects per page of a list, so that no response grows with the cluster.
const PAGE: u32 = 500;

/// The task that watches the cluster and sends what it learns to the index.
pub struct ClusterWatch {
    pub client: Client,
    /// Namespace of the DaemonSets.
    pub namespace: String,
    pub messages: mpsc::Sender<IndexMessage>,
    /// Learns which watches fail.
    pub health: WatchHealth,
}

impl ClusterWatch {
    /// Watches for as long as the process lives.
    pub async fn run(self) {
        let Self {
            client,
            namespace,
            messages,
            health,
        } = self;
        let outputs = WatchOutputs {
            messages: &messages,
            health: &health,
        };
        let slices = watch_resource_slices(client.clone(), &messages);
        let (nodes, gpu_nodes) = (Api::all(client.clone()), Api::all(client.clone()));
        let (policies, daemonsets) = (Api::all(client.clone()), Api::namespaced(client, &namespace));
        tokio::join!(
            watch(
                &outputs,
                nodes,
                |node| node.read().map(|node: Node| NodeFacts::of(&node)),
                IndexMessage::Nodes
            ),
            watch(
                &outputs,
                gpu_nodes,
                |gpu_node| gpu_node.read().map(trimmed_gpu_node),
                IndexMessage::GpuNodes
            ),
            watch(
                &outputs,
                policies,
                // One that cannot be read must not count as deleted: its work would be undone.
                |policy| Some(policy.read_or_identify().map(trimmed_policy).into()),
                IndexMessage::Policies
            ),
            watch(
                &outputs,
                daemonsets,
                |daemonset| daemonset.read().map(without_managed_fields::<DaemonSet>),
                IndexMessage::DaemonSets
            ),
            slices,
        );
    }
}

/// Receivers of what a watch brings.
struct WatchOutputs<'a> {
    messages: &'a mpsc::Sender<IndexMessage>,
    health: &'a WatchHealth,
}

/// Watches one kind. A list that fails changes nothing: cached objects stay until a whole list is in. The cached version of an
/// object that cannot be parsed stays too.
async fn watch<K, T>(
    outputs: &WatchOutputs<'_>,
    api: Api<Lenient<K>>,
    read: fn(Lenient<K>) -> Option<T>,
    message: fn(WatchUpdate<T>) -> IndexMessage,
) where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let mut listed = Vec::new();
    let mut events = pin!(watcher(api, Config::default().page_size(PAGE)).default_backoff());
    while let Some(event) = events.next().await {
        let kind = K::plural(&());
        match &event {
            Ok(Event::Init) => outputs.health.began_list(&kind, Instant::now()),
            // The next page may still fail.
            Ok(Event::InitApply(_)) => {}
            Ok(Event::InitDone | Event::Apply(_) | Event::Delete(_)) => outputs.health.worked(&kind),
            Err(error) => outputs.health.failed(&kind, error, Instant::now()),
        }
        let update = match event {
            Ok(Event::Apply(object)) => match read(object) {
                Some(object) => WatchUpdate::applied(object),
                None => continue,
            },
            Ok(Event::Delete(object)) => WatchUpdate::Deleted(deleted(&object)),
            Ok(Event::InitDone) => WatchUpdate::Listed(std::mem::take(&mut listed)),
            Ok(Event::InitApply(object)) => {
                listed.extend(read(object));
                outputs.health.progressed(&kind, listed.len(), Instant::now());
                continue;
            }
            Ok(Event::Init) => {
                listed.clear();
                continue;
            }
            Err(error) => {
                tracing::warn!(%error, "cannot watch {kind}; retrying");
                continue;
            }
        };
        if outputs.messages.send(message(update)).await.is_err() {
            return;
        }
    }
}

fn deleted(object: &impl Resource<DynamicType = ()>) -> DeletedObject {
    let meta = object.meta();
    DeletedObject {
        name: meta.name.clone().unwrap_or_default(),
        version: meta.resource_version.clone().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{Request, Response};
    use kube::client::Body;
    use std::{convert::Infallible, time::Duration};
    use tokio::time::timeout;

    /// Watches nodes of an API server that answers lists so, for a little more than a minute.
    async fn is_failing_after_a_minute(answer: impl Fn(&str) -> Option<(u16, &'static str)> + Send + 'static) -> bool {
        let service = tower::service_fn(move |request: Request<Body>| {
            let answer = answer(request.uri().query().unwrap_or_default());
            async move {
                let Some((code, body)) = answer else {
                    return std::future::pending().await;
                };
                let response = Response::builder().status(code);
                Ok::<_, Infallible>(response.body(Body::from(body.as_bytes().to_vec())).unwrap())
            }
        });
        let (messages, _received) = mpsc::channel(8);
        let health = WatchHealth::default();
        let outputs = WatchOutputs {
            messages: &messages,
            health: &health,
        };
        let nodes = Api::all(Client::new(service, "default"));
        let read = |node: Lenient<Node>| node.read().map(|node| NodeFacts::of(&node));
        let watched = timeout(
            Duration::from_secs(62),
            watch(&outputs, nodes, read, IndexMessage::Nodes),
        )
        .await;
        assert!(watched.is_err(), "a watch has no end");
        health.is_failing(Instant::now())
    }

    const FAILURE: &str =
        r#"{"kind": "Status", "status": "Failure", "code": 500, "reason": "InternalError", "message": "x"}"#;
    const FIRST_PAGE: &str = r#"{"kind": "NodeList", "apiVersion": "v1", "metadata": {"resourceVersion": "1", "continue": "more"},
        "items": [{"metadata": {"name": "n", "resourceVersion": "1"}}]}"#;
    const ONLY_PAGE: &str =
        r#"{"kind": "NodeList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []}"#;

    #[tokio::test(start_paused = true)]
    async fn list_that_fails_hangs_or_lacks_a_page_for_a_minute_is_a_failing_watch() {
        assert!(is_failing_after_a_minute(|_| Some((500, FAILURE))).await);
        assert!(is_failing_after_a_minute(|_| None).await, "no answer");
        let second_page_fails = |query: &str| {
            let is_second = query.contains("continue=");
            Some(if is_second { (500, FAILURE) } else { (200, FIRST_PAGE) })
        };
        assert!(is_failing_after_a_minute(second_page_fails).await);
        // The watch itself starts and brings nothing.
        let works = |query: &str| (!query.contains("watch=")).then_some((200, ONLY_PAGE));
        assert!(!is_failing_after_a_minute(works).await);
    }
}
