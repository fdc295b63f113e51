//! Refused evictions that people were told of.

use crate::index::evictions::EvictionKey;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// Pause until the same refusal is announced again: API servers forget an event after an hour (`--event-ttl`).
const REPEAT: Duration = Duration::from_mins(30);

/// The last announced refusal of each pod whose eviction is tried again.
#[derive(Clone, Default)]
pub struct AnnouncedRefusals(Arc<Mutex<HashMap<EvictionKey, AnnouncedRefusal>>>);

struct AnnouncedRefusal {
    /// UID of the pod.
    pod: Option<String>,
    message: String,
    at: Instant,
}

impl AnnouncedRefusals {
    /// Returns true if this refusal has to be announced, which it then counts as.
    pub fn put(&self, key: &EvictionKey, pod: Option<&String>, message: &str) -> bool {
        let mut announced = self.lock();
        let is_known = |of: &AnnouncedRefusal| {
            (of.pod.as_ref(), of.message.as_str()) == (pod, message) && of.at.elapsed() < REPEAT
        };
        if announced.get(key).is_some_and(is_known) {
            return false;
        }
        let refusal = AnnouncedRefusal {
            pod: pod.cloned(),
            message: message.to_owned(),
            at: Instant::now(),
        };
        announced.insert(key.clone(), refusal);
        true
    }

    /// Forgets a pod whose eviction is over.
    pub fn remove(&self, key: &EvictionKey) {
        self.lock().remove(key);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<EvictionKey, AnnouncedRefusal>> {
        // No code that could panic runs under the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
