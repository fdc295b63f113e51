//! The registered resources behind their lock.

use crate::devices::served::{OtherPluginEvidence, ServedResource};
use gpunode_gpu::{AdvertisedResource, KubeletObservation};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

/// Registered resources by name, which registrations, servers and observations change.
#[derive(Debug, Default)]
pub struct RegistrationWatches(Mutex<BTreeMap<String, ServedResource>>);

impl RegistrationWatches {
    /// Begins with a new registration of a resource.
    pub fn begin(&self, resource: &str) {
        self.lock()
            .insert(resource.to_owned(), ServedResource::new(Instant::now()));
    }

    /// Forgets a resource that is no longer registered.
    pub fn end(&self, resource: &str) {
        self.lock().remove(resource);
    }

    /// Notes a list that the kubelet is sent.
    pub fn send(&self, list: &Arc<AdvertisedResource>) {
        if let Some(served) = self.lock().get_mut(&list.name) {
            served.send(list, Instant::now());
        }
    }

    /// Notes a request of the kubelet for `ids`.
    pub fn request(&self, resource: &str, ids: &[String]) {
        if let Some(served) = self.lock().get_mut(resource) {
            served.request(ids, Instant::now());
        }
    }

    /// Compares the resources with an observation.
    pub fn observe(&self, observation: &KubeletObservation) {
        for (name, served) in &mut *self.lock() {
            served.observe(name, observation);
        }
    }

    /// Returns the evidence that another plugin serves a registered resource.
    pub fn other(&self, resource: &str) -> Option<OtherPluginEvidence> {
        self.lock().get(resource)?.other().cloned()
    }

    /// Returns true if the next observation must follow soon.
    pub fn are_doubtful(&self) -> bool {
        self.lock().values().any(ServedResource::is_doubtful)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, ServedResource>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
