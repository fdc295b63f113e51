//! The thread `lead`: holds the Lease and serves probes and metrics, so that nothing that plans, watches or writes
//! delays them.

use crate::{
    admin::AdminServer,
    index::{summary::ClusterSummary, work::WorkKey},
    leader_election::{CacheView, ElectionSettings, LeaderElector, LeadershipOwner, LeaseDurations},
    metrics::OperatorMetrics,
    watch::WatchHealth,
    work_queue::WorkQueue,
};
use anyhow::{Context, Result};
use kube::{Client, Config};
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tokio::{
    sync::{oneshot, watch},
    time::timeout,
};

/// The longest wait for writes to end before the Lease is released. None begins in this time.
pub const WRITES_END_WITHIN: Duration = Duration::from_millis(500);
/// The longest that this thread goes on after the leadership has ended: an attempt under way (1 s), the wait for
/// writes, and the release (2 s).
pub const LEAD_ENDS_WITHIN: Duration = Duration::from_secs(4);

/// Inputs of the thread.
pub struct LeadThread {
    /// The thread makes its own client of this: connections belong to the runtime that made them.
    pub config: Config,
    pub namespace: String,
    /// Name of this pod.
    pub identity: String,
    pub durations: LeaseDurations,
    pub caches: CacheView,
    pub watch_health: WatchHealth,
    pub leadership: LeadershipOwner,
    /// Learns that no write is under way any more, so that the Lease can be released.
    pub writes_ended: oneshot::Receiver<()>,
    pub admin_address: SocketAddr,
    pub summary: watch::Receiver<Arc<ClusterSummary>>,
    /// The reconciler's queue, whose numbers are metrics.
    pub queue: Arc<WorkQueue<WorkKey>>,
    pub metrics: Arc<OperatorMetrics>,
}

impl LeadThread {
    /// Leads and serves until the leadership ends, then waits for the end of all writes and releases the Lease.
    pub async fn run(self) -> Result<()> {
        let client = Client::try_from(self.config).context("make a client for the Lease")?;
        let mut elector = LeaderElector::new(
            client,
            ElectionSettings {
                namespace: self.namespace,
                identity: self.identity,
                durations: self.durations,
                caches: self.caches,
                leadership: self.leadership.clone(),
                metrics: self.metrics.election.clone(),
            },
        );
        let admin = AdminServer {
            address: self.admin_address,
            summary: self.summary,
            heartbeat: elector.heartbeat(),
            stuck_after: self.durations.stuck_after(),
            renewed_at: elector.renewed_at(),
            leadership: self.leadership.follow(),
            other_leader: elector.other_leader(),
            queue: self.queue,
            watch_health: self.watch_health,
            metrics: self.metrics,
        };
        let result = tokio::select! {
            ended = elector.run() => ended.map_err(anyhow::Error::from),
            ended = admin.run() => ended,
        };
        self.leadership.end();
        // Every write ends here. The next leader finds what is half done by comparison.
        let _ = timeout(WRITES_END_WITHIN * 2, self.writes_ended).await;
        elector.release().await;
        result
    }
}
