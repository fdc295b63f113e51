//! Plays the agents and kubelets of a fleet: follows `GpuNode.spec`, answers in the status, and sends heartbeats.

use crate::{
    api::{ApiClient, GPU_NODES, NODES, PatchForm},
    objects::{AgentReport, node_name, status_patch},
};
use anyhow::{Context, Result};
use futures::TryStreamExt as _;
use gpunode_crds::AGENT_FIELD_MANAGER;
use http::Request;
use jiff::Timestamp;
use kube::api::WatchEvent;
use serde::Deserialize;
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    task::JoinHandle,
    time::{MissedTickBehavior, interval, sleep},
};

/// Time between two reports of a kubelet about an unchanged node (`nodeStatusReportFrequency`).
pub const HEARTBEAT: Duration = Duration::from_mins(5);
/// Pause before a lost watch starts anew, and before a refused status is sent again.
const RETRY: Duration = Duration::from_millis(500);

/// The agents of a fleet; they stop when the value is dropped.
pub struct SimulatedAgents {
    state: Arc<AgentsState>,
    tasks: Vec<JoinHandle<()>>,
}

struct AgentsState {
    api: ApiClient,
    behaviour: Mutex<AgentBehaviour>,
    /// Newest objects of nodes whose agents are silent.
    missed: Mutex<BTreeMap<String, GpuNodeView>>,
    reports: Mutex<BTreeMap<String, SimulatedReport>>,
    /// Moment just before the last accepted answer of each node was sent.
    answered: Mutex<BTreeMap<String, Timestamp>>,
    answers: AtomicUsize,
    heartbeats: AtomicUsize,
}

/// Report of one agent.
#[derive(Clone, Debug, Default)]
struct SimulatedReport {
    /// Its present state.
    wanted: AgentReport,
    /// The state that the API server has; at first that of an agent that has just created its `GpuNode`.
    sent: AgentReport,
}

/// Behaviour of all agents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentBehaviour {
    /// Time from a new configuration to the status that reports it in force.
    pub delay: Duration,
    /// Nodes whose agents do not answer, until another behaviour is set.
    pub silent: BTreeSet<String>,
}

#[derive(Clone, Debug, Deserialize)]
struct GpuNodeView {
    metadata: ViewName,
    #[serde(default)]
    spec: ViewSpec,
}

#[derive(Clone, Debug, Deserialize)]
struct ViewName {
    name: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct ViewSpec {
    #[serde(default)]
    config: Option<ViewConfig>,
    #[serde(default)]
    step: Option<ViewStep>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ViewStep {
    started_at: String,
    #[serde(default)]
    failed: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
struct ViewConfig {
    policy: String,
    hash: String,
}

impl SimulatedAgents {
    /// Starts the agents: one watch for all of them, as the API server has enough to do.
    pub fn start(api: ApiClient) -> Self {
        let state = Arc::new(AgentsState {
            api,
            behaviour: Mutex::default(),
            missed: Mutex::default(),
            reports: Mutex::default(),
            answered: Mutex::default(),
            answers: AtomicUsize::new(0),
            heartbeats: AtomicUsize::new(0),
        });
        let task = tokio::spawn(follow(state.clone()));
        Self {
            state,
            tasks: vec![task],
        }
    }

    /// Sends heartbeats of this number of nodes, each every five minutes, evenly spread.
    pub fn send_heartbeats(&mut self, nodes: usize) {
        self.tasks.push(tokio::spawn(heartbeats(self.state.clone(), nodes)));
    }

    /// Number of heartbeats that the API server has accepted.
    pub fn heartbeats(&self) -> usize {
        self.state.heartbeats.load(Ordering::Relaxed)
    }

    /// Sets the behaviour from now on. Agents that are no longer silent answer what they missed. Call it in a runtime.
    pub fn behave(&self, behaviour: AgentBehaviour) {
        let woken: BTreeMap<String, GpuNodeView> = {
            let mut current = locked(&self.state.behaviour);
            *current = behaviour;
            let mut missed = locked(&self.state.missed);
            let (still, woken) = std::mem::take(&mut *missed)
                .into_iter()
                .partition(|(name, _)| current.silent.contains(name));
            *missed = still;
            woken
        };
        for object in woken.into_values() {
            observe(&self.state, object);
        }
    }

    /// Moment just before the last accepted answer of each node was sent.
    pub fn answered(&self) -> BTreeMap<String, Timestamp> {
        locked(&self.state.answered).clone()
    }

    /// Number of configurations answered so far; each answer is one write of a status.
    pub fn answers(&self) -> usize {
        self.state.answers.load(Ordering::Relaxed)
    }

    /// Makes the first GPU of a node unhealthy, or healthy again, and reports it.
    pub async fn set_unhealthy(&self, name: &str, is_unhealthy: bool) -> Result<()> {
        {
            let mut reports = locked(&self.state.reports);
            let report = reports.entry(name.to_owned()).or_default();
            report.wanted.unhealthy_since = is_unhealthy.then(|| Timestamp::now().to_string());
        }
        self.state.send(name).await.map(drop)
    }
}

impl Drop for SimulatedAgents {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl AgentsState {
    /// Sends what changed in the report of a node; returns false if nothing did.
    async fn send(&self, name: &str) -> Result<bool> {
        let Some(SimulatedReport { wanted, sent }) = locked(&self.reports).get(name).cloned() else {
            return Ok(false);
        };
        let is_sent = send_report(&self.api, name, Some(&sent), &wanted).await?;
        if let Some(report) = locked(&self.reports).get_mut(name) {
            report.sent = wanted;
        }
        Ok(is_sent)
    }
}

/// Sends the status of a node as its agent does: a merge patch of what differs from `before`. Returns false if nothing does.
pub async fn send_report(
    api: &ApiClient,
    name: &str,
    before: Option<&AgentReport>,
    report: &AgentReport,
) -> Result<bool> {
    let Some(patch) = status_patch(name, before, report) else {
        return Ok(false);
    };
    let target = format!("{GPU_NODES}/{name}/status?fieldManager={AGENT_FIELD_MANAGER}");
    api.patch::<serde::de::IgnoredAny>(&target, PatchForm::Merge, &patch)
        .await?;
    Ok(true)
}

async fn follow(state: Arc<AgentsState>) {
    loop {
        // The API server ends watches, and tests restart it.
        let _ = follow_once(&state).await;
        sleep(RETRY).await;
    }
}

async fn follow_once(state: &Arc<AgentsState>) -> Result<()> {
    // Without a version it begins with all objects that exist.
    let request = Request::get(format!("{GPU_NODES}?watch=true&timeoutSeconds=3600")).body(Vec::new())?;
    let events = state.api.client().request_events::<GpuNodeView>(request);
    let mut events = pin!(events.await.context("watch GpuNodes")?);
    while let Some(event) = events.try_next().await? {
        match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => observe(state, object),
            WatchEvent::Deleted(object) => {
                locked(&state.reports).remove(&object.metadata.name);
                locked(&state.missed).remove(&object.metadata.name);
            }
            WatchEvent::Bookmark(_) => {}
            WatchEvent::Error(status) => return Err(kube::Error::Api(status).into()),
        }
    }
    Ok(())
}

/// Answers a configuration that the agent has not answered yet.
fn observe(state: &Arc<AgentsState>, object: GpuNodeView) {
    let delay = {
        let behaviour = locked(&state.behaviour);
        if behaviour.silent.contains(&object.metadata.name) {
            locked(&state.missed).insert(object.metadata.name.clone(), object);
            return;
        }
        behaviour.delay
    };
    let name = object.metadata.name;
    let in_force = object.spec.config.map(|config| (config.policy, config.hash));
    let step = object.spec.step.filter(|step| step.failed.is_none());
    let finished_step = step.map(|step| step.started_at);
    {
        let mut reports = locked(&state.reports);
        let report = &mut reports.entry(name.clone()).or_default().wanted;
        let is_finished = finished_step.is_none() || report.finished_step == finished_step;
        if report.in_force == in_force && is_finished {
            return;
        }
        report.in_force = in_force;
        // One that is over stays in the report, as the operator may remove it from the spec.
        report.finished_step = finished_step.or_else(|| report.finished_step.take());
    }
    tokio::spawn(answer(state.clone(), name, delay));
}

async fn answer(state: Arc<AgentsState>, name: String, delay: Duration) {
    sleep(delay).await;
    loop {
        let begin = Timestamp::now();
        match state.send(&name).await {
            Ok(is_sent) => {
                if is_sent {
                    locked(&state.answered).insert(name, begin);
                    state.answers.fetch_add(1, Ordering::Relaxed);
                }
                return;
            }
            Err(_) => sleep(RETRY).await,
        }
    }
}

async fn heartbeats(state: Arc<AgentsState>, nodes: usize) {
    let Ok(number) = u32::try_from(nodes) else { return };
    let mut ticks = interval(HEARTBEAT / number.max(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for index in (0..nodes).cycle() {
        ticks.tick().await;
        let state = state.clone();
        // One that fails is followed by the next, as with kubelets.
        tokio::spawn(async move {
            if send_heartbeat(&state.api, &node_name(index)).await.is_ok() {
                state.heartbeats.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
}

async fn send_heartbeat(api: &ApiClient, name: &str) -> Result<()> {
    let now = Timestamp::now().to_string();
    let conditions: Vec<Value> = ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"]
        .into_iter()
        .map(|kind| json!({"type": kind, "lastHeartbeatTime": now}))
        .collect();
    let change = json!({"status": {"conditions": conditions}});
    let path = format!("{NODES}/{name}/status");
    api.patch::<serde::de::IgnoredAny>(&path, PatchForm::Strategic, &change)
        .await
        .map(drop)
}

/// Locks a value of which every change is one assignment.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
