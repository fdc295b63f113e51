//! Fifty policies, all edited at once, while GPUs fail and nodes join.

use crate::{
    Fleet,
    audit::{OperatorRequest, OperatorRequests, seconds_between},
    objects::node_name,
    probes::LivenessProbes,
    progress::{WaitProgress, with_progress},
    quantile,
    scenarios::{KEY, QUIET, apply_all, await_node, has_taint, measured_change, policies_in_parts, steady_memory},
};
use anyhow::{Context, Result, ensure};
use gpunode_crds::UNHEALTHY_TAINT;
use jiff::Timestamp;
use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};
use tokio::time::sleep;

/// Parts of the fleet, each with a policy of its own.
const PARTS: usize = 30;
/// Previews on all nodes.
const PREVIEWS: usize = 20;
/// Time in which the Lease is watched without any change.
const UNCHANGED: Duration = Duration::from_secs(30);
/// A pause between two attempts at the Lease is at least this long; the requests of one follow each other at once.
const PAUSE: f64 = 0.5;
/// Time between a node that was served and the next one that needs it.
const BETWEEN: Duration = Duration::from_millis(100);

/// An edit of all policies at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ManyPolicies {
    /// Longest time from the beginning of an attempt of the leader at the Lease to that of the next, beyond the usual
    /// one, in milliseconds.
    pub lease_late: f64,
    /// 99th percentile of the leader's answers to `/livez`, in milliseconds.
    pub livez: f64,
    /// The slowest of them.
    pub livez_slowest: f64,
    /// Resident memory before the edit, the greater of both replicas, in MiB.
    pub resident: f64,
    /// 99th percentile of the seconds from a fault or a new node to its taint or label.
    pub served: f64,
    /// Number of these faults and nodes.
    pub samples: usize,
    /// Seconds from the edit to the last write.
    pub seconds: f64,
    /// Most writes to a node that neither failed nor joined meanwhile.
    pub most_writes: usize,
}

/// Measures one edit of thirty policies and twenty previews.
pub async fn many_policies(fleet: &Fleet) -> Result<ManyPolicies> {
    let pair = fleet.start_pair().await?;
    let size = fleet.size();
    measured_change(fleet, &pair, &policies_in_parts(PARTS, PREVIEWS, 0), size).await?;
    let resident = steady_memory(&pair).await?;
    let mut usual = fleet.requests()?;
    with_progress("the Lease is watched without a change", sleep(UNCHANGED)).await;
    let leader = leader_credential(&mut usual)?;

    let mut requests = fleet.requests()?;
    let (leader_index, _) = fleet.leader_and_standby(&pair).await?;
    let probes = LivenessProbes::start(pair.get(leader_index).address());
    let begin = Timestamp::now();
    let policies = policies_in_parts(PARTS, PREVIEWS, 1);
    let edit = apply_all(fleet, &policies);
    let samples = Box::pin(serve_while_changing(fleet, &mut requests));
    let ((), samples) = tokio::try_join!(edit, samples)?;
    // While previews are still computed, too.
    fleet.await_current_statuses().await?;
    fleet.await_quiet(&mut requests, QUIET).await?;
    let livez: Vec<f64> = probes
        .finish()?
        .iter()
        .map(|took| took.as_secs_f64() * 1000.0)
        .collect();
    let last = requests.writes()?.map(|write| write.stage_timestamp).max();
    let last = last.context("find the last write")?;
    let intervals = lease_intervals(requests.read()?, &leader);
    let usual = quantile(&lease_intervals(usual.read()?, &leader), 0.5);
    ensure!(usual > 0.0 && !intervals.is_empty(), "the Lease was not renewed twice");
    let longest = intervals.iter().copied().fold(usual, f64::max);
    let mut writes = requests.writes_by_name("nodes")?;
    writes.retain(|name, _| !samples.names.contains(name));
    restore(fleet, &samples).await?;
    Ok(ManyPolicies {
        lease_late: (longest - usual) * 1000.0,
        livez: quantile(&livez, 0.99),
        livez_slowest: quantile(&livez, 1.0),
        resident,
        served: quantile(&samples.seconds, 0.99),
        samples: samples.seconds.len(),
        seconds: seconds_between(begin, last),
        most_writes: writes.values().copied().max().unwrap_or_default(),
    })
}

/// Faults and new nodes during a change.
#[derive(Default)]
struct ServedNodes {
    seconds: Vec<f64>,
    names: BTreeSet<String>,
    faulty: Vec<String>,
    joined: Vec<usize>,
}

/// Breaks GPUs and adds nodes in turns until every node of the fleet has been written.
async fn serve_while_changing(fleet: &Fleet, requests: &mut OperatorRequests) -> Result<ServedNodes> {
    let size = fleet.size();
    let (end, mut progress) = (Instant::now() + fleet.limit(), WaitProgress::start());
    let mut served = ServedNodes::default();
    loop {
        let written = requests.writes_by_name("nodes")?;
        if (0..size).all(|index| written.contains_key(&node_name(index))) {
            return Ok(served);
        }
        let round = served.seconds.len();
        let state = || format!("{} of {size} nodes are written, {round} were urgent", written.len());
        ensure!(Instant::now() < end, state());
        progress.tick(state);
        let begin;
        if round % 2 == 0 {
            // Spread over the fleet, and none twice before all had their turn.
            let name = node_name((round / 2 * 37 + 11) % size);
            begin = Instant::now();
            fleet.agents().set_unhealthy(&name, true).await?;
            await_node(fleet, &name, |node| has_taint(node, UNHEALTHY_TAINT)).await?;
            served.faulty.push(name.clone());
            served.names.insert(name);
        } else {
            let index = size + round;
            let name = node_name(index);
            begin = Instant::now();
            fleet.create_node(index).await?;
            await_node(fleet, &name, |node| node["metadata"]["labels"][KEY].is_string()).await?;
            served.joined.push(index);
            served.names.insert(name);
        }
        served.seconds.push(begin.elapsed().as_secs_f64());
        sleep(BETWEEN).await;
    }
}

/// Mends what was broken and removes the nodes that joined.
async fn restore(fleet: &Fleet, served: &ServedNodes) -> Result<()> {
    let mut progress = WaitProgress::start();
    for name in &served.faulty {
        fleet.agents().set_unhealthy(name, false).await?;
        progress.tick(|| format!("GPU of {name} is healthy again"));
    }
    for index in &served.joined {
        fleet.delete_node(*index).await?;
        progress.tick(|| format!("{} is deleted again", node_name(*index)));
    }
    let mut requests = fleet.requests()?;
    fleet.await_quiet(&mut requests, QUIET).await
}

/// Returns the token of the replica that renews the Lease.
fn leader_credential(requests: &mut OperatorRequests) -> Result<String> {
    let renewal = requests.read()?.iter().rfind(|request| request.is_renewal());
    Ok(renewal.context("find a renewal of the Lease")?.credential().to_owned())
}

/// Returns the seconds from the beginning of each attempt of one replica at the Lease to that of the next. An attempt
/// that the API server answers late does not move the next one.
fn lease_intervals(requests: &[OperatorRequest], credential: &str) -> Vec<f64> {
    let of_lease = requests
        .iter()
        .filter(|request| request.is_of_lease() && request.credential() == credential);
    let times = of_lease.map(|request| (request.request_received_timestamp, request.stage_timestamp));
    attempt_intervals(times)
}

/// The same of the times at which the API server had each request and had answered it.
fn attempt_intervals(requests: impl Iterator<Item = (Timestamp, Timestamp)>) -> Vec<f64> {
    let (mut begins, mut last_answer) = (Vec::new(), None);
    for (received, answered) in requests {
        if last_answer.is_none_or(|last| seconds_between(last, received) > PAUSE) {
            begins.push(received);
        }
        last_answer = Some(answered);
    }
    let pairs = begins.windows(2);
    pairs.map(|pair| seconds_between(pair[0], pair[1])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_answers_do_not_hide_a_late_attempt_at_the_lease() {
        let at = |milliseconds: i64| Timestamp::from_millisecond(milliseconds).unwrap();
        // Three attempts of two requests each; the second one is slow, the third one late.
        let requests = [
            (0, 10),
            (15, 30),
            (5000, 6900),
            (6910, 7000),
            (10_300, 10_310),
            (10_315, 10_400),
        ];
        let intervals = attempt_intervals(requests.into_iter().map(|(from, to)| (at(from), at(to))));
        let expected = [5.0, 5.3];
        assert!(
            intervals.len() == 2 && intervals.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-9),
            "{intervals:?}"
        );
    }
}
