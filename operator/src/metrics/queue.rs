//! The work queue: its depth, the time that keys wait, and retries. Names are those of client-go's `workqueue`.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Registry, Unit},
};
use std::{sync::atomic::AtomicU64, time::Duration};

/// Upper bounds of the buckets for the time that a key waits, in seconds. Urgent keys should wait less than one.
const WAIT_BUCKETS: [f64; 13] = [
    0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0, 60.0, 300.0,
];

/// Class of a key, the values of the label `class`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum WorkClass {
    /// Changes of the whole fleet.
    #[default]
    Ordinary,
    /// Something that a person waits for.
    Urgent,
}

impl WorkClass {
    fn as_str(self) -> &'static str {
        match self {
            Self::Urgent => "urgent",
            Self::Ordinary => "ordinary",
        }
    }
}

/// Reasons to try a key again, the values of the label `reason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryReason {
    /// The object changed meanwhile.
    Conflict,
    /// The API server refused the write or could not be asked.
    Failure,
    /// The API server says that it is too early.
    TooEarly,
}

impl RetryReason {
    fn as_str(self) -> &'static str {
        match self {
            Self::Conflict => "conflict",
            Self::Failure => "failure",
            Self::TooEarly => "too_early",
        }
    }
}

/// Numbers of the work queue at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueNumbers {
    /// Urgent keys that are due.
    pub urgent: usize,
    /// Ordinary keys that are due.
    pub ordinary: usize,
    /// Time for which the key waits that has been due the longest.
    pub oldest: Duration,
    /// Nodes that a sweep over the fleet has not planned yet.
    pub sweep: usize,
}

/// Metrics of the work queue. Clones share the numbers.
#[derive(Clone, Debug)]
pub struct QueueMetrics {
    depth: Family<ClassLabel, Gauge>,
    longest_wait: Gauge<f64, AtomicU64>,
    sweep: Gauge,
    waits: Family<ClassLabel, Histogram, fn() -> Histogram>,
    retries: Family<ReasonLabel, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ClassLabel {
    /// `urgent` or `ordinary`.
    class: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    /// `conflict`, `failure` or `too_early`.
    reason: &'static str,
}

impl QueueMetrics {
    /// Metrics at zero.
    pub fn new(registry: &mut Registry) -> Self {
        let metrics = Self {
            depth: Family::default(),
            longest_wait: Gauge::default(),
            sweep: Gauge::default(),
            waits: Family::new_with_constructor((|| Histogram::new(WAIT_BUCKETS)) as fn() -> Histogram),
            retries: Family::default(),
        };
        registry.register(
            "workqueue_depth",
            "Objects that wait in the work queue",
            metrics.depth.clone(),
        );
        registry.register_with_unit(
            "workqueue_longest_wait",
            "Time for which the first object in the work queue waits",
            Unit::Seconds,
            metrics.longest_wait.clone(),
        );
        registry.register(
            "sweep_pending_nodes",
            "Nodes that a change of the whole fleet has not planned yet; on the leader",
            metrics.sweep.clone(),
        );
        registry.register_with_unit(
            "workqueue_queue_duration",
            "Time that an object waited in the work queue",
            Unit::Seconds,
            metrics.waits.clone(),
        );
        registry.register(
            "workqueue_retries",
            "Objects that are tried again",
            metrics.retries.clone(),
        );
        metrics
    }

    /// Observes the time for which a key was due when it was taken.
    pub fn waited(&self, class: WorkClass, wait: Duration) {
        let class = class.as_str();
        self.waits
            .get_or_create(&ClassLabel { class })
            .observe(wait.as_secs_f64());
    }

    /// Counts a key that is queued again.
    pub fn retried(&self, reason: RetryReason) {
        let reason = reason.as_str();
        self.retries.get_or_create(&ReasonLabel { reason }).inc();
    }

    /// Sets the numbers of this moment.
    pub fn set(&self, numbers: QueueNumbers) {
        let QueueNumbers {
            urgent,
            ordinary,
            oldest,
            sweep,
        } = numbers;
        for (class, depth) in [(WorkClass::Urgent, urgent), (WorkClass::Ordinary, ordinary)] {
            let class = class.as_str();
            self.depth
                .get_or_create(&ClassLabel { class })
                .set(i64::try_from(depth).unwrap_or(i64::MAX));
        }
        self.longest_wait.set(oldest.as_secs_f64());
        self.sweep.set(i64::try_from(sweep).unwrap_or(i64::MAX));
    }
}
