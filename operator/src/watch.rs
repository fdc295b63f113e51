//! Watches that fill the index.
//!
//! | module | what it does |
//! |---|---|
//! | `watch_health` | watches that cannot be started |
//! | `trim` | trims objects to the fields that the planner reads |

mod trim;
mod watch_health;

pub use watch_health::WatchHealth;

use crate::{
    index::{
        cache::{DeletedObject, WatchUpdate},
        message::IndexMessage,
    },
    lenient::Lenient,
    watch::trim::{trimmed_gpu_node, trimmed_policy, without_managed_fields},
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
            Ok(_) => outputs.health.worked(&kind),
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
