//! The device list of one resource, as the kubelet gets it.

use gpunode_gpu::AdvertisedResource;
use std::sync::Arc;

/// Advertised list of one resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdvertisedList {
    /// Resource with its shares.
    pub resource: Arc<AdvertisedResource>,
    /// Number of times that the unchanged list was sent again; a higher number sends it again.
    pub resend: u64,
}

impl AdvertisedList {
    /// Returns the resource's name, and the numbers of its healthy and unhealthy shares.
    pub fn counts(&self) -> (&str, usize, usize) {
        let healthy = self.healthy();
        (&self.resource.name, healthy, self.resource.shares.len() - healthy)
    }

    /// Returns the number of healthy shares.
    pub fn healthy(&self) -> usize {
        self.resource.shares.iter().filter(|share| share.healthy).count()
    }
}
