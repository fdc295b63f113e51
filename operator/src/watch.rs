//! Watches that fill the index.
//!
//! | module | what it does |
//! |---|---|
//! | `trim` | trims objects to the fields that the planner reads |

mod trim;

use crate::{
    index::{
        cache::{DeletedObject, WatchUpdate},
        message::IndexMessage,
    },
    lenient::Lenient,
    watch::trim::{trimmed_gpu_node, without_managed_fields},
};
use futures::StreamExt;
use gpunode_crds::GpuNodePolicy;
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
use tokio::sync::mpsc;

/// Objects per page of a list, so that no response grows with the cluster.
const PAGE: u32 = 500;

/// Treatment of a list with an object that cannot be parsed.
#[derive(Clone, Copy, PartialEq)]
enum MalformedObject {
    /// The object is left out.
    Skip,
    /// The whole list is left out: a policy from a newer operator would count as deleted, and its work would be undone.
    RejectList,
}

/// The task that watches the cluster and sends what it learns to the index.
pub struct ClusterWatch {
    pub client: Client,
    /// Namespace of the DaemonSets.
    pub namespace: String,
    pub messages: mpsc::Sender<IndexMessage>,
}

impl ClusterWatch {
    /// Watches for as long as the process lives.
    pub async fn run(self) {
        let Self {
            client,
            namespace,
            messages,
        } = self;
        let (nodes, gpu_nodes) = (Api::all(client.clone()), Api::all(client.clone()));
        let (policies, daemonsets) = (Api::all(client.clone()), Api::namespaced(client, &namespace));
        let skip = MalformedObject::Skip;
        tokio::join!(
            watch(
                &messages,
                nodes,
                skip,
                |node: Node| NodeFacts::of(&node),
                IndexMessage::Nodes
            ),
            watch(&messages, gpu_nodes, skip, trimmed_gpu_node, IndexMessage::GpuNodes),
            watch(
                &messages,
                policies,
                MalformedObject::RejectList,
                without_managed_fields::<GpuNodePolicy>,
                IndexMessage::Policies
            ),
            watch(
                &messages,
                daemonsets,
                skip,
                without_managed_fields::<DaemonSet>,
                IndexMessage::DaemonSets
            ),
        );
    }
}

/// Watches one kind. A list that fails changes nothing: cached objects stay until a whole list is in. The cached version of an
/// object that cannot be parsed stays too.
async fn watch<K, T>(
    messages: &mpsc::Sender<IndexMessage>,
    api: Api<Lenient<K>>,
    malformed: MalformedObject,
    trim: fn(K) -> T,
    message: fn(WatchUpdate<T>) -> IndexMessage,
) where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let (mut listed, mut is_whole) = (Vec::new(), true);
    let mut events = pin!(watcher(api, Config::default().page_size(PAGE)).default_backoff());
    while let Some(event) = events.next().await {
        let update = match event {
            Ok(Event::Apply(object)) => match object.read() {
                Some(object) => WatchUpdate::applied(trim(object)),
                None => continue,
            },
            Ok(Event::Delete(object)) => WatchUpdate::Deleted(deleted(&object)),
            Ok(Event::InitDone) if is_whole => WatchUpdate::Listed(std::mem::take(&mut listed)),
            Ok(Event::InitDone) => {
                let kind = K::plural(&());
                tracing::error!(
                    "ignored a list of {kind}: an object cannot be parsed; install an operator of its version"
                );
                continue;
            }
            Ok(Event::InitApply(object)) => {
                let object = object.read();
                is_whole &= object.is_some() || malformed == MalformedObject::Skip;
                listed.extend(object.map(trim));
                continue;
            }
            Ok(Event::Init) => {
                listed.clear();
                is_whole = true;
                continue;
            }
            Err(error) => {
                tracing::warn!(%error, "cannot watch {}; retrying", K::plural(&()));
                continue;
            }
        };
        if messages.send(message(update)).await.is_err() {
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
