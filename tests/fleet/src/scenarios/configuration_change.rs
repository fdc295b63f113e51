//! One policy changes the configuration of all agents, a tenth of the nodes at a time.

use crate::{
    Fleet, number,
    raw::raw_change,
    scenarios::{all_nodes, most_writes},
    simulated_agents::AgentBehaviour,
};
use anyhow::Result;
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

const POLICY: &str = "configuration";
/// Time that an agent takes to answer.
const DELAY: Duration = Duration::from_secs(1);
/// Tenths of the fleet, each of which waits for its agents.
const WAVES: f64 = 10.0;

/// A change of configuration of the whole fleet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConfigurationChange {
    /// Writes of the operators to `GpuNode`s for each node.
    pub spec_writes_per_node: f64,
    /// Most of them to one `GpuNode`.
    pub most_spec_writes: usize,
    /// Writes of the agents and of the operators to the status for each node.
    pub status_writes_per_node: f64,
    /// Writes of the operators to Nodes; a configuration without new resources needs none.
    pub node_writes: usize,
    /// From the edit until the policy counts every node as ready.
    pub seconds: f64,
    /// These seconds, of the delays of ten tenths one after the other and two raw writes for each node.
    pub ratio: f64,
}

fn policy(xids: &[i32]) -> Value {
    json!({
        "nodeSelector": all_nodes(),
        "devicePlugin": {"health": {"ignoreXids": xids}},
        "rollout": {"maxUnavailable": "10%"},
    })
}

/// Measures one change.
pub async fn configuration_change(fleet: &Fleet) -> Result<ConfigurationChange> {
    let _pair = fleet.start_pair().await?;
    let size = fleet.size();
    let mut requests = fleet.requests()?;
    fleet.agents().behave(AgentBehaviour::default());
    fleet.apply_policy(POLICY, &policy(&[13])).await?;
    fleet.await_ready_nodes(POLICY, size).await?;
    fleet.await_quiet(&mut requests, DELAY * 5).await?;
    raw_change(fleet, 0).await?;
    let before = raw_change(fleet, 1).await?;

    fleet.agents().behave(AgentBehaviour {
        delay: DELAY,
        silent: BTreeSet::new(),
    });
    let (mut requests, answers) = (fleet.requests()?, fleet.agents().answers());
    let begin = Instant::now();
    fleet.apply_policy(POLICY, &policy(&[13, 31])).await?;
    fleet.await_ready_nodes(POLICY, size).await?;
    let seconds = begin.elapsed().as_secs_f64();
    fleet.await_quiet(&mut requests, DELAY * 5).await?;

    let specs = requests.writes_by_name("gpunodes")?;
    let nodes = requests.writes_by_name("nodes")?;
    let statuses = requests.writes_by_name("gpunodes/status")?;
    let statuses = fleet.agents().answers() - answers + statuses.values().sum::<usize>();
    // Before and after, as the API server and the machine may change meanwhile.
    let raw = f64::midpoint(before, raw_change(fleet, 2).await?);
    let allowed = WAVES * DELAY.as_secs_f64() + 2.0 * raw;
    Ok(ConfigurationChange {
        spec_writes_per_node: number(specs.values().sum()) / number(size),
        most_spec_writes: most_writes(&specs),
        status_writes_per_node: number(statuses) / number(size),
        node_writes: nodes.values().sum(),
        seconds,
        ratio: seconds / allowed,
    })
}
