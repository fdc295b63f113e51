//! Deletes pods that a node rejected, if a controller replaces them. They are watched only while a policy wants that.

use crate::{
    leader_election::NotLeader,
    lenient::Lenient,
    metrics::{WorkKind, WriteOutcome},
    pods::{context::PodContext, rejected_pods::RejectedPods},
    watch::WatchHealth,
    work_queue::WorkResult,
};
use gpunode_crds::Reason;
use gpunode_plan::{InterventionCause, PodName, RejectedPod};
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use kube::{
    Api, Client,
    api::{DeleteParams, Preconditions},
};
use std::time::Duration;
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

/// Pause between two deletions: faster than a ReplicaSet makes new pods (about 200 a minute were seen), and no burden to the API
/// server.
const PAUSE: Duration = Duration::from_millis(200);
/// Time until a pod that stays is checked again, since policies and nodes change.
const CHECK_INTERVAL: Duration = Duration::from_mins(1);

/// The task that deletes rejected pods.
pub struct RejectedPodDeleter {
    pub context: PodContext,
    /// Client for the watch.
    pub client: Client,
    /// Learns the age of the watch.
    pub watch_health: WatchHealth,
    /// True while this process leads and a policy wants rejected pods to be deleted.
    pub is_wanted: watch::Receiver<bool>,
}

impl RejectedPodDeleter {
    /// Deletes rejected pods while a policy wants that. Ends when no task is left that could tell.
    pub async fn run(mut self) {
        let health = self.watch_health.optional();
        while self.is_wanted.wait_for(|is_wanted| *is_wanted).await.is_ok() {
            tracing::info!("a policy wants rejected pods to be deleted; watching failed pods");
            let pods = RejectedPods::new();
            tokio::select! {
                () = pods.watch(self.client.clone(), &health) => {}
                () = delete_pods(&self.context, &pods) => {}
                _ = self.is_wanted.wait_for(|is_wanted| !*is_wanted) => {}
            }
        }
    }
}

async fn delete_pods(context: &PodContext, pods: &RejectedPods) {
    let mut leadership = context.leadership.clone();
    loop {
        leadership.acquired().await;
        let name = pods.next().await;
        let result = delete_pod(context, pods, &name).await;
        pods.done(name, result);
        if !matches!(result, WorkResult::RetryAt(_)) {
            sleep(PAUSE).await;
        }
    }
}

/// Deletes one rejected pod, if a policy wants that.
pub async fn delete_pod(context: &PodContext, pods: &RejectedPods, name: &PodName) -> WorkResult {
    let Some(pod) = pods.get(name) else {
        return WorkResult::Done;
    };
    let Some(policy) = context.index.deleting_policy(&pod) else {
        return WorkResult::RetryAt(Instant::now() + CHECK_INTERVAL);
    };
    context.metrics.reconciled(WorkKind::Pod);
    let request = request_deletion(context.guarded_client.clone(), &pod);
    match context.attempt("delete a rejected pod", &pod.node, name, request).await {
        Ok(true) => {
            context.metrics.wrote(WorkKind::Pod);
            tracing::debug!(node = pod.node, pod = %name, "deleted a rejected pod");
            context.count_pod(&pod.node, policy, InterventionCause::RejectedPod, name);
            let message = deleted_text(&pod.node);
            context.announce(reference(&pod), &pod.node, Reason::RejectedPodDeleted, message);
            WorkResult::Done
        }
        Ok(false) => {
            context.metrics.writes.ended(WorkKind::Pod, WriteOutcome::Conflict);
            WorkResult::Conflict
        }
        Err(result) => result,
    }
}

fn deleted_text(node: &str) -> String {
    format!("deleted because node {node} rejected the pod; its controller creates another")
}

/// Returns false if the pod changed or went meanwhile, which the watch tells, or if this process does not lead.
async fn request_deletion(client: Client, pod: &RejectedPod) -> kube::Result<bool> {
    let pods = Api::<Lenient<Pod>>::namespaced(client, &pod.name.namespace);
    let only_this = Preconditions {
        uid: Some(pod.uid.clone()),
        resource_version: Some(pod.resource_version.clone()),
    };
    let params = DeleteParams::default().preconditions(only_this);
    match pods.delete(&pod.name.name, &params).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(false),
        Err(kube::Error::Service(error)) if error.is::<NotLeader>() => Ok(false),
        Err(error) => Err(error),
    }
}

fn reference(pod: &RejectedPod) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some(pod.name.namespace.clone()),
        name: Some(pod.name.name.clone()),
        uid: Some(pod.uid.clone()),
        ..ObjectReference::default()
    }
}
