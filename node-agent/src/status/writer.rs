//! Writes the status of this node's GpuNode, and creates the GpuNode where there is none.

use crate::{
    api_server::gpu_node::{GpuNodeState, ObservedGpuNode, api},
    status::{
        health::set_health_times,
        mig_phases::set_phase_times,
        missing::{keep_missing, next_given_up},
        patch::{keep_foreign_conditions, merge_patch},
        report::set_times,
        start_mark::StartMark,
        step::set_finished_step,
    },
};
use gpunode_crds::{AGENT_FIELD_MANAGER, ConditionType, GpuNode, GpuNodeSpec, GpuNodeStatus, OPERATOR_FIELD_MANAGER};
use gpunode_process::{OnChange, RetryPace, within};
use jiff::Timestamp;
use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::apis::meta::v1::OwnerReference};
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Map, Value, json};
use std::{collections::BTreeSet, time::Duration};
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until},
};
use tracing::{debug, info, warn};

const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Changes within this time go into one write: a restarted agent that registers again at once writes nothing.
const SETTLE: Duration = Duration::from_millis(250);
/// Time between two writes.
const MIN_INTERVAL: Duration = Duration::from_secs(1);
/// Time for which an agent that starts waits until it has registered and knows the holders. An agent that restarts has
/// the same to say afterwards as before, and writes nothing: thousands may do so in the same minute.
///
/// After an agent that ended within this time, the next one reports at once that it is not ready, and nothing else
/// before it has lived for so long. So agents that end soon after each start cost one write, whatever the number.
const START_GRACE: Duration = Duration::from_secs(5);

/// A status to be written.
#[derive(Clone, Debug, PartialEq)]
pub struct StatusReport {
    /// The status, without transition times.
    pub status: GpuNodeStatus,
    /// True to create the GpuNode if it does not exist.
    pub create: bool,
    /// False while the agent is not ready, as after its start.
    pub is_settled: bool,
}

/// A failed call to the API server.
#[derive(Debug, thiserror::Error)]
enum StatusWriteError {
    #[error("{action}: {source}")]
    Call { action: &'static str, source: kube::Error },
    #[error("{action}: no answer within {CALL_TIMEOUT:?}")]
    NoAnswer { action: &'static str },
}

/// End of a try to write the status.
#[derive(Debug, PartialEq, Eq)]
enum StatusWriteOutcome {
    /// There is nothing to write.
    Unchanged,
    Written,
    /// The GpuNode is newer than the one that the change was made for.
    Outdated,
}

impl StatusWriteError {
    fn is_conflict(&self) -> bool {
        matches!(self, Self::Call { source: kube::Error::Api(status), .. } if status.is_conflict())
    }
}

/// Task that writes each new status into this node's GpuNode.
pub struct StatusReporter {
    pub client: Client,
    /// Name of the Node and its GpuNode.
    pub node_name: String,
    /// The status to write; none while this agent does not report for the node.
    pub reports: watch::Receiver<Option<StatusReport>>,
    pub gpu_node: watch::Receiver<GpuNodeState>,
    /// Mark of the start of an agent that settles some time later, if it does.
    pub start_mark: Option<StartMark>,
}

impl StatusReporter {
    /// Writes. Does not end.
    pub async fn run(mut self) {
        let mark = self.start_mark.take();
        let start = StartGrace {
            follows_early_death: mark.as_ref().is_some_and(StartMark::was_there),
            ..StartGrace::default()
        };
        let remove_mark = async {
            sleep(START_GRACE).await;
            if let Some(mark) = mark {
                mark.remove().await;
            }
        };
        tokio::join!(self.write_reports(start), remove_mark);
    }

    async fn write_reports(mut self, mut start: StartGrace) {
        let mut writer = StatusWriter {
            client: self.client,
            node: self.node_name,
            written: None,
            newest: None,
            reads_first: false,
            next_change: None,
        };
        let mut pace = RetryPace::default();
        let mut errors = OnChange::default();
        loop {
            let report = self.reports.borrow_and_update().clone();
            let current = self.gpu_node.borrow_and_update().clone();
            let grace_end = report
                .as_ref()
                .and_then(|report| start.end(report.is_settled, &current, Instant::now()));
            if let Some(end) = grace_end {
                tokio::select! {
                    () = sleep_until(end) => {}
                    _ = self.reports.changed() => sleep(SETTLE).await,
                    _ = self.gpu_node.changed() => sleep(SETTLE).await,
                }
                continue;
            }
            let is_known = report.is_some() && matches!(current, GpuNodeState::Present(_));
            match writer.write(report, &current).await {
                Ok(StatusWriteOutcome::Unchanged) => {}
                Ok(StatusWriteOutcome::Written) => {
                    pace = RetryPace::default();
                    errors.clear();
                    sleep(MIN_INTERVAL).await;
                }
                Ok(StatusWriteOutcome::Outdated) => {
                    // Mostly the watch brings the other change at once. A silent one must not delay this one.
                    tokio::select! {
                        () = sleep(pace.failed()) => writer.reads_first = true,
                        _ = self.gpu_node.changed() => sleep(SETTLE).await,
                    }
                    continue;
                }
                Err(error) => {
                    if let Some(error) = errors.changed(error) {
                        warn!(error, "cannot write the status of the GpuNode; retrying");
                    }
                    sleep(pace.failed()).await;
                    continue;
                }
            }
            start.has_reported |= is_known;
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

/// Time in which an agent that starts does not report that it is unsettled.
#[derive(Debug, Default)]
struct StartGrace {
    end: Option<Instant>,
    is_over: bool,
    /// True if the agent before this one died in its own grace.
    follows_early_death: bool,
    /// True once a report is in the GpuNode.
    has_reported: bool,
}

impl StartGrace {
    /// Returns the time until which a report waits; none if it may be written, as on a node that has no status yet.
    fn end(&mut self, is_settled: bool, gpu_node: &GpuNodeState, now: Instant) -> Option<Instant> {
        let end = *self.end.get_or_insert(now + START_GRACE);
        let has_status = matches!(gpu_node, GpuNodeState::Present(object) if object.status.is_some());
        self.is_over |= (is_settled && !self.follows_early_death) || now >= end;
        let is_warning = self.follows_early_death && !is_settled && !self.has_reported;
        (has_status && !self.is_over && !is_warning).then_some(end)
    }
}

struct StatusWriter {
    client: Client,
    node: String,
    written: Option<WrittenStatus>,
    /// The object that was read after a conflict, until it is written or the watch brings another one.
    newest: Option<NewestGpuNode>,
    /// True if the next write has to read the object first.
    reads_first: bool,
    /// Time at which the status changes by itself: a missing GPU is given up.
    next_change: Option<Timestamp>,
}

/// A GpuNode that is newer than what the watch has brought.
struct NewestGpuNode {
    /// Version of the object that the watch had shown before.
    observed_version: Option<String>,
    object: ObservedGpuNode,
}

/// The last write.
struct WrittenStatus {
    status: GpuNodeStatus,
    /// Version of the object that the watch had shown before the write.
    observed_version: Option<String>,
    /// Version of the object after the write.
    version: Option<String>,
    /// The object after the write, until the watch brings it.
    answer: Option<ObservedGpuNode>,
}

impl StatusWriter {
    /// Writes the status if it differs.
    async fn write(
        &mut self,
        report: Option<StatusReport>,
        gpu_node: &GpuNodeState,
    ) -> Result<StatusWriteOutcome, StatusWriteError> {
        match (report, gpu_node) {
            (Some(report), GpuNodeState::Absent) if report.create => {
                self.create().await?;
                // The watch delivers it.
                Ok(StatusWriteOutcome::Unchanged)
            }
            (None, _) | (Some(_), GpuNodeState::Unknown | GpuNodeState::Absent) => Ok(StatusWriteOutcome::Unchanged),
            (Some(report), GpuNodeState::Present(shown)) => {
                let observed_version = shown.metadata.resource_version.clone();
                self.read_newest(observed_version.as_deref()).await?;
                let object = self.newest.as_ref().map_or(&**shown, |newest| &newest.object);
                let mut status = report.status;
                let now = Timestamp::now();
                if let Some(written) = &mut self.written
                    && written.observed_version != observed_version
                {
                    written.answer = None;
                }
                let patch = planned_patch(self.written.as_ref(), &mut status, object, now);
                self.next_change = next_given_up(&status.gpus, now);
                let Some(patch) = patch else {
                    return Ok(StatusWriteOutcome::Unchanged);
                };
                let answer = match self.patch_whole(&patch, &status).await {
                    Ok(answer) => answer,
                    // Such as the operator, which changed its conditions meanwhile.
                    Err(error) if error.is_conflict() => {
                        debug!(%error, "the GpuNode changed meanwhile");
                        return Ok(StatusWriteOutcome::Outdated);
                    }
                    Err(error) => return Err(error),
                };
                let version = answer.metadata.resource_version.clone();
                self.newest = None;
                self.written = Some(WrittenStatus {
                    status,
                    answer: (version != observed_version).then_some(answer),
                    observed_version,
                    version,
                });
                Ok(StatusWriteOutcome::Written)
            }
        }
    }

    /// Reads the object if the last write was made for an older one and the watch, which shows `observed_version`, has
    /// brought none since. Forgets what was read before the watch brought another one.
    async fn read_newest(&mut self, observed_version: Option<&str>) -> Result<(), StatusWriteError> {
        self.newest
            .take_if(|newest| newest.observed_version.as_deref() != observed_version);
        if !self.reads_first {
            return Ok(());
        }
        // A list of one, for which agents need no further permission.
        let only_this = ListParams::default().fields(&format!("metadata.name={}", self.node));
        let list = call("read the GpuNode again", api(self.client.clone()).list(&only_this)).await?;
        self.reads_first = false;
        // If it is gone, the watch tells.
        self.newest = list.items.into_iter().next().map(|object| NewestGpuNode {
            observed_version: observed_version.map(str::to_owned),
            object,
        });
        Ok(())
    }

    /// Changes the status, once more if it is not as wanted then: somebody changed it meanwhile, or the object is another one.
    /// Returns the object after it.
    async fn patch_whole(&self, patch: &Value, status: &GpuNodeStatus) -> Result<ObservedGpuNode, StatusWriteError> {
        let answer = self.patch(patch).await?;
        match status_change(&answer, status) {
            Some(rest) => self.patch(&rest).await,
            None => Ok(answer),
        }
    }

    /// Changes the status; returns the object after it.
    async fn patch(&self, patch: &Value) -> Result<ObservedGpuNode, StatusWriteError> {
        let params = PatchParams {
            field_manager: Some(AGENT_FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let patch = Patch::Merge(patch);
        call(
            "write GpuNode status",
            api(self.client.clone()).patch_status(&self.node, &params, &patch),
        )
        .await
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

/// Adds to a status what depends on the one before it. Returns the patch that writes it; none if nothing changed.
fn planned_patch(
    written: Option<&WrittenStatus>,
    status: &mut GpuNodeStatus,
    object: &ObservedGpuNode,
    now: Timestamp,
) -> Option<Value> {
    // Nothing to write if the watch has not delivered the last write yet, or if the API server normalised it and nobody changed
    // it since.
    let is_current =
        |it: &&WrittenStatus| [&it.observed_version, &it.version].contains(&&object.metadata.resource_version);
    let written = written.filter(is_current);
    let before = match written {
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
    set_phase_times(status, &before, now);
    keep_missing(status, &before, now);
    set_finished_step(status, &before, &object.spec);
    if status.finished_change.is_none() {
        // A change that is over stays over.
        status.finished_change.clone_from(&before.finished_change);
    }
    if status.runtime.is_none() {
        // The agent has just started, and has not read it yet.
        status.runtime.clone_from(&before.runtime);
    }
    // As JSON, whose times have whole seconds: those that an agent reads back after a restart have no others.
    if written.is_some_and(|written| json!(written.status) == json!(*status)) {
        return None;
    }
    let answer = written.and_then(|written| written.answer.as_ref());
    status_change(answer.unwrap_or(object), status)
}

/// Returns the patch that makes `status` of the agent's part of the status in `object`; none if it is that already.
fn status_change(object: &ObservedGpuNode, status: &GpuNodeStatus) -> Option<Value> {
    let empty = json!({});
    let live = object.status.as_ref().unwrap_or(&empty);
    let theirs = operator_conditions(object);
    let is_ours = |name: &str| status.conditions.iter().any(|condition| condition.type_ == name);
    let mut wanted = json!(status);
    keep_foreign_conditions(&mut wanted, live, |name| theirs.contains(name) && !is_ours(name));
    let changes = merge_patch(live, &wanted)?;
    // The list of conditions is replaced with those of the operator in it, which may have changed since.
    let metadata = changes
        .get("conditions")
        .map(|_| json!({"resourceVersion": object.metadata.resource_version}));
    Some(match metadata {
        Some(metadata) => json!({"metadata": metadata, "status": changes}),
        None => json!({"status": changes}),
    })
}

/// Returns the types of the operator's conditions: those that this version knows, and those that the API server has
/// down as the operator's, which may be a newer one.
fn operator_conditions(object: &ObservedGpuNode) -> BTreeSet<String> {
    let known = ConditionType::OF_OPERATOR.map(|of| of.as_str().to_owned());
    let entries = object.metadata.managed_fields.iter().flatten();
    let applied = entries
        .filter(|entry| entry.manager.as_deref() == Some(OPERATOR_FIELD_MANAGER))
        .filter_map(|entry| {
            entry
                .fields_v1
                .as_ref()?
                .0
                .pointer("/f:status/f:conditions")?
                .as_object()
        })
        .flat_map(Map::keys)
        // Such as `k:{"type":"Conflict"}`.
        .filter_map(|key| serde_json::from_str::<Value>(key.strip_prefix("k:")?).ok())
        .filter_map(|key| Some(key.get("type")?.as_str()?.to_owned()));
    known.into_iter().chain(applied).collect()
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
    match within(CALL_TIMEOUT, request).await {
        Some(answer) => answer.map_err(|source| StatusWriteError::Call { action, source }),
        None => Err(StatusWriteError::NoAnswer { action }),
    }
}

#[cfg(test)]
mod tests;
