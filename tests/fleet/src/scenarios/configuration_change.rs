//! One policy changes the configuration of all agents, a tenth of the nodes at a time.

use crate::{
    Fleet, number,
    objects::node_name,
    raw::{configuration_of_fleet, raw_configuration},
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
    /// Seconds of a bare client for the same writes, which awaits no agent.
    pub raw: f64,
    /// The seconds of the change, of the delays of ten tenths one after the other and the writes of the bare client.
    pub ratio: f64,
}

fn policy(xids: &[i32], mode: &str) -> Value {
    json!({
        "mode": mode,
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
    fleet.apply_policy(POLICY, &policy(&[13], "Enforce")).await?;
    fleet.await_ready_nodes(POLICY, size).await?;
    fleet.await_quiet(&mut requests, DELAY * 5).await?;
    let former = configuration_of_fleet(fleet).await?;

    fleet.agents().behave(AgentBehaviour {
        delay: DELAY,
        silent: BTreeSet::new(),
    });
    let (mut requests, answers) = (fleet.requests()?, fleet.agents().answers());
    let begin = Instant::now();
    fleet.apply_policy(POLICY, &policy(&[13, 31], "Enforce")).await?;
    fleet.await_ready_nodes(POLICY, size).await?;
    let seconds = begin.elapsed().as_secs_f64();
    fleet.await_quiet(&mut requests, DELAY * 5).await?;

    let specs = requests.writes_by_name("gpunodes")?;
    let nodes = requests.writes_by_name("nodes")?;
    let statuses = requests.writes_by_name("gpunodes/status")?;
    let statuses = fleet.agents().answers() - answers + statuses.values().sum::<usize>();

    // The operators follow the bare client's writes and answer none, as do the agents.
    fleet.apply_policy(POLICY, &policy(&[13, 31], "Paused")).await?;
    fleet.agents().behave(AgentBehaviour {
        delay: DELAY,
        silent: (0..size).map(node_name).collect(),
    });
    fleet.await_quiet(&mut requests, DELAY * 5).await?;
    let raw = raw_configuration(fleet, &former).await?;
    let allowed = WAVES * DELAY.as_secs_f64() + raw;
    Ok(ConfigurationChange {
        spec_writes_per_node: number(specs.values().sum()) / number(size),
        most_spec_writes: most_writes(&specs),
        status_writes_per_node: number(statuses) / number(size),
        node_writes: nodes.values().sum(),
        seconds,
        raw,
        ratio: seconds / allowed,
    })
}
