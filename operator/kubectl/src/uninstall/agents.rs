//! The end of the pods on the nodes.

use super::{Installed, Removal, nodes::ready_nodes, requests::request};
use crate::output::plural;
use gpunode_plan::MANAGED_BY_LABEL;
use k8s_openapi::api::{apps::v1::DaemonSet, core::v1::Pod};
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DeleteParams, ListParams, Preconditions},
};
use std::time::{Duration, Instant};

/// Labels of every pod of gpunode: agents, discovery and MPS daemons, and the operator's, of which one may be left on a node
/// that does not answer.
const PODS: &str = "app.kubernetes.io/name in (gpunode-agent,gpunode-operator)";
/// Longest wait for them. Their grace period is 30 s at most.
const LIMIT: Duration = Duration::from_mins(1);
/// How long a pod may take whose node does not answer.
const PATIENCE: Duration = Duration::from_secs(20);

const STEP: &str = "agents";

impl Removal {
    /// The DaemonSets of the operator.
    pub async fn daemonsets(&self) -> anyhow::Result<Vec<Installed>> {
        let labels = format!("{MANAGED_BY_LABEL}=gpunode-operator");
        let names = self.names::<DaemonSet>(Some(&self.namespace), &labels).await?;
        let (kind, namespace) = (ApiResource::erase::<DaemonSet>(&()), Some(self.namespace.clone()));
        let daemonset = |name| Installed {
            kind: kind.clone(),
            namespace: namespace.clone(),
            name,
        };
        Ok(names.into_iter().map(daemonset).collect())
    }

    /// Deletes the DaemonSets; their pods end meanwhile.
    pub async fn delete_daemonsets(&mut self) {
        match self.daemonsets().await {
            Ok(daemonsets) => {
                for daemonset in &daemonsets {
                    self.delete(daemonset).await;
                }
            }
            Err(error) => self.leave("DaemonSets", format!("{error:#}")),
        }
    }

    /// Waits until no pod of gpunode is left on any node.
    pub async fn await_agents(&mut self) {
        let began = Instant::now();
        let end = self.within(LIMIT);
        loop {
            let pods = match self.names::<Pod>(Some(&self.namespace), PODS).await {
                Ok(pods) => pods,
                Err(error) => return self.leave("pods on the nodes", format!("{error:#}")),
            };
            if pods.is_empty() {
                return self.progress.done(STEP, "no pod is left");
            }
            if Instant::now() >= end {
                let names = pods.iter().take(5).cloned().collect::<Vec<_>>().join(", ");
                let why = format!(
                    "it does not end; see `kubectl -n {} describe pod {names}`",
                    self.namespace
                );
                return self.leave(&plural(pods.len(), "pod", "pods"), why);
            }
            if began.elapsed() >= PATIENCE
                && let Err(error) = self.forget_pods_of_dead_nodes().await
            {
                return self.leave("pods of nodes that do not answer", format!("{error:#}"));
            }
            self.progress.doing(
                STEP,
                &format!("waiting for {} to end", plural(pods.len(), "pod", "pods")),
            );
            self.pause().await;
        }
    }

    /// Nobody confirms the end of a pod whose kubelet does not answer; when it does again, it ends what the API server
    /// does not know.
    async fn forget_pods_of_dead_nodes(&self) -> anyhow::Result<()> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let pods = request("list pods", api.list(&ListParams::default().labels(PODS))).await?;
        let ready = ready_nodes(&self.client).await?;
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
}
