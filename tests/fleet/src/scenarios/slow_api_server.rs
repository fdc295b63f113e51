//! Every request to the API server is late, by a relay between the operators and the API server.

use crate::{
    Fleet,
    audit::{OperatorRequest, seconds_between},
    number,
    probes::LivenessProbes,
    quantile,
    raw::{CONNECTIONS, raw_change},
    relay::SlowRelay,
    scenarios::{NodeSample, QUIET, label_policy_of, measured_change, most_writes},
};
use anyhow::{Result, ensure};
use jiff::Timestamp;
use std::time::Duration;

/// Time by which each request is late.
const DELAY: Duration = Duration::from_millis(200);

/// A change of a label and a taint while every request is late.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlowApiServer {
    /// Number of nodes that changed.
    pub nodes: usize,
    /// From the edit until the policy counts every node as ready.
    pub seconds: f64,
    /// These seconds, of the delays of four requests at a time and the writes of a bare client on the quick API server.
    pub ratio: f64,
    /// Longest time from one renewal of the Lease to the next, in seconds.
    pub renewals: f64,
    /// 99th percentile of the leader's answers to `/livez`, in milliseconds.
    pub livez: f64,
    /// Most requests to write one node, those among them that were not accepted.
    pub most_requests: usize,
}

/// Measures one change.
pub async fn slow_api_server(fleet: &Fleet) -> Result<SlowApiServer> {
    raw_change(fleet, 0).await?;
    let raw = raw_change(fleet, 1).await?;
    let relay = SlowRelay::start(fleet.api_server_address()?).await?;
    let mut pair = fleet.start_pair_through(relay.address()).await?;
    let sample = NodeSample::of(fleet);
    let nodes = sample.names.len();
    let policy = |round| label_policy_of(&sample.selector, round);
    measured_change(fleet, &pair, &[policy(0)], nodes).await?;

    let (leader, _) = fleet.leader_and_standby(&pair).await?;
    relay.slow_down(DELAY);
    let mut requests = fleet.requests()?;
    let probes = LivenessProbes::start(pair.get(leader).address());
    let begin = Timestamp::now();
    let (name, spec) = policy(1);
    fleet.apply_policy(&name, &spec).await?;
    fleet.await_written(&mut requests, "nodes", nodes).await?;
    fleet.await_ready_nodes(&name, nodes).await?;
    let end = Timestamp::now();
    fleet.await_quiet(&mut requests, QUIET).await?;
    let livez: Vec<f64> = probes
        .finish()?
        .iter()
        .map(|took| took.as_secs_f64() * 1000.0)
        .collect();
    // One that loses the Lease ends.
    pair.get_mut(leader).ensure_running()?;
    let now_leading = fleet.leader_and_standby(&pair).await?.0;
    ensure!(now_leading == leader, "the leader lost the Lease");

    let renewals = requests.read()?.iter().filter(|request| request.is_renewal());
    let renewals: Vec<Timestamp> = renewals.map(renewed_at).collect();
    let seconds = seconds_between(begin, end);
    let delays = number(nodes) / number(CONNECTIONS) * DELAY.as_secs_f64();
    let allowed = delays + raw * number(nodes) / number(fleet.size());
    Ok(SlowApiServer {
        nodes,
        seconds,
        ratio: seconds / allowed,
        renewals: longest_pause(begin, &renewals, end),
        livez: quantile(&livez, 0.99),
        most_requests: most_writes(&requests.write_requests_by_name("nodes")?),
    })
}

fn renewed_at(renewal: &OperatorRequest) -> Timestamp {
    renewal.stage_timestamp
}

/// Returns the longest time without a renewal between two moments, in seconds.
fn longest_pause(begin: Timestamp, renewals: &[Timestamp], end: Timestamp) -> f64 {
    let within = renewals.iter().filter(|at| (begin..end).contains(*at)).copied();
    let moments: Vec<Timestamp> = [begin].into_iter().chain(within).chain([end]).collect();
    let pauses = moments.windows(2).map(|pair| seconds_between(pair[0], pair[1]));
    pauses.fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_before_the_first_and_after_the_last_renewal_counts() {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        let longest = |renewals: &[i64]| {
            let renewals: Vec<Timestamp> = renewals.iter().map(|second| at(*second)).collect();
            longest_pause(at(10), &renewals, at(30))
        };
        for (renewals, expected) in [
            (&[15, 20, 25][..], 5.0),
            (&[22, 25][..], 12.0),
            (&[12, 14][..], 16.0),
            (&[][..], 20.0),
        ] {
            assert!((longest(renewals) - expected).abs() < 1e-9, "{renewals:?}");
        }
        assert!((longest(&[5, 20, 40]) - 10.0).abs() < 1e-9, "others do not count");
    }
}
