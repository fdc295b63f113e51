//! Writes the status of this node's GpuNode, and creates the GpuNode where there is none.

use crate::{
    api_server::gpu_node::{GpuNodeState, ObservedGpuNode, api},
    status::{
        health::set_health_times,
        missing::{keep_missing, next_given_up},
        report::set_times,
    },
};
use gpunode_crds::{AGENT_FIELD_MANAGER, ConditionType, GpuNode, GpuNodeSpec, GpuNodeStatus};
use gpunode_process::OnChange;
use jiff::Timestamp;
use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::apis::meta::v1::OwnerReference};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
    core::ApiResource,
};
use serde_json::json;
use std::time::Duration;
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tracing::{info, warn};

const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Changes within this time go into one write: a restarted agent that registers again at once writes nothing.
const SETTLE: Duration = Duration::from_millis(250);
/// Time between two writes.
const MIN_INTERVAL: Duration = Duration::from_secs(1);
const MAX_RETRY: Duration = Duration::from_secs(30);

/// A status to be written.
#[derive(Clone, Debug, PartialEq)]
pub struct StatusReport {
    /// The status, without transition times.
    pub status: GpuNodeStatus,
    /// True to create the GpuNode if it does not exist.
    pub create: bool,
}

/// A failed call to the API server.
#[derive(Debug, thiserror::Error)]
enum StatusWriteError {
    #[error("{action}: {source}")]
    Call { action: &'static str, source: kube::Error },
    #[error("{action}: no answer within {CALL_TIMEOUT:?}")]
    NoAnswer { action: &'static str },
}

/// Task that writes each new status into this node's GpuNode.
pub struct StatusReporter {
    pub client: Client,
    /// Name of the Node and its GpuNode.
    pub node_name: String,
    /// The status to write; none while this agent does not report for the node.
    pub reports: watch::Receiver<Option<StatusReport>>,
    pub gpu_node: watch::Receiver<GpuNodeState>,
}

impl StatusReporter {
    /// Writes. Does not end.
    pub async fn run(mut self) {
        let mut writer = StatusWriter {
            client: self.client,
            node: self.node_name,
            written: None,
            next_change: None,
        };
        let mut retry = MIN_INTERVAL;
        let mut errors = OnChange::default();
        loop {
            let report = self.reports.borrow_and_update().clone();
            let current = self.gpu_node.borrow_and_update().clone();
            match writer.write(report, &current).await {
                Ok(false) => {}
                Ok(true) => {
                    retry = MIN_INTERVAL;
                    errors.clear();
                    sleep(MIN_INTERVAL).await;
                }
                Err(error) => {
                    if let Some(error) = errors.changed(error) {
                        warn!(error, "cannot write the status of the GpuNode; retrying");
                    }
                    sleep(retry).await;
                    retry = (retry * 2).min(MAX_RETRY);
                    continue;
                }
            }
            let next_change = writer
                .next_change
                .map(|at| Duration::try_from(at.duration_since(Timestamp::now())).unwrap_or_default());
            // An ended channel means that the agent stops.
            let ended = tokio::select! {
                () = sleep(next_change.unwrap_or_default()), if next_change.is_some() => false,
                changed = self.reports.changed() => changed.is_err(),
                changed = self.gpu_node.changed() => changed.is_err(),
            };
            if ended {
                std::future::pending::<()>().await;
            }
            sleep(SETTLE).await;
        }
    }
}

struct StatusWriter {
    client: Client,
    node: String,
    written: Option<WrittenStatus>,
    /// Time at which the status changes by itself: a missing GPU is given up.
    next_change: Option<Timestamp>,
}

/// The last write.
struct WrittenStatus {
    status: GpuNodeStatus,
    /// Version of the object that the watch had shown before the write.
    observed_version: Option<String>,
    /// Version of the object after the write.
    version: Option<String>,
}

impl StatusWriter {
    /// Writes the status if it differs; returns whether it did.
    async fn write(&mut self, report: Option<StatusReport>, gpu_node: &GpuNodeState) -> Result<bool, StatusWriteError> {
        match (report, gpu_node) {
            (Some(report), GpuNodeState::Absent) if report.create => {
                self.create().await?;
                // The watch delivers it.
                Ok(false)
            }
            (None, _) | (Some(_), GpuNodeState::Unknown | GpuNodeState::Absent) => Ok(false),
            (Some(report), GpuNodeState::Present(object)) => {
                let mut status = report.status;
                let now = Timestamp::now();
                let is_new = complete(self.written.as_ref(), &mut status, object, now);
                self.next_change = next_given_up(&status.gpus, now);
                if !is_new {
                    return Ok(false);
                }
                let version = self.apply(&status).await?;
                self.written = Some(WrittenStatus {
                    status,
                    observed_version: object.metadata.resource_version.clone(),
                    version,
                });
                Ok(true)
            }
        }
    }

    /// Applies the status; returns the new version of the object.
    async fn apply(&self, status: &GpuNodeStatus) -> Result<Option<String>, StatusWriteError> {
        let resource = ApiResource::erase::<GpuNode>(&());
        let patch = json!({
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {"name": self.node},
            "status": status,
        });
        let params = PatchParams::apply(AGENT_FIELD_MANAGER).force();
        let patch = Patch::Apply(&patch);
        let object = call(
            "write GpuNode status",
            api(self.client.clone()).patch_status(&self.node, &params, &patch),
        )
        .await?;
        Ok(object.metadata.resource_version)
    }

    /// Creates a GpuNode without configuration; it is deleted with its Node.
    async fn create(&self) -> Result<(), StatusWriteError> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let node = call("read the uid of this Node", nodes.get_metadata(&self.node)).await?;
        let mut object = GpuNode::new(&self.node, GpuNodeSpec::default());
        object.metadata.owner_references = Some(vec![OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Node".to_owned(),
            name: self.node.clone(),
            uid: node.metadata.uid.unwrap_or_default(),
            ..OwnerReference::default()
        }]);
        let params = PostParams {
            field_manager: Some(AGENT_FIELD_MANAGER.to_owned()),
            ..PostParams::default()
        };
        let gpu_nodes: Api<GpuNode> = Api::all(self.client.clone());
        match call("create the GpuNode", gpu_nodes.create(&params, &object)).await {
            Ok(_) => info!(node = self.node, "GpuNode created"),
            // The operator created it first.
            Err(StatusWriteError::Call {
                source: kube::Error::Api(status),
                ..
            }) if status.is_already_exists() => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

/// Adds to a status what depends on the one before it; returns whether the two differ.
fn complete(
    written: Option<&WrittenStatus>,
    status: &mut GpuNodeStatus,
    object: &ObservedGpuNode,
    now: Timestamp,
) -> bool {
    // Nothing to write if the watch has not delivered the last write yet, or if the API server normalised it and nobody changed
    // it since.
    let is_current =
        |it: &&WrittenStatus| [&it.observed_version, &it.version].contains(&&object.metadata.resource_version);
    let before = match written.filter(is_current) {
        Some(written) => written.status.clone(),
        // A status that cannot be read was written by a newer agent, and is replaced.
        None => object
            .status
            .as_ref()
            .and_then(|live| serde_json::from_value(live.clone()).ok())
            .map(without_operator_conditions)
            .unwrap_or_default(),
    };
    set_times(status, &before, now);
    set_health_times(status, &before, now);
    keep_missing(status, &before, now);
    if status.runtime.is_none() {
        // The agent has just started, and has not read it yet.
        status.runtime.clone_from(&before.runtime);
    }
    *status != before
}

/// The part of a status that the agent writes.
fn without_operator_conditions(mut status: GpuNodeStatus) -> GpuNodeStatus {
    status.conditions.retain(|condition| {
        ConditionType::OF_OPERATOR
            .iter()
            .all(|theirs| theirs.as_str() != condition.type_)
    });
    status
}

async fn call<T>(action: &'static str, request: impl Future<Output = kube::Result<T>>) -> Result<T, StatusWriteError> {
    match timeout(CALL_TIMEOUT, request).await {
        Ok(answer) => answer.map_err(|source| StatusWriteError::Call { action, source }),
        Err(_) => Err(StatusWriteError::NoAnswer { action }),
    }
}

#[cfg(test)]
mod tests;
