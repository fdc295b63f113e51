//! Heartbeats of all nodes and nothing else.

use crate::{
    Fleet, number,
    operator_process::processor_seconds,
    progress::with_progress,
    scenarios::{label_policy, measured_change},
    simulated_agents::HEARTBEAT,
};
use anyhow::{Result, ensure};
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
    /// Heartbeats that the API server accepted in a second.
    pub heartbeats: f64,
}

/// Measures for this time.
pub async fn idle(fleet: &mut Fleet, time: Duration) -> Result<Idle> {
    let pair = fleet.start_pair().await?;
    measured_change(fleet, &pair, &[label_policy(0)], fleet.size()).await?;
    fleet.send_heartbeats();
    let (leader, standby) = fleet.leader_and_standby(&pair).await?;
    let pids = [pair.get(leader).pid(), pair.get(standby).pid()];
    let mut requests = fleet.requests()?;
    let (begin, heartbeats) = (Instant::now(), fleet.agents().heartbeats());
    let before = pids.map(processor_seconds);
    with_progress("heartbeats alone", sleep(time)).await;
    let after = pids.map(processor_seconds);
    let elapsed = begin.elapsed().as_secs_f64();
    let heartbeats = number(fleet.agents().heartbeats() - heartbeats) / elapsed;
    let expected = number(fleet.size()) / HEARTBEAT.as_secs_f64();
    // Without them the figure would be that of an idle API server.
    ensure!(
        heartbeats > 0.8 * expected,
        "{heartbeats:.1} of {expected:.1} heartbeats a second are accepted"
    );
    let mut shares = Vec::new();
    for (before, after) in before.into_iter().zip(after) {
        shares.push((after? - before?) / elapsed * 100.0);
    }
    Ok(Idle {
        leader: shares[0],
        standby: shares[1],
        writes: requests.writes()?.count(),
        heartbeats,
    })
}
