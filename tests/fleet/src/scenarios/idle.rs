//! Heartbeats of all nodes and nothing else.

use crate::{
    Fleet,
    operator_process::processor_seconds,
    scenarios::{label_policy, measured_change},
};
use anyhow::Result;
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// A time without changes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Idle {
    /// Processor time of the leader, in percent of one core.
    pub leader: f64,
    /// The same of the standby.
    pub standby: f64,
    /// Writes of the operators, the Lease left out.
    pub writes: usize,
}

/// Measures for this time.
pub async fn idle(fleet: &mut Fleet, time: Duration) -> Result<Idle> {
    let pair = fleet.start_pair().await?;
    measured_change(fleet, &pair, &[label_policy(0)], fleet.size()).await?;
    fleet.send_heartbeats();
    let (leader, standby) = fleet.leader_and_standby(&pair).await?;
    let pids = [pair.get(leader).pid(), pair.get(standby).pid()];
    let mut requests = fleet.requests()?;
    let begin = Instant::now();
    let before = pids.map(processor_seconds);
    sleep(time).await;
    let after = pids.map(processor_seconds);
    let elapsed = begin.elapsed().as_secs_f64();
    let mut shares = Vec::new();
    for (before, after) in before.into_iter().zip(after) {
        shares.push((after? - before?) / elapsed * 100.0);
    }
    Ok(Idle {
        leader: shares[0],
        standby: shares[1],
        writes: requests.writes()?.count(),
    })
}
