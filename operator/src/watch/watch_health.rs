//! Kinds that cannot be listed or watched.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// A kind that cannot be listed for this long does not follow the cluster.
const LIST_FAILS_AFTER: Duration = Duration::from_mins(1);
/// A watch without a sign of life for this long does not follow the cluster: one that is silent for 70 s is given up,
/// and the next one has 10 s to start.
const WATCH_FAILS_AFTER: Duration = Duration::from_secs(80);

/// Health of the watches, by kind of object. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct WatchHealth {
    kinds: Arc<Mutex<BTreeMap<String, KindHealth>>>,
    /// True for the view of watches without which the operator works.
    is_optional: bool,
}

#[derive(Clone, Copy, Debug)]
struct KindHealth {
    /// True if it has an age alone: it never counts as failing.
    is_optional: bool,
    /// Moment of the last sign of life: an event, a bookmark, a page, or the acceptance of a watch.
    contact: Instant,
    /// The list that is coming in; `None` once it is whole.
    list: Option<ListHealth>,
}

/// A list that is not whole, however many attempts there were.
#[derive(Clone, Copy, Debug)]
struct ListHealth {
    /// Number of objects that the furthest attempt brought.
    most: usize,
    /// Moment of the last of them; the begin before the first.
    since: Instant,
}

impl KindHealth {
    fn is_failing(&self, now: Instant) -> bool {
        if self.is_optional {
            return false;
        }
        match self.list {
            Some(list) => now - list.since >= LIST_FAILS_AFTER,
            None => now - self.contact >= WATCH_FAILS_AFTER,
        }
    }
}

/// The time for which a kind is watched.
#[must_use]
pub struct WatchedKind<'a> {
    health: &'a WatchHealth,
    kind: &'a str,
}

impl Drop for WatchedKind<'_> {
    fn drop(&mut self) {
        // One without which the operator does not work is watched until the end of the process.
        if self.health.is_optional {
            self.health.lock().remove(self.kind);
        }
    }
}

impl WatchHealth {
    /// Returns a view for watches without which the operator works: they have an age while they last, and nothing fails with
    /// them.
    pub fn optional(&self) -> Self {
        Self {
            kinds: Arc::clone(&self.kinds),
            is_optional: true,
        }
    }

    /// Begins to watch a kind.
    pub fn watch<'a>(&'a self, kind: &'a str) -> WatchedKind<'a> {
        WatchedKind { health: self, kind }
    }

    /// Records that a list begins, or begins again.
    pub fn began_list(&self, kind: &str, now: Instant) {
        let mut all = self.lock();
        let health = all.entry(kind.to_owned()).or_insert(KindHealth {
            is_optional: self.is_optional,
            contact: now,
            list: None,
        });
        health.list.get_or_insert(ListHealth { most: 0, since: now });
    }

    /// Records how many objects a list has brought so far. A first page that comes again and again is no progress.
    pub fn progressed(&self, kind: &str, count: usize, now: Instant) {
        if let Some(health) = self.lock().get_mut(kind) {
            health.contact = now;
            if let Some(list) = health.list.as_mut().filter(|list| count > list.most) {
                *list = ListHealth {
                    most: count,
                    since: now,
                };
            }
        }
    }

    /// Records that a list is whole.
    pub fn listed(&self, kind: &str, now: Instant) {
        if let Some(health) = self.lock().get_mut(kind) {
            (health.contact, health.list) = (now, None);
        }
    }

    /// Records a sign of life of a watch.
    pub fn contact(&self, kind: &str, now: Instant) {
        if let Some(health) = self.lock().get_mut(kind) {
            health.contact = now;
        }
    }

    /// Returns the kinds that could not be listed for a minute, or whose watch had no sign of life for 80 s, with the
    /// age of the last one. A list that takes longer is fine while it goes on.
    pub fn failing(&self, now: Instant) -> Vec<(String, Duration)> {
        let all = self.lock();
        let failing = all.iter().filter(|(_, health)| health.is_failing(now));
        failing
            .map(|(kind, health)| (kind.clone(), now - health.contact))
            .collect()
    }

    /// True if a kind does not follow the cluster.
    pub fn is_failing(&self, now: Instant) -> bool {
        self.lock().values().any(|health| health.is_failing(now))
    }

    /// Returns the age of the last sign of life of each watch, by kind.
    pub fn ages(&self, now: Instant) -> Vec<(String, Duration)> {
        let all = self.lock();
        let ages = all.iter().map(|(kind, health)| (kind.clone(), now - health.contact));
        ages.collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, KindHealth>> {
        // No code that could panic runs under the lock.
        self.kinds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failing(health: &WatchHealth, now: Instant) -> Vec<(String, u64)> {
        let failing = health.failing(now).into_iter();
        let failing: Vec<_> = failing.map(|(kind, age)| (kind, age.as_secs())).collect();
        assert_eq!(health.is_failing(now), !failing.is_empty());
        failing
    }

    #[tokio::test(start_paused = true)]
    async fn watch_without_a_sign_of_life_fails_after_80_seconds_and_until_the_next() {
        let health = WatchHealth::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        for kind in ["nodes", "policies"] {
            health.began_list(kind, at(0));
            health.listed(kind, at(10));
        }
        health.contact("policies", at(60));
        assert_eq!(failing(&health, at(89)), []);
        assert_eq!(failing(&health, at(90)), [("nodes".to_owned(), 80)]);
        let ages = [("nodes".to_owned(), 80), ("policies".to_owned(), 30)];
        assert_eq!(
            health.ages(at(90)),
            ages.map(|(kind, age)| (kind, Duration::from_secs(age)))
        );
        health.contact("nodes", at(91));
        assert_eq!(failing(&health, at(91)), []);
    }

    #[tokio::test(start_paused = true)]
    async fn optional_watch_has_an_age_while_it_lasts_and_never_fails() {
        let health = WatchHealth::default();
        let (optional, start) = (health.optional(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let watched = optional.watch("pods");
        optional.began_list("pods", at(0));
        assert_eq!(failing(&health, at(100)), [], "its list does not end");
        optional.listed("pods", at(100));
        assert_eq!(failing(&health, at(300)), []);
        assert_eq!(health.ages(at(300)), [("pods".to_owned(), Duration::from_secs(200))]);
        drop(watched);
        assert_eq!(health.ages(at(300)), []);
    }

    #[tokio::test(start_paused = true)]
    async fn list_fails_when_it_is_not_complete_for_a_minute_however_often_it_begins() {
        let health = WatchHealth::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        for (seconds, is_failing) in [(0, false), (30, false), (59, false), (60, true), (300, true)] {
            health.began_list("nodes", at(seconds));
            assert_eq!(health.is_failing(at(seconds)), is_failing, "{seconds}");
        }
        health.listed("nodes", at(300));
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
