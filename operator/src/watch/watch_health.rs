//! Kinds that cannot be listed or watched.

use kube::runtime::watcher::Error;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// A kind that cannot be listed or watched for this long does not follow the cluster.
const FAILING_AFTER: Duration = Duration::from_mins(1);
/// Starts of a watch are at most this far apart. A watch that starts and brings nothing tells so by no further error alone.
const LONGEST_PAUSE: Duration = Duration::from_secs(90);

/// Troubles of watches, by kind of object.
#[derive(Clone, Debug, Default)]
pub struct WatchHealth(Arc<Mutex<HashMap<String, Trouble>>>);

#[derive(Clone, Copy, Debug)]
enum Trouble {
    /// The list is not complete, however many attempts there were. The furthest brought `most` objects, the last of them at `since`.
    Listing { since: Instant, most: usize },
    /// The watch could not be started.
    FailedStarts { first: Instant, last: Instant },
}

impl WatchHealth {
    /// Records that a list begins, or begins again.
    pub fn began_list(&self, kind: &str, now: Instant) {
        let mut all = self.lock();
        if !matches!(all.get(kind), Some(Trouble::Listing { .. })) {
            all.insert(kind.to_owned(), Trouble::Listing { since: now, most: 0 });
        }
    }

    /// Records how many objects a list has brought so far. A first page that comes again and again is no progress.
    pub fn progressed(&self, kind: &str, count: usize, now: Instant) {
        if let Some(Trouble::Listing { since, most }) = self.lock().get_mut(kind)
            && count > *most
        {
            (*since, *most) = (now, count);
        }
    }

    /// Records an error of a watch. One that ends after it was started has worked until then.
    pub fn failed(&self, kind: &str, error: &Error, now: Instant) {
        match error {
            Error::WatchStartFailed(_) => {
                let mut all = self.lock();
                let first = match all.get(kind) {
                    Some(Trouble::FailedStarts { first, last }) if now - *last <= LONGEST_PAUSE => *first,
                    _ => now,
                };
                all.insert(kind.to_owned(), Trouble::FailedStarts { first, last: now });
            }
            // A list begins next, or begins again.
            Error::InitialListFailed(_) | Error::NoResourceVersion => {}
            Error::WatchError(_) | Error::WatchFailed(_) => self.worked(kind),
        }
    }

    /// Records that a list is complete, or that a watch brought something.
    pub fn worked(&self, kind: &str) {
        self.lock().remove(kind);
    }

    /// True if a kind could not be listed or watched for a minute. A list that takes longer is fine while it goes on.
    pub fn is_failing(&self, now: Instant) -> bool {
        let is_failing = |trouble: &Trouble| match *trouble {
            Trouble::Listing { since, .. } => now - since >= FAILING_AFTER,
            Trouble::FailedStarts { first, last } => last - first >= FAILING_AFTER && now - last <= LONGEST_PAUSE,
        };
        self.lock().values().any(is_failing)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Trouble>> {
        // No code that could panic runs under the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn not_started() -> Error {
        Error::WatchStartFailed(kube::Error::LinesCodecMaxLineLengthExceeded)
    }

    #[tokio::test(start_paused = true)]
    async fn watch_fails_when_it_cannot_be_started_for_a_minute_and_until_it_brings_something() {
        let health = WatchHealth::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        for (seconds, is_failing) in [(0, false), (30, false), (59, false), (61, true)] {
            health.failed("nodes", &not_started(), at(seconds));
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
            health.failed("nodes", &not_started(), at(seconds));
            assert!(!health.is_failing(at(seconds)));
        }
        health.failed("nodes", &not_started(), at(670));
        assert!(health.is_failing(at(670)));
        assert!(!health.is_failing(at(800)), "no error since, so the watch was started");
    }

    #[tokio::test(start_paused = true)]
    async fn list_fails_when_it_is_not_complete_for_a_minute_however_often_it_begins() {
        let health = WatchHealth::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        for (seconds, is_failing) in [(0, false), (30, false), (59, false), (60, true), (300, true)] {
            health.began_list("nodes", at(seconds));
            health.failed("nodes", &Error::NoResourceVersion, at(seconds));
            assert_eq!(health.is_failing(at(seconds)), is_failing, "{seconds}");
        }
        health.worked("nodes");
        assert!(!health.is_failing(at(300)));
    }

    #[tokio::test(start_paused = true)]
    async fn long_list_fails_when_it_goes_no_further_for_a_minute() {
        let health = WatchHealth::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        health.began_list("nodes", at(0));
        for (seconds, count) in [(50, 500), (100, 1000)] {
            health.progressed("nodes", count, at(seconds));
            assert!(!health.is_failing(at(seconds + 59)), "{seconds}");
        }
        health.began_list("nodes", at(120));
        health.progressed("nodes", 1000, at(150));
        assert!(health.is_failing(at(160)), "it has brought as much before");
        health.progressed("nodes", 1001, at(170));
        assert!(!health.is_failing(at(170)));
    }
}
