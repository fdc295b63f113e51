//! What the kubelet is offered under one resource name.

use gpunode_gpu::AdvertisedResource;
use std::sync::Arc;

/// What is offered under a resource name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdvertisedList {
    /// The list.
    pub list: Arc<AdvertisedResource>,
    /// How often the list is to be sent again though it has not changed.
    pub resend: u64,
}

impl AdvertisedList {
    /// Its resource, and how many of its shares the kubelet may give out and may not.
    pub fn counts(&self) -> (&str, usize, usize) {
        let healthy = self.healthy();
        (&self.list.name, healthy, self.list.shares.len() - healthy)
    }

    /// How many of its shares the kubelet may give out.
    pub fn healthy(&self) -> usize {
        self.list.shares.iter().filter(|share| share.healthy).count()
    }
}
