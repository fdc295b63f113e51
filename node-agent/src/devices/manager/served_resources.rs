//! The registered resources behind their lock.

use crate::devices::served::{ListHold, OtherPluginEvidence, ServedResource};
use gpunode_gpu::{AdvertisedResource, KubeletObservation};
use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};
use tokio::sync::watch;

/// Registered resources by name, which registrations, servers and observations change.
#[derive(Debug, Default)]
pub struct RegistrationWatches(Mutex<BTreeMap<String, RegistrationWatch>>);

/// A registered resource.
#[derive(Debug)]
struct RegistrationWatch {
    served: ServedResource,
    /// Reason for its server to hold lists back. Set before a list that follows from the same observation.
    hold: watch::Sender<Option<ListHold>>,
}

impl RegistrationWatch {
    fn change(&mut self, change: impl FnOnce(&mut ServedResource)) {
        change(&mut self.served);
        let new = self.served.list_hold();
        self.hold.send_if_modified(|hold| mem::replace(hold, new) != new);
    }
}

impl RegistrationWatches {
    /// Begins with a new registration of a resource. `hold` makes its server hold lists back.
    pub fn begin(&self, resource: &str, hold: watch::Sender<Option<ListHold>>) {
        let served = ServedResource::new(Instant::now());
        self.lock()
            .insert(resource.to_owned(), RegistrationWatch { served, hold });
    }

    /// Forgets a resource that is no longer registered.
    pub fn end(&self, resource: &str) {
        self.lock().remove(resource);
    }

    /// Notes a list that the kubelet is sent.
    pub fn send(&self, list: &Arc<AdvertisedResource>) {
        if let Some(watch) = self.lock().get_mut(&list.name) {
            watch.change(|served| served.send(list, Instant::now()));
        }
    }

    /// Notes a request of the kubelet for `ids`.
    pub fn request(&self, resource: &str, ids: &[String]) {
        if let Some(watch) = self.lock().get_mut(resource) {
            watch.change(|served| served.request(ids, Instant::now()));
        }
    }

    /// Notes that another plugin may have registered any of the resources.
    pub fn doubt(&self) {
        for watch in self.lock().values_mut() {
            watch.change(|served| served.doubt(Instant::now()));
        }
    }

    /// Compares the resources with those that have healthy devices in the kubelet in an observation that began at `started`.
    pub fn observe_allocatable(&self, started: Instant, names: &BTreeSet<String>) {
        for (name, watch) in &mut *self.lock() {
            watch.change(|served| served.observe_listed(started, names.contains(name)));
        }
    }

    /// Compares the resources with an observation.
    pub fn observe(&self, observation: &KubeletObservation) {
        for (name, watch) in &mut *self.lock() {
            watch.change(|served| served.observe(name, observation));
        }
    }

    /// Returns the evidence that another plugin serves a registered resource.
    pub fn other(&self, resource: &str) -> Option<OtherPluginEvidence> {
        self.lock().get(resource)?.served.other().cloned()
    }

    /// Returns true if the kubelet has nothing of a registered resource, though it had the time to take the list in.
    pub fn is_missing(&self, resource: &str) -> bool {
        self.lock().get(resource).is_some_and(|watch| watch.served.is_missing())
    }

    /// Returns true if the next observation must follow soon.
    pub fn are_doubtful(&self) -> bool {
        self.lock().values().any(|watch| watch.served.is_doubtful())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, RegistrationWatch>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
