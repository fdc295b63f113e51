//! Watches that fill the index. Objects are trimmed to what the planner reads before they are kept.

use crate::{
    index::{
        Index,
        cache::{Change, Gone},
        work::Effects,
    },
    lenient::Readable,
    reconcile::Controller,
};
use futures::StreamExt;
use gpunode_crds::{GpuNode, GpuNodePolicy, OPERATOR_FIELD_MANAGER};
use gpunode_plan::{NodeFacts, retain_holders_of_unhealthy};
use jiff::Timestamp;
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

/// Objects per request of a list, so that no answer grows with the cluster.
const PAGE: u32 = 500;

/// What an object means that cannot be read where a list brings it.
#[derive(Clone, Copy, PartialEq)]
enum Unreadable {
    /// It is unknown.
    IsSkipped,
    /// The list is not taken in: a policy that a newer operator wrote would count as deleted, and be undone.
    KeepsTheList,
}

/// How the index takes in what a watch of one kind says.
type Take<T> = fn(&mut Index, Change<T>, Timestamp, &mut Effects);

/// Keeps the index up to date; never returns while the process lives.
pub async fn watch_everything(controller: &Controller, client: Client) {
    let daemonsets = Api::<Readable<DaemonSet>>::namespaced(client.clone(), controller.namespace());
    let skip = Unreadable::IsSkipped;
    tokio::join!(
        watch(
            controller,
            Api::<Readable<Node>>::all(client.clone()),
            skip,
            |node| NodeFacts::of(&node),
            Index::take_nodes
        ),
        watch(
            controller,
            Api::<Readable<GpuNode>>::all(client.clone()),
            skip,
            trimmed_gpu_node,
            Index::take_gpu_nodes
        ),
        watch(
            controller,
            Api::<Readable<GpuNodePolicy>>::all(client),
            Unreadable::KeepsTheList,
            trimmed,
            Index::take_policies
        ),
        watch(controller, daemonsets, skip, trimmed, Index::take_daemonsets),
    );
}

/// Watches one kind. A list that fails changes nothing: what is known stays until a whole list has come in. An object that
/// cannot be read stays as it is known.
async fn watch<K, T>(
    controller: &Controller,
    api: Api<Readable<K>>,
    unreadable: Unreadable,
    keep: fn(K) -> T,
    take: Take<T>,
) where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let (mut listed, mut is_whole) = (Vec::new(), true);
    let mut events = pin!(watcher(api, Config::default().page_size(PAGE)).default_backoff());
    while let Some(event) = events.next().await {
        let change = match event {
            Ok(Event::Apply(object)) => match object.read() {
                Some(object) => Change::Set(keep(object)),
                None => continue,
            },
            Ok(Event::Delete(object)) => Change::Gone(Gone::of(&object)),
            Ok(Event::InitDone) if is_whole => Change::All(std::mem::take(&mut listed)),
            Ok(Event::InitDone) => {
                tracing::error!(
                    "list {}: not taken in, since one cannot be read; use an operator of its version",
                    K::plural(&())
                );
                continue;
            }
            Ok(Event::InitApply(object)) => {
                let object = object.read();
                is_whole &= object.is_some() || unreadable == Unreadable::IsSkipped;
                listed.extend(object.map(keep));
                continue;
            }
            Ok(Event::Init) => {
                listed.clear();
                is_whole = true;
                continue;
            }
            Err(error) => {
                tracing::warn!(%error, "watch {}", K::plural(&()));
                continue;
            }
        };
        controller.with_index(|index, now, effects| take(index, change, now, effects));
    }
}

fn trimmed<K: Resource>(mut object: K) -> K {
    object.meta_mut().managed_fields = None;
    object
}

/// Links and holders are the bulk of a `GpuNode`, and holders come and go; the planner needs those of broken devices alone. Of
/// the field managers it reads when the operator wrote last.
fn trimmed_gpu_node(mut gpu_node: GpuNode) -> GpuNode {
    for entry in gpu_node.metadata.managed_fields.iter_mut().flatten() {
        entry.fields_v1 = None;
    }
    if let Some(entries) = &mut gpu_node.metadata.managed_fields {
        entries.retain(|entry| entry.manager.as_deref() == Some(OPERATOR_FIELD_MANAGER));
    }
    if let Some(status) = &mut gpu_node.status {
        retain_holders_of_unhealthy(status);
        for gpu in &mut status.gpus {
            gpu.links = Vec::new();
        }
    }
    gpu_node
}
