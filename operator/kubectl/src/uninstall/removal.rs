//! One removal: its requests, its deadline, and what it reports.

use super::{installed::InstalledObject, leftover::Leftover, progress::RemovalProgress, requests::RemovalRequests};
use std::time::{Duration, Instant};

/// Longest time of a removal, not counting the wait for stale resources.
const LIMIT: Duration = Duration::from_secs(115);
/// Time between two checks of something that is awaited.
const PAUSE: Duration = Duration::from_millis(500);

/// A removal of gpunode from one cluster.
pub struct Removal {
    pub requests: RemovalRequests,
    /// Time at which a step stops waiting.
    pub end: Instant,
    pub progress: RemovalProgress,
    /// Objects and resources that could not be removed.
    pub leftovers: Vec<Leftover>,
    /// Remains that need no action.
    pub notes: Vec<String>,
}

impl Removal {
    /// Starts the clock of a removal.
    pub fn new(requests: RemovalRequests, progress: RemovalProgress) -> Self {
        Self {
            requests,
            end: Instant::now() + LIMIT,
            progress,
            leftovers: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Starts the clock again, so that the time of a person's answer does not count.
    pub fn restart(&mut self, progress: RemovalProgress) {
        self.end = Instant::now() + LIMIT;
        self.progress = progress;
    }

    /// Requests the deletion of an object, and records a refusal. Returns false where there was nothing to delete.
    pub async fn delete(&mut self, object: &InstalledObject) -> bool {
        match self.requests.delete(object).await {
            Ok(deleted) => deleted,
            Err(error) => {
                self.leave(&object.to_string(), format!("{error:#}"));
                false
            }
        }
    }

    /// Records something that stays, and why.
    pub fn leave(&mut self, what: &str, why: impl Into<String>) {
        self.leftovers.push(Leftover {
            what: what.to_owned(),
            why: why.into(),
        });
    }

    /// Returns the time `limit` from now, or the end of the removal if that is sooner.
    pub fn within(&self, limit: Duration) -> Instant {
        self.end.min(Instant::now() + limit)
    }
}

/// Waits until the next check.
pub async fn pause() {
    tokio::time::sleep(PAUSE).await;
}
