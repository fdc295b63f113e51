//! One policy changes a label and a taint of all nodes, in turns with a bare client that makes the same patches.

use crate::{
    Fleet,
    fleet::OperatorPair,
    number,
    probes::probe,
    quantile,
    raw::raw_change,
    scenarios::{label_policy, measured_change, most_writes, steady_memory},
};
use anyhow::{Context as _, Result, ensure};
use std::time::Instant;

/// Medians of the pairs of one change by the operators and one by the bare client.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LabelChange {
    /// Rate of the operators, of that of the bare client.
    pub ratio: f64,
    /// Nodes changed by the operators in a second.
    pub rate: f64,
    /// Nodes changed by the bare client in a second.
    pub raw_rate: f64,
    /// Processor time of the leader for a node, in milliseconds.
    pub leader: f64,
    /// Processor time of the standby for a node, in milliseconds.
    pub standby: f64,
    /// Writes for each node and change.
    pub writes_per_node: f64,
    /// Most writes of one node in one change.
    pub most_writes: usize,
    /// Lines of both logs at the level info that name a node.
    pub node_lines: usize,
    /// Lines of both logs with the numbers of nodes of the policy.
    pub policy_lines: usize,
    /// Seconds in which they were written.
    pub elapsed: f64,
    /// Resident memory with one policy, the greater of both replicas, in MiB.
    pub resident: f64,
}

/// Measures so many pairs.
pub async fn label_change(fleet: &Fleet, pairs: usize) -> Result<LabelChange> {
    let pair = fleet.start_pair().await?;
    let begin = Instant::now();
    let size = fleet.size();
    measured_change(fleet, &pair, &[label_policy(0)], size).await?;
    // It adds what the later ones replace.
    raw_change(fleet, 0).await?;
    let resident = steady_memory(&pair).await?;
    let (mut seconds, mut raw, mut leader, mut standby) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut writes, mut most) = (0, 0);
    for round in 1..=pairs {
        // In turns, so that a machine that becomes slower is to the disadvantage of both.
        if round % 2 == 0 {
            raw.push(raw_change(fleet, round).await?);
        }
        let change = measured_change(fleet, &pair, &[label_policy(round)], size).await?;
        seconds.push(change.seconds);
        leader.push(change.leader);
        standby.push(change.standby);
        writes += change.writes.values().sum::<usize>();
        most = most.max(most_writes(&change.writes));
        if round % 2 == 1 {
            raw.push(raw_change(fleet, round).await?);
        }
        println!(
            "pair {round}: {:.1} s by the operators, {:.1} s by a bare client",
            change.seconds,
            raw.last().copied().unwrap_or_default()
        );
    }
    ensure_counted(fleet, &pair, size * (pairs + 1)).await?;
    let (mut node_lines, mut policy_lines) = (0, 0);
    for replica in [0, 1].map(|replica| pair.get(replica)) {
        node_lines += replica.node_lines()?;
        policy_lines += replica.policy_lines()?;
    }
    let (seconds, raw) = (quantile(&seconds, 0.5), quantile(&raw, 0.5));
    Ok(LabelChange {
        ratio: raw / seconds,
        rate: number(size) / seconds,
        raw_rate: number(size) / raw,
        leader: quantile(&leader, 0.5),
        standby: quantile(&standby, 0.5),
        writes_per_node: number(writes) / number(size * pairs),
        most_writes: most,
        node_lines,
        policy_lines,
        elapsed: begin.elapsed().as_secs_f64(),
        resident,
    })
}

/// Fails unless the metrics of the leader tell of so many writes of nodes, and of a life as it should be.
async fn ensure_counted(fleet: &Fleet, pair: &OperatorPair, writes: usize) -> Result<()> {
    let (leader, _) = fleet.leader_and_standby(pair).await?;
    let text = probe(pair.get(leader).address(), "/metrics").await?;
    let value = |name: &str| -> Result<f64> {
        let name = format!("gpunode_operator_{name} ");
        let value = text.lines().find_map(|line| line.strip_prefix(&name));
        value
            .and_then(|value| value.parse().ok())
            .with_context(|| format!("find {name}in {text}"))
    };
    let planned = r#"planning_time_seconds_count{kind="Node"}"#;
    for name in [
        r#"writes_total{kind="Node",result="accepted"}"#,
        planned,
        r#"reconcile_time_seconds_count{kind="Node"}"#,
    ] {
        ensure!(
            value(name)? >= number(writes),
            "{name} is {} after {writes} writes",
            value(name)?
        );
    }
    // One for each write, one for each of the bare client's, and one of each node when the replica became the leader.
    let most = 1.1 * number(2 * writes + fleet.size());
    ensure!(
        value(planned)? <= most,
        "{planned} is {} after {writes} writes",
        value(planned)?
    );
    let nodes = value(r#"cache_objects{resource="nodes"}"#)?;
    ensure!(nodes >= number(fleet.size()), "the cache has {nodes} nodes");
    let age = value("lease_age_seconds")?;
    ensure!(age < 10.0, "the Lease is {age} s old");
    for kind in ["nodes", "gpunodes"] {
        let age = value(&format!("watch_age_seconds{{resource=\"{kind}\"}}"))?;
        ensure!(age < 80.0, "the watch of {kind} is {age} s old");
    }
    Ok(())
}
