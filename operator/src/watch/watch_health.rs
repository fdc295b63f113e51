//! Watches that cannot be started.

use kube::runtime::watcher::Error;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// A watch that cannot be started for this long does not follow the cluster.
const FAILING_AFTER: Duration = Duration::from_mins(1);
/// Tries are at most this far apart. A watch that starts and brings nothing tells so by no further error alone.
const LONGEST_PAUSE: Duration = Duration::from_secs(90);

/// Errors in a row, by kind of object.
#[derive(Clone, Debug, Default)]
pub struct WatchHealth(Arc<Mutex<HashMap<String, FailedStarts>>>);

#[derive(Clone, Copy, Debug)]
struct FailedStarts {
    first: Instant,
    last: Instant,
}

impl WatchHealth {
    /// Records an error of a watch. One that ends after it was started has worked until then.
    pub fn failed(&self, kind: &str, error: &Error, now: Instant) {
        match error {
            Error::InitialListFailed(_) | Error::WatchStartFailed(_) | Error::NoResourceVersion => {
                let mut all = self.lock();
                let failed = all
                    .entry(kind.to_owned())
                    .or_insert(FailedStarts { first: now, last: now });
                if now - failed.last > LONGEST_PAUSE {
                    failed.first = now;
                }
                failed.last = now;
            }
            Error::WatchError(_) | Error::WatchFailed(_) => self.worked(kind),
        }
    }

    /// Records that a watch brought something.
    pub fn worked(&self, kind: &str) {
        self.lock().remove(kind);
    }

    /// True if a watch could not be started for a minute.
    pub fn is_failing(&self, now: Instant) -> bool {
        let is_failing =
            |failed: &FailedStarts| failed.last - failed.first >= FAILING_AFTER && now - failed.last <= LONGEST_PAUSE;
        self.lock().values().any(is_failing)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, FailedStarts>> {
        // No code that could panic runs under the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn watch_fails_when_it_cannot_be_started_for_a_minute_and_until_it_brings_something() {
        let health = WatchHealth::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        for (seconds, is_failing) in [(0, false), (30, false), (59, false), (61, true)] {
            health.failed("nodes", &Error::NoResourceVersion, at(seconds));
            assert_eq!(health.is_failing(at(seconds)), is_failing, "{seconds}");
        }
        health.worked("policies");
        assert!(health.is_failing(at(62)));
        health.worked("nodes");
        assert!(!health.is_failing(at(62)));
    }

    #[tokio::test(start_paused = true)]
    async fn errors_long_apart_are_no_failure_and_one_without_another_has_ended() {
        let health = WatchHealth::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        for seconds in [0, 300, 600] {
            health.failed("nodes", &Error::NoResourceVersion, at(seconds));
            assert!(!health.is_failing(at(seconds)));
        }
        health.failed("nodes", &Error::NoResourceVersion, at(670));
        assert!(health.is_failing(at(670)));
        assert!(!health.is_failing(at(800)), "no error since, so the watch was started");
    }
}
