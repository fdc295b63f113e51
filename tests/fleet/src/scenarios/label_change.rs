//! One policy changes a label and a taint of all nodes, in turns with a bare client that makes the same patches.

use crate::{
    Fleet, number, quantile,
    raw::raw_change,
    scenarios::{label_policy, measured_change, most_writes, steady_memory},
};
use anyhow::Result;

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
    /// Resident memory with one policy, the greater of both replicas, in MiB.
    pub resident: f64,
}

/// Measures so many pairs.
pub async fn label_change(fleet: &Fleet, pairs: usize) -> Result<LabelChange> {
    let pair = fleet.start_pair().await?;
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
    let node_lines = (0..2).try_fold(0, |sum, replica| {
        Ok::<_, anyhow::Error>(sum + pair.get(replica).node_lines()?)
    })?;
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
        resident,
    })
}
