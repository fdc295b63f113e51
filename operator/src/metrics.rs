//! Prometheus metrics. Label values are constants and a bounded number of policy names.
//!
//! | module | what it does |
//! |---|---|
//! | `writes` | reconciles and writes, by kind |
//! | `queue` | depth of the work queue, waits and retries |
//! | `policies` | policies, their nodes and their conditions |
//! | `election` | leadership and the age of the Lease |
//! | `watches` | age of each watch |
//! | `caches` | size of each cache |

mod caches;
mod election;
mod policies;
mod queue;
mod watches;
mod writes;

pub use election::ElectionMetrics;
pub use policies::MAX_POLICIES;
pub use queue::{QueueMetrics, QueueNumbers, RetryReason, WorkClass};
pub use writes::{WorkKind, WriteOutcome};

use crate::metrics::{caches::CacheMetrics, policies::PolicyMetrics, watches::WatchMetrics, writes::WriteMetrics};
use prometheus_client::{encoding::text::encode, metrics::info::Info, registry::Registry};

/// The operator's metrics.
#[derive(Debug)]
pub struct OperatorMetrics {
    registry: Registry,
    pub writes: WriteMetrics,
    pub queue: QueueMetrics,
    pub policies: PolicyMetrics,
    pub election: ElectionMetrics,
    pub watches: WatchMetrics,
    pub caches: CacheMetrics,
}

impl OperatorMetrics {
    /// Metrics at zero.
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix("gpunode_operator");
        registry.register(
            "build",
            "Version of the program",
            Info::new([("version", env!("CARGO_PKG_VERSION"))]),
        );
        Self {
            writes: WriteMetrics::new(&mut registry),
            queue: QueueMetrics::new(&mut registry),
            policies: PolicyMetrics::new(&mut registry),
            election: ElectionMetrics::new(&mut registry),
            watches: WatchMetrics::new(&mut registry),
            caches: CacheMetrics::new(&mut registry),
            registry,
        }
    }

    /// Counts a reconcile.
    pub fn reconciled(&self, kind: WorkKind) {
        self.writes.reconciled(kind);
    }

    /// Counts a write that the API server accepted.
    pub fn wrote(&self, kind: WorkKind) {
        self.writes.ended(kind, WriteOutcome::Accepted);
    }

    /// Counts a failed reconcile.
    pub fn failed(&self, kind: WorkKind) {
        self.writes.failed(kind);
    }

    /// Returns the metrics in the OpenMetrics text format.
    pub fn render(&self) -> String {
        let mut text = String::new();
        // Writing into a string cannot fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

#[cfg(test)]
mod tests;
