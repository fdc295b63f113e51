//! Tells the index when no pod is left on a node that does not tolerate a new taint, and judges the pods of a node that is drained
//! for a change of its GPUs. Only such nodes are looked at: at most `maxUnavailable` of each policy, so the pods of the cluster
//! need no watch.

use crate::{
    index::message::IndexMessage,
    lenient::Lenient,
    metrics::WorkKind,
    pods::context::PodContext,
    work_queue::{WorkQueue, WorkResult},
};
use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, api::ListParams};
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};

/// Lists at a time, so that a slow answer about one node does not hold up all others.
const WORKERS: usize = 2;
/// Time until a node with pods that have to go is looked at again.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// Pause after each list, so that hundreds of nodes are no burden to the API server.
const PAUSE: Duration = Duration::from_millis(50);

/// The task that looks at the pods of nodes from which pods are evicted.
pub struct DrainWatcher {
    pub context: PodContext,
    /// Client that only reads.
    pub client: Client,
    pub queue: Arc<WorkQueue<String>>,
    pub messages: mpsc::Sender<IndexMessage>,
}

impl DrainWatcher {
    /// Looks at pods for as long as the process lives, while it leads.
    pub async fn run(self) {
        join_all((0..WORKERS).map(|_| self.work())).await;
    }

    async fn work(&self) {
        let mut leadership = self.context.leadership.clone();
        loop {
            leadership.acquired().await;
            let node = self.queue.next().await;
            let result = self.check(&node).await;
            self.queue.done(node, result);
            sleep(PAUSE).await;
        }
    }

    /// Looks at the pods of one node, if there still is a reason to.
    pub async fn check(&self, node: &str) -> WorkResult {
        let Some(drain) = self.context.index.drain(node) else {
            return WorkResult::Done;
        };
        self.context.metrics.reconciled(WorkKind::Pod);
        let pods = Api::<Lenient<Pod>>::all(self.client.clone());
        let of_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
        let list = pods.list(&of_node);
        let list = match self
            .context
            .attempt_on_node("list the pods of a node", node, list)
            .await
        {
            Ok(list) => list,
            Err(result) => return result,
        };
        if let Some(review) = &drain.review {
            // A pod that cannot be parsed is not evicted either.
            let pods: Vec<Pod> = list.items.iter().cloned().filter_map(Lenient::into_object).collect();
            let (node, reviewed) = (node.to_owned(), review.judge(&pods));
            // Fails only while the process is stopping.
            let _ = self.messages.send(IndexMessage::PodsReviewed { node, reviewed }).await;
        }
        let drain = drain.taints;
        if drain.is_empty() {
            return WorkResult::Done;
        }
        // Nobody knows what a pod tolerates that cannot be parsed: it holds the next nodes up until the deadline.
        let pods: Option<Vec<Pod>> = list.items.into_iter().map(Lenient::into_object).collect();
        if pods.is_none_or(|pods| !drain.is_over(&pods)) {
            return WorkResult::RetryAt(Instant::now() + CHECK_INTERVAL);
        }
        // A drain of the fleet has one of these for each node; the status of the policy has the counts.
        tracing::debug!(node, "no pod is left that does not tolerate a new taint");
        let node = node.to_owned();
        // Fails only while the process is stopping.
        let _ = self.messages.send(IndexMessage::Drained { node, drain }).await;
        WorkResult::Done
    }
}
