//! The leader is killed or stopped in the middle of a change of all nodes.

use crate::{
    Fleet, OperatorPair,
    api::{NODES, Named},
    audit::{OperatorRequest, OperatorRequests, seconds_between},
    progress::WaitProgress,
    quantile,
    raw::bare_list,
    scenarios::{KEY, QUIET, label_policy, measured_change, most_writes},
};
use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use std::time::{Duration, Instant};
use tokio::time::sleep;

const LOOK: Duration = Duration::from_millis(20);
/// The same for a list of nodes, which costs the API server more.
const LOOK_AT_NODES: Duration = Duration::from_secs(1);
/// Longest wait for another leader.
const LIMIT: Duration = Duration::from_mins(1);

/// Changes, each of which loses its leader after a tenth of the nodes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Failover {
    /// From the start of a killed leader's container to its first write, of a bare list by one client: the other replica lists
    /// nothing then. Both are medians.
    pub restart_ratio: f64,
    /// Seconds of the bare list.
    pub bare: f64,
    /// Seconds from the kill of a leader that does not come back to the first write of the other replica.
    pub standby: f64,
    /// Seconds from SIGTERM to the leader until the other replica holds the Lease.
    pub hand_over: f64,
    /// Most writes of one node in one of the changes.
    pub most_writes: usize,
}

/// Measures so many restarts of a leader, then one that does not come back and one that is stopped.
pub async fn failover(fleet: &Fleet, restarts: usize) -> Result<Failover> {
    let mut pair = fleet.start_pair().await?;
    let size = fleet.size();
    measured_change(fleet, &pair, &[label_policy(0)], size).await?;
    let mut lists = Vec::new();
    for _ in 0..3 {
        lists.push(bare_list(fleet, 1).await?);
    }
    let mut most_writes = 0;

    let mut restarted = Vec::new();
    for round in 1..=restarts {
        let mut change = begin_change(fleet, round).await?;
        restarted.push(restart_leader(fleet, &mut pair, &mut change).await?);
        most_writes = most_writes.max(finish_change(fleet, change, round).await?);
        fleet.await_settled(&mut pair).await?;
    }

    let round = restarts + 1;
    let mut change = begin_change(fleet, round).await?;
    let (leader, _) = fleet.leader_and_standby(&pair).await?;
    let pod = pair.get(leader).pod().to_owned();
    let killed = change.writes()?.next().context("find a write of the leader")?;
    let killed = killed.credential().to_owned();
    pair.get_mut(leader).kill()?;
    let standby = first_write(fleet, &mut change, Timestamp::now(), |_, write| {
        write.credential() != killed
    });
    let standby = standby.await?;
    most_writes = most_writes.max(finish_change(fleet, change, round).await?);
    pair.replace(leader, fleet.start_operator(&pod)?);
    fleet.await_settled(&mut pair).await?;

    let round = restarts + 2;
    let change = begin_change(fleet, round).await?;
    let hand_over = stop_leader(fleet, &mut pair).await?;
    most_writes = most_writes.max(finish_change(fleet, change, round).await?);
    let bare = quantile(&lists, 0.5);
    Ok(Failover {
        restart_ratio: quantile(&restarted, 0.5) / bare,
        bare,
        standby,
        hand_over,
        most_writes,
    })
}

/// Kills the leader, starts it again, and returns the seconds from then to its first write.
async fn restart_leader(fleet: &Fleet, pair: &mut OperatorPair, change: &mut OperatorRequests) -> Result<f64> {
    let (leader, _) = fleet.leader_and_standby(pair).await?;
    let pod = pair.get(leader).pod().to_owned();
    pair.get_mut(leader).kill()?;
    let restart = Timestamp::now();
    pair.replace(leader, fleet.start_operator(&pod)?);
    // The API server may still read what the killed process has sent, so the first list tells the new one.
    let is_list = |request: &&OperatorRequest| {
        let is_new = request.request_received_timestamp > restart;
        is_new && request.is_list() && request.code() < 300 && request.resource() == "nodes"
    };
    first_write(fleet, change, restart, |requests, write| {
        let list = requests.iter().find(is_list);
        list.is_some_and(|list| write.request_received_timestamp > list.request_received_timestamp)
    })
    .await
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

/// Returns the seconds from a moment to the end of the first write of a node that, by all requests so far, is one of
/// the successor.
async fn first_write(
    fleet: &Fleet,
    change: &mut OperatorRequests,
    after: Timestamp,
    is_of_successor: impl Fn(&[OperatorRequest], &OperatorRequest) -> bool,
) -> Result<f64> {
    let (end, mut progress) = (Instant::now() + fleet.limit(), WaitProgress::start());
    loop {
        let requests = change.read()?;
        let is_first = |write: &&OperatorRequest| {
            let is_write = write.is_object_write() && write.resource() == "nodes";
            is_write && write.request_received_timestamp > after && is_of_successor(requests, write)
        };
        if let Some(write) = requests.iter().find(is_first) {
            return Ok(seconds_between(after, write.stage_timestamp));
        }
        ensure!(Instant::now() < end, "no operator goes on with the change");
        progress.tick(|| "no operator goes on with the change yet".to_owned());
        sleep(LOOK).await;
    }
}

/// Waits until a change has reached every node, and returns the most writes of one node.
async fn finish_change(fleet: &Fleet, mut change: OperatorRequests, round: usize) -> Result<usize> {
    // By the nodes: the API server logs no success of a write whose client is killed.
    let others = format!("labelSelector={KEY}!=round-{round}");
    let (end, mut progress) = (Instant::now() + fleet.limit(), WaitProgress::start());
    loop {
        let others: Vec<Named> = fleet.admin().list(NODES, &others).await?;
        if others.is_empty() {
            break;
        }
        let state = || format!("the change has not reached {} nodes", others.len());
        ensure!(Instant::now() < end, state());
        progress.tick(state);
        sleep(LOOK_AT_NODES).await;
    }
    fleet.await_quiet(&mut change, QUIET).await?;
    Ok(most_writes(&change.writes_by_name("nodes")?))
}
