//! Scenarios: each starts its own pair of operators and returns what it measured.
//!
//! | module | what it does |
//! |---|---|
//! | `label_change` | one policy changes a label and a taint of all nodes, against a bare client |
//! | `client_limit` | one policy changes a label and a taint while the operators have a limit of requests |
//! | `configuration_change` | one policy changes the configuration of all agents, a tenth at a time |
//! | `silent_agents` | the same with a few agents that never answer |
//! | `many_policies` | fifty policies, all edited at once |
//! | `expired_watches` | the API server restarts, so that every watch begins anew |
//! | `failover` | the leader is killed or stopped in the middle of a change |
//! | `slow_api_server` | one policy changes a label and a taint while every request is late |
//! | `idle` | heartbeats and nothing else |
//! | `refusals` | the API server refuses lists |
//! | `scale` | the same change by number of nodes and policies |

mod client_limit;
mod configuration_change;
mod expired_watches;
mod failover;
mod idle;
mod label_change;
mod many_policies;
mod refusals;
mod scale;
mod silent_agents;
mod slow_api_server;

pub use client_limit::{ClientLimit, client_limit};
pub use configuration_change::{ConfigurationChange, configuration_change};
pub use expired_watches::{ExpiredWatches, expired_watches};
pub use failover::{Failover, failover};
pub use idle::{Idle, idle};
pub use label_change::{LabelChange, label_change};
pub use many_policies::{ManyPolicies, many_policies};
pub use refusals::{Refusals, refusals};
pub use scale::scale_row;
pub use silent_agents::{SilentAgents, silent_agents};
pub use slow_api_server::{SlowApiServer, slow_api_server};

use crate::{
    api::NODES,
    audit::seconds_between,
    fleet::{Fleet, OperatorPair},
    objects::{MEMBER_LABEL, node_name, part_label},
    operator_process::{memory, processor_seconds},
    probes::number,
    progress::with_progress,
};
use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use jiff::Timestamp;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};
use tokio::time::sleep;

/// Key of the label and of the taint that policies change.
const KEY: &str = "bench.example.com/round";
/// Time without writes after which a change counts as over, and the standby has read it.
const QUIET: Duration = Duration::from_secs(3);
/// Time after which memory counts as steady.
const STEADY: Duration = Duration::from_secs(15);
/// Longest wait for a node that somebody waits for.
const NODE_LIMIT: Duration = Duration::from_mins(3);
/// Time between two looks at it.
const NODE_LOOK: Duration = Duration::from_millis(20);
/// Greatest fleet of which a scenario that takes long takes every node.
const WHOLE: usize = 1000;
/// Parts of a greater fleet, of which it takes one.
const SAMPLE_PARTS: usize = 6;

/// A change of all nodes by the operators.
struct MeasuredChange {
    /// From the edit to the answer to the last write of a node.
    seconds: f64,
    /// Processor time of the leader for each node, in milliseconds.
    leader: f64,
    /// The same of the standby.
    standby: f64,
    /// The same of the API server.
    api_server: f64,
    /// Number of writes of each Node.
    writes: BTreeMap<String, usize>,
}

/// Applies policies at once and waits until the operators have written this number of nodes and nothing more.
async fn measured_change(
    fleet: &Fleet,
    pair: &OperatorPair,
    policies: &[(String, Value)],
    nodes: usize,
) -> Result<MeasuredChange> {
    let (leader, standby) = fleet.leader_and_standby(pair).await?;
    let pids = [pair.get(leader).pid(), pair.get(standby).pid(), fleet.api_server_pid()?];
    let processor = || pids.map(processor_seconds).into_iter().collect::<Result<Vec<f64>>>();
    let mut requests = fleet.requests()?;
    let (before, begin) = (processor()?, Timestamp::now());
    apply_all(fleet, policies).await?;
    fleet.await_written(&mut requests, "nodes", nodes).await?;
    // Previews may take longer than the writes, and their processor time counts.
    fleet.await_current_statuses().await?;
    fleet.await_quiet(&mut requests, QUIET).await?;
    let after = processor()?;
    let writes = requests.writes_by_name("nodes")?;
    let last = requests
        .writes()?
        .filter(|write| write.resource() == "nodes")
        .map(|write| write.stage_timestamp)
        .max()
        .context("find the last write of a node")?;
    let each = |index: usize| (after[index] - before[index]) * 1000.0 / number(nodes.max(1));
    Ok(MeasuredChange {
        seconds: seconds_between(begin, last),
        leader: each(0),
        standby: each(1),
        api_server: each(2),
        writes,
    })
}

/// Applies policies at once.
async fn apply_all(fleet: &Fleet, policies: &[(String, Value)]) -> Result<()> {
    try_join_all(policies.iter().map(|(name, spec)| fleet.apply_policy(name, spec)))
        .await
        .map(drop)
}

/// Selects every simulated node.
fn all_nodes() -> Value {
    json!({"matchLabels": {MEMBER_LABEL: "true"}})
}

/// Nodes of a scenario that takes long with each node.
struct NodeSample {
    /// The `nodeSelector` of its policies.
    selector: Value,
    /// Names of the nodes, in order.
    names: Vec<String>,
}

impl NodeSample {
    /// All nodes, or a sixth of a great fleet.
    fn of(fleet: &Fleet) -> Self {
        let size = fleet.size();
        if size <= WHOLE {
            return Self {
                selector: all_nodes(),
                names: (0..size).map(node_name).collect(),
            };
        }
        Self {
            selector: json!({"matchLabels": {part_label(SAMPLE_PARTS): "0"}}),
            names: (0..size).step_by(SAMPLE_PARTS).map(node_name).collect(),
        }
    }
}

/// A policy that labels and taints every node.
fn label_policy(round: usize) -> (String, Value) {
    label_policy_of(&all_nodes(), round)
}

/// A policy that labels and taints the nodes of a selector.
fn label_policy_of(selector: &Value, round: usize) -> (String, Value) {
    let value = format!("round-{round}");
    let spec = json!({
        "nodeSelector": selector,
        "labels": {KEY: value},
        "taints": [{"key": KEY, "value": value, "effect": "PreferNoSchedule"}],
    });
    ("change".to_owned(), spec)
}

/// Policies that label a part of the nodes each, and previews of one label on all nodes each.
fn policies_in_parts(parts: usize, previews: usize, round: usize) -> Vec<(String, Value)> {
    let value = format!("round-{round}");
    let part = |part: usize| {
        let spec = json!({
            "nodeSelector": {"matchLabels": {part_label(parts): part.to_string()}},
            "labels": {KEY: value},
            "unhealthyTaint": {"after": "0s", "minHealthy": crate::objects::GPUS},
        });
        (format!("part-{part:02}"), spec)
    };
    let preview = |preview: usize| {
        let spec = json!({
            "mode": "Preview",
            "priority": preview,
            "nodeSelector": all_nodes(),
            "labels": {format!("bench.example.com/preview-{preview}"): value},
        });
        (format!("preview-{preview:02}"), spec)
    };
    (0..parts).map(part).chain((0..previews).map(preview)).collect()
}

/// Waits until a node is as somebody waits for.
async fn await_node(fleet: &Fleet, name: &str, is_served: impl Fn(&Value) -> bool) -> Result<()> {
    let end = Instant::now() + NODE_LIMIT;
    let path = format!("{NODES}/{name}");
    loop {
        let node: Value = fleet.admin().get(&path).await?;
        if is_served(&node) {
            return Ok(());
        }
        ensure!(Instant::now() < end, "{name} is not served within {NODE_LIMIT:?}");
        sleep(NODE_LOOK).await;
    }
}

fn has_taint(node: &Value, key: &str) -> bool {
    let taints = node["spec"]["taints"].as_array();
    taints.is_some_and(|taints| taints.iter().any(|taint| taint["key"] == key))
}

/// Returns the most memory that one of the pair has resident once it is steady, in MiB.
async fn steady_memory(pair: &OperatorPair) -> Result<f64> {
    with_progress("memory becomes steady", sleep(STEADY)).await;
    most(pair, |pid| Ok(memory(pid)?.resident))
}

/// Returns the greatest of what `of` gives for the processes of a pair.
fn most(pair: &OperatorPair, of: impl Fn(i32) -> Result<f64>) -> Result<f64> {
    pair.pids()
        .into_iter()
        .map(of)
        .try_fold(0.0, |most, value| Ok(f64::max(most, value?)))
}

/// Returns the most writes of one object.
fn most_writes(writes: &BTreeMap<String, usize>) -> usize {
    writes.values().copied().max().unwrap_or_default()
}
