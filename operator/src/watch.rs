//! Watches that fill the index.
//!
//! | module | what it does |
//! |---|---|
//! | `list_watch` | lists the objects of a kind and follows their changes, request by request |
//! | `watch_steps` | decides which request a watch makes next, and when |
//! | `response` | requests of lists and watches, and their responses piece by piece |
//! | `watch_health` | kinds that cannot be listed or watched, and the age of what each watch last brought |
//! | `trim` | trims objects to the fields that the planner reads |
//! | `resource_slices` | the metadata of the ResourceSlices of NVIDIA's DRA driver, where the API server has them |

mod list_watch;
mod resource_slices;
mod response;
mod trim;
mod watch_health;
mod watch_steps;

pub use list_watch::{ListWatch, WatchOutputs};
pub use watch_health::WatchHealth;

use crate::{
    index::{cache::WatchUpdate, message::IndexMessage},
    lenient::Lenient,
    watch::{
        resource_slices::watch_resource_slices,
        trim::{trimmed_policy, without_managed_fields},
    },
    watched::Watched,
    written_versions::WrittenVersions,
};
use gpunode_crds::{GpuNode, GpuNodePolicy};
use k8s_openapi::api::{apps::v1::DaemonSet, core::v1::Node};
use kube::Client;
use tokio::sync::mpsc;

/// The task that watches the cluster and sends what it learns to the index.
pub struct ClusterWatch {
    pub client: Client,
    /// Namespace of the DaemonSets.
    pub namespace: String,
    pub messages: mpsc::Sender<IndexMessage>,
    /// Learns which watches fail.
    pub health: WatchHealth,
    /// Versions that the index has without a watch.
    pub written: WrittenVersions,
}

impl ClusterWatch {
    /// Watches for as long as the process lives. A list that fails deletes nothing: cached objects stay until a whole
    /// list is in. The cached version of an object that cannot be parsed stays too.
    pub async fn run(self) {
        let Self {
            client,
            namespace,
            messages,
            health,
            written,
        } = &self;
        let slices_health = health.optional();
        let nodes = ListWatch::new::<Lenient<Watched<Node>>>(client.clone(), &(), None).skipping(written);
        let gpu_nodes = ListWatch::new::<Lenient<Watched<GpuNode>>>(client.clone(), &(), None).skipping(written);
        let policies = ListWatch::new::<Lenient<GpuNodePolicy>>(client.clone(), &(), None).skipping(written);
        let daemonsets = ListWatch::new::<Lenient<DaemonSet>>(client.clone(), &(), Some(namespace)).skipping(written);
        tokio::join!(
            nodes.run(
                |node: Lenient<Watched<Node>>| node.read().map(Watched::into_facts),
                outputs(messages, health, IndexMessage::Nodes)
            ),
            gpu_nodes.run(
                |gpu_node: Lenient<Watched<GpuNode>>| gpu_node.read().map(Watched::into_facts),
                outputs(messages, health, IndexMessage::GpuNodes)
            ),
            policies.run(
                // One that cannot be read must not count as deleted: its work would be undone.
                |policy: Lenient<GpuNodePolicy>| Some(policy.read_or_identify().map(trimmed_policy).into()),
                outputs(messages, health, IndexMessage::Policies)
            ),
            daemonsets.run(
                |daemonset: Lenient<DaemonSet>| daemonset.read().map(without_managed_fields),
                outputs(messages, health, IndexMessage::DaemonSets)
            ),
            watch_resource_slices(client.clone(), messages, &slices_health),
        );
    }
}

fn outputs<'a, T>(
    messages: &'a mpsc::Sender<IndexMessage>,
    health: &'a WatchHealth,
    message: fn(WatchUpdate<T>) -> IndexMessage,
) -> WatchOutputs<'a, T, IndexMessage> {
    WatchOutputs {
        messages,
        message,
        health,
    }
}
