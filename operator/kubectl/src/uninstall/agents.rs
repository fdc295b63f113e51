//! Deletes the DaemonSets and waits until their pods have ended.

use super::{
    installed::InstalledObject,
    nodes::ready_nodes,
    removal::{Removal, pause},
    requests::request,
};
use crate::output::plural;
use gpunode_plan::MANAGED_BY_LABEL;
use k8s_openapi::api::{apps::v1::DaemonSet, core::v1::Pod};
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DeleteParams, ListParams, Preconditions},
};
use std::time::{Duration, Instant};

/// Selects every pod of gpunode: agents, discovery, MPS daemons, and an operator pod left on a node that does not answer.
const PODS: &str = "app.kubernetes.io/name in (gpunode-agent,gpunode-operator)";
/// Longest wait for the pods, whose grace period is at most 30 s.
const LIMIT: Duration = Duration::from_mins(1);
/// Wait before a pod on a node that does not answer is deleted by force.
const PATIENCE: Duration = Duration::from_secs(20);

const STEP: &str = "agents";

/// Lists the operator's DaemonSets.
pub async fn daemonsets(removal: &Removal) -> anyhow::Result<Vec<InstalledObject>> {
    let labels = format!("{MANAGED_BY_LABEL}=gpunode-operator");
    let names = removal
        .requests
        .names::<DaemonSet>(Some(&removal.requests.namespace), &labels)
        .await?;
    let (kind, namespace) = (
        ApiResource::erase::<DaemonSet>(&()),
        Some(removal.requests.namespace.clone()),
    );
    let daemonset = |name| InstalledObject {
        kind: kind.clone(),
        namespace: namespace.clone(),
        name,
    };
    Ok(names.into_iter().map(daemonset).collect())
}

/// Deletes the DaemonSets. Their pods end in the background.
pub async fn delete_daemonsets(removal: &mut Removal) {
    match daemonsets(removal).await {
        Ok(daemonsets) => {
            for daemonset in &daemonsets {
                removal.delete(daemonset).await;
            }
        }
        Err(error) => removal.leave("DaemonSets", format!("{error:#}")),
    }
}

/// Waits until every pod of gpunode has ended.
pub async fn await_agents(removal: &mut Removal) {
    let began = Instant::now();
    let end = removal.within(LIMIT);
    loop {
        let pods = match removal
            .requests
            .names::<Pod>(Some(&removal.requests.namespace), PODS)
            .await
        {
            Ok(pods) => pods,
            Err(error) => return removal.leave("pods on the nodes", format!("{error:#}")),
        };
        if pods.is_empty() {
            return removal.progress.done(STEP, "all pods ended");
        }
        if Instant::now() >= end {
            let names = pods.iter().take(5).cloned().collect::<Vec<_>>().join(", ");
            let why = format!(
                "still running; see `kubectl -n {} describe pod {names}`",
                removal.requests.namespace
            );
            return removal.leave(&plural(pods.len(), "pod", "pods"), why);
        }
        if began.elapsed() >= PATIENCE
            && let Err(error) = forget_pods_of_dead_nodes(removal).await
        {
            return removal.leave("pods of nodes that do not answer", format!("{error:#}"));
        }
        removal.progress.doing(
            STEP,
            &format!("waiting for {} to end", plural(pods.len(), "pod", "pods")),
        );
        pause().await;
    }
}

/// Deletes pods by force whose kubelet does not answer and so cannot confirm their end. When it answers again, it ends pods
/// that the API server no longer has.
async fn forget_pods_of_dead_nodes(removal: &Removal) -> anyhow::Result<()> {
    let api: Api<Pod> = Api::namespaced(removal.requests.client.clone(), &removal.requests.namespace);
    let pods = request("list pods", api.list(&ListParams::default().labels(PODS))).await?;
    let ready = ready_nodes(&removal.requests.client).await?;
    let answers = |pod: &Pod| {
        pod.spec
            .as_ref()
            .and_then(|spec| spec.node_name.as_ref())
            .is_some_and(|node| ready.contains(node))
    };
    let ending = |pod: &Pod| pod.metadata.deletion_timestamp.is_some();
    for pod in pods.into_iter().flatten().filter(|pod| ending(pod) && !answers(pod)) {
        let guard = Preconditions {
            uid: pod.uid(),
            resource_version: None,
        };
        let params = DeleteParams::default().grace_period(0).preconditions(guard);
        request("delete pod", api.delete(&pod.name_any(), &params)).await?;
    }
    Ok(())
}
