//! The watches: how long ago each heard from the API server.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, gauge::Gauge},
    registry::{Registry, Unit},
};
use std::{sync::atomic::AtomicU64, time::Duration};

/// Metrics of the watches.
#[derive(Debug)]
pub struct WatchMetrics {
    ages: Family<WatchLabel, Gauge<f64, AtomicU64>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WatchLabel {
    /// Plural name, also `resourceslices`, and `pods` while a policy has `deleteRejectedPods`, both of which `/readyz` ignores.
    resource: String,
}

impl WatchMetrics {
    /// Metrics without any watch.
    pub fn new(registry: &mut Registry) -> Self {
        let ages = Family::<WatchLabel, Gauge<f64, AtomicU64>>::default();
        registry.register_with_unit(
            "watch_age",
            "Time since a list or watch last brought something",
            Unit::Seconds,
            ages.clone(),
        );
        Self { ages }
    }

    /// Sets the time since each watch last heard from the API server, by plural name of its resource.
    pub fn set(&self, ages: impl IntoIterator<Item = (String, Duration)>) {
        self.ages.clear();
        for (resource, age) in ages {
            self.ages.get_or_create(&WatchLabel { resource }).set(age.as_secs_f64());
        }
    }
}
