//! Leadership, and the Lease behind it.

use prometheus_client::{
    metrics::{gauge::Gauge, histogram::Histogram},
    registry::{Registry, Unit},
};
use std::{sync::atomic::AtomicU64, time::Duration};

/// Upper bounds of the buckets for the lateness of the election, in seconds. Timers are exact to a millisecond.
const LATENESS_BUCKETS: [f64; 11] = [0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0];

/// Metrics of the leader election. Clones share the numbers.
#[derive(Clone, Debug)]
pub struct ElectionMetrics {
    leader: Gauge,
    lease_age: Gauge<f64, AtomicU64>,
    lateness: Histogram,
}

impl ElectionMetrics {
    /// Metrics at zero.
    pub fn new(registry: &mut Registry) -> Self {
        let metrics = Self {
            leader: Gauge::default(),
            lease_age: Gauge::default(),
            lateness: Histogram::new(LATENESS_BUCKETS),
        };
        registry.register("is_leader", "1 on the leader, else 0", metrics.leader.clone());
        registry.register_with_unit(
            "lease_age",
            "Time since this replica last renewed the Lease; 0 if it does not hold it",
            Unit::Seconds,
            metrics.lease_age.clone(),
        );
        registry.register_with_unit(
            "lease_renewal_lateness",
            "Delay with which an attempt to take or renew the Lease began",
            Unit::Seconds,
            metrics.lateness.clone(),
        );
        metrics
    }

    /// Sets `is_leader`, and the time since the last renewal of the Lease; `None` if this replica does not hold it.
    pub fn set(&self, is_leader: bool, lease_age: Option<Duration>) {
        self.leader.set(is_leader.into());
        self.lease_age.set(lease_age.unwrap_or_default().as_secs_f64());
    }

    /// Observes how long after its time an attempt to take or renew the Lease began.
    pub fn attempt_began(&self, lateness: Duration) {
        self.lateness.observe(lateness.as_secs_f64());
    }
}
