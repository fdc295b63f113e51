//! The caches: objects by resource.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, gauge::Gauge},
    registry::Registry,
};

/// Metrics of the caches.
#[derive(Debug)]
pub struct CacheMetrics {
    objects: Family<CacheLabel, Gauge>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CacheLabel {
    /// Plural name.
    resource: &'static str,
}

impl CacheMetrics {
    /// Metrics without any cache.
    pub fn new(registry: &mut Registry) -> Self {
        let objects = Family::<CacheLabel, Gauge>::default();
        registry.register("cache_objects", "Objects in memory", objects.clone());
        Self { objects }
    }

    /// Sets the number of objects of each cache, by plural name of its resource.
    pub fn set(&self, sizes: impl IntoIterator<Item = (&'static str, usize)>) {
        for (resource, size) in sizes {
            self.objects
                .get_or_create(&CacheLabel { resource })
                .set(i64::try_from(size).unwrap_or(i64::MAX));
        }
    }
}
