//! The leader is killed or stopped in the middle of a change of all nodes.

use crate::{
    Fleet, OperatorPair,
    api::{NODES, Named},
    audit::{OperatorRequests, seconds_between},
    quantile,
    raw::bare_list,
    scenarios::{KEY, QUIET, label_policy, measured_change, most_writes},
};
use anyhow::{Result, ensure};
use jiff::Timestamp;
use std::time::{Duration, Instant};
use tokio::time::sleep;

const LOOK: Duration = Duration::from_millis(20);
/// The same for a list of nodes, which costs the API server more.
const LOOK_AT_NODES: Duration = Duration::from_secs(1);
/// Longest wait for another leader.
const LIMIT: Duration = Duration::from_mins(1);

/// Three changes, each of which loses its leader after a tenth of the nodes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Failover {
    /// From the start of a killed leader's container to its first write, of a bare list by two clients.
    pub restart_ratio: f64,
    /// Seconds from the kill of a leader that does not come back to the first write of the other replica.
    pub standby: f64,
    /// Seconds from SIGTERM to the leader until the other replica holds the Lease.
    pub hand_over: f64,
    /// Most writes of one node in one of the changes.
    pub most_writes: usize,
}

/// Measures the three.
pub async fn failover(fleet: &Fleet) -> Result<Failover> {
    let mut pair = fleet.start_pair().await?;
    let size = fleet.size();
    measured_change(fleet, &pair, &[label_policy(0)], size).await?;
    let mut lists = Vec::new();
    for _ in 0..3 {
        lists.push(bare_list(fleet).await?);
    }
    let mut most_writes = 0;

    let mut change = begin_change(fleet, 1).await?;
    let (leader, _) = fleet.leader_and_standby(&pair).await?;
    let pod = pair.get(leader).pod().to_owned();
    pair.get_mut(leader).kill()?;
    let restart = Timestamp::now();
    pair.replace(leader, fleet.start_operator(&pod)?);
    let restarted = first_write(fleet, &mut change, restart).await?;
    most_writes = most_writes.max(finish_change(fleet, change, 1).await?);
    fleet.await_settled(&mut pair).await?;

    let mut change = begin_change(fleet, 2).await?;
    let (leader, _) = fleet.leader_and_standby(&pair).await?;
    let pod = pair.get(leader).pod().to_owned();
    pair.get_mut(leader).kill()?;
    let standby = first_write(fleet, &mut change, Timestamp::now()).await?;
    most_writes = most_writes.max(finish_change(fleet, change, 2).await?);
    pair.replace(leader, fleet.start_operator(&pod)?);
    fleet.await_settled(&mut pair).await?;

    let change = begin_change(fleet, 3).await?;
    let hand_over = stop_leader(fleet, &mut pair).await?;
    most_writes = most_writes.max(finish_change(fleet, change, 3).await?);
    Ok(Failover {
        restart_ratio: restarted / quantile(&lists, 0.5),
        standby,
        hand_over,
        most_writes,
    })
}

/// Stops the leader and returns the seconds until the other replica holds the Lease.
async fn stop_leader(fleet: &Fleet, pair: &mut OperatorPair) -> Result<f64> {
    let (leader, standby) = fleet.leader_and_standby(pair).await?;
    let successor = pair.get(standby).pod().to_owned();
    let begin = Instant::now();
    pair.get(leader).terminate()?;
    while fleet.lease_holder().await?.as_deref() != Some(successor.as_str()) {
        ensure!(begin.elapsed() < LIMIT, "{successor} did not take the Lease");
        sleep(LOOK).await;
    }
    let seconds = begin.elapsed().as_secs_f64();
    pair.get_mut(leader).wait()?;
    Ok(seconds)
}

/// Edits the policy and waits until a tenth of the nodes has been written.
async fn begin_change(fleet: &Fleet, round: usize) -> Result<OperatorRequests> {
    let mut requests = fleet.requests()?;
    let (name, spec) = label_policy(round);
    fleet.apply_policy(&name, &spec).await?;
    fleet
        .await_written(&mut requests, "nodes", (fleet.size() / 10).max(1))
        .await?;
    Ok(requests)
}

/// Returns the seconds from a moment to the end of the first write of a node whose request came after it.
async fn first_write(fleet: &Fleet, change: &mut OperatorRequests, after: Timestamp) -> Result<f64> {
    let end = Instant::now() + fleet.limit();
    loop {
        let is_first = |write: &&crate::audit::OperatorRequest| {
            write.resource() == "nodes" && write.request_received_timestamp > after
        };
        if let Some(write) = change.writes()?.find(is_first) {
            return Ok(seconds_between(after, write.stage_timestamp));
        }
        ensure!(Instant::now() < end, "no operator goes on with the change");
        sleep(LOOK).await;
    }
}

/// Waits until a change has reached every node, and returns the most writes of one node.
async fn finish_change(fleet: &Fleet, mut change: OperatorRequests, round: usize) -> Result<usize> {
    // By the nodes: the API server logs no success of a write whose client is killed.
    let others = format!("labelSelector={KEY}!=round-{round}");
    let end = Instant::now() + fleet.limit();
    loop {
        let others: Vec<Named> = fleet.admin().list(NODES, &others).await?;
        if others.is_empty() {
            break;
        }
        ensure!(Instant::now() < end, "the change did not reach {} nodes", others.len());
        sleep(LOOK_AT_NODES).await;
    }
    fleet.await_quiet(&mut change, QUIET).await?;
    Ok(most_writes(&change.writes_by_name("nodes")?))
}
