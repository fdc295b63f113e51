//! Reconciles and writes, by kind.

use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue},
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::{Registry, Unit},
};
use std::time::Duration;

/// Upper bounds of the buckets for the time to plan one key, in seconds.
const PLANNING_BUCKETS: [f64; 12] = [
    0.000_05, 0.0001, 0.000_25, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.0,
];
/// Upper bounds of the buckets for a whole reconcile, in seconds. The writes of one key may take 10 s.
const RECONCILE_BUCKETS: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0];

/// Kinds of work, the values of the label `kind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum WorkKind {
    /// Labels, taints and record of a Node.
    Node,
    /// Configuration and conditions of a `GpuNode`.
    GpuNode,
    DaemonSet,
    /// Status of a policy.
    Status,
    /// The next nodes of a sweep over the fleet, or of the removal of what a deleted policy wrote.
    Sweep,
    /// The next nodes of a pass for policies in mode Preview.
    Previews,
    Event,
    /// Eviction or deletion of a pod.
    Pod,
}

/// End of a write, the values of the label `result`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    /// The API server accepted the request.
    Accepted,
    /// The object changed, came or went meanwhile, or this process no longer leads.
    Conflict,
    /// The API server refuses this very write, or an eviction for now.
    Refused,
    /// The API server could not be asked, did not answer in time, or was too busy.
    Failed,
}

impl WriteOutcome {
    fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Conflict => "conflict",
            Self::Refused => "refused",
            Self::Failed => "failed",
        }
    }
}

/// Metrics of reconciles and writes.
#[derive(Debug)]
pub struct WriteMetrics {
    reconciles: Family<KindLabel, Counter>,
    writes: Family<WriteLabels, Counter>,
    errors: Family<KindLabel, Counter>,
    planning: Family<KindLabel, Histogram, fn() -> Histogram>,
    reconciling: Family<KindLabel, Histogram, fn() -> Histogram>,
    events_dropped: Counter,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    /// Kind of the object.
    kind: WorkKind,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WriteLabels {
    /// Kind of the object.
    kind: WorkKind,
    /// `accepted`, `conflict`, `refused` or `failed`.
    result: &'static str,
}

impl WriteMetrics {
    /// Metrics at zero.
    pub fn new(registry: &mut Registry) -> Self {
        let metrics = Self {
            reconciles: Family::default(),
            writes: Family::default(),
            errors: Family::default(),
            planning: Family::new_with_constructor((|| Histogram::new(PLANNING_BUCKETS)) as fn() -> Histogram),
            reconciling: Family::new_with_constructor((|| Histogram::new(RECONCILE_BUCKETS)) as fn() -> Histogram),
            events_dropped: Counter::default(),
        };
        registry.register(
            "reconciles",
            "Reconciled objects, including those that needed no write",
            metrics.reconciles.clone(),
        );
        registry.register(
            "writes",
            "Requests that the API server accepted, and objects whose write ended otherwise",
            metrics.writes.clone(),
        );
        registry.register(
            "errors",
            "Failed reconciles, without conflicts and without evictions that the API server refuses",
            metrics.errors.clone(),
        );
        registry.register_with_unit(
            "planning_time",
            "Time to compute what one object needs",
            Unit::Seconds,
            metrics.planning.clone(),
        );
        registry.register_with_unit(
            "reconcile_time",
            "Time from taking an object from the work queue to the end of its writes",
            Unit::Seconds,
            metrics.reconciling.clone(),
        );
        registry.register(
            "events_dropped",
            "Events that were dropped because too many waited",
            metrics.events_dropped.clone(),
        );
        metrics
    }

    /// Counts a reconcile.
    pub fn reconciled(&self, kind: WorkKind) {
        self.reconciles.get_or_create(&KindLabel { kind }).inc();
    }

    /// Counts the end of a write.
    pub fn ended(&self, kind: WorkKind, outcome: WriteOutcome) {
        let result = outcome.as_str();
        self.writes.get_or_create(&WriteLabels { kind, result }).inc();
    }

    /// Counts an event that is dropped because too many wait.
    pub fn event_dropped(&self) {
        self.events_dropped.inc();
    }

    /// Counts a failed reconcile.
    pub fn failed(&self, kind: WorkKind) {
        self.errors.get_or_create(&KindLabel { kind }).inc();
    }

    /// Observes the time that the plan of one key took.
    pub fn planned(&self, kind: WorkKind, took: Duration) {
        self.planning
            .get_or_create(&KindLabel { kind })
            .observe(took.as_secs_f64());
    }

    /// Observes the time from taking a key to the end of its writes.
    pub fn finished(&self, kind: WorkKind, took: Duration) {
        self.reconciling
            .get_or_create(&KindLabel { kind })
            .observe(took.as_secs_f64());
    }
}
