//! The work queue: each key at most once, never twice at a time, earliest first.
//!
//! Its length is bounded by the number of objects, since a key that waits already is not added again.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    hash::{BuildHasher, Hash, RandomState},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

/// First pause after an object changed under a write; the newer version is on its way through the watch.
const FIRST_RACE_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_RACE_PAUSE: Duration = Duration::from_secs(5);
/// Pauses after any other failure.
const FIRST_FAILURE_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_FAILURE_PAUSE: Duration = Duration::from_mins(5);

/// Pauses after the API server said that it may not be done yet.
const FIRST_REFUSAL_PAUSE: Duration = Duration::from_secs(10);
const LONGEST_REFUSAL_PAUSE: Duration = Duration::from_mins(5);

/// How work on a key ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// Nothing is left to do.
    Settled,
    /// There is more to do at a known time.
    Again(Instant),
    /// The object changed meanwhile.
    Raced,
    /// It failed.
    Failed,
    /// It may not be done yet.
    Refused,
}

/// The queue.
#[derive(Debug)]
pub struct Queue<K> {
    state: Mutex<State<K>>,
    changed: Notify,
    jitter: RandomState,
}

#[derive(Debug)]
struct State<K> {
    due: HashMap<K, Instant>,
    order: BTreeSet<(Instant, K)>,
    running: HashSet<K>,
    failures: HashMap<K, u32>,
}

impl<K: Clone + Ord + Hash> Queue<K> {
    /// An empty queue.
    pub fn new() -> Self {
        let state = State {
            due: HashMap::new(),
            order: BTreeSet::new(),
            running: HashSet::new(),
            failures: HashMap::new(),
        };
        Self {
            state: Mutex::new(state),
            changed: Notify::new(),
            jitter: RandomState::new(),
        }
    }

    /// Asks for work on a key at some time; where it waits already, the earlier time holds.
    pub fn wake(&self, key: K, at: Instant) {
        self.lock().wake(key, at);
        self.changed.notify_waiters();
    }

    /// The next key that is due. It is not handed out again before [`Queue::done`].
    pub async fn next(&self) -> K {
        loop {
            let changed = self.changed.notified();
            let mut changed = std::pin::pin!(changed);
            // From here on no notification is missed.
            changed.as_mut().enable();
            let due = {
                let mut state = self.lock();
                match state.first() {
                    Some((at, key)) if at <= Instant::now() => {
                        state.start(&key, at);
                        return key;
                    }
                    first => first.map(|(at, _)| at),
                }
            };
            match due {
                Some(due) => tokio::select! { () = sleep_until(due) => {}, () = changed => {} },
                None => changed.await,
            }
        }
    }

    /// Ends the work on a key and, where it is not settled, asks for more with growing pauses.
    pub fn done(&self, key: K, done: Done) {
        let mut state = self.lock();
        state.running.remove(&key);
        let now = Instant::now();
        match done {
            Done::Settled => {
                state.failures.remove(&key);
            }
            Done::Again(at) => {
                state.failures.remove(&key);
                state.wake(key, at);
            }
            Done::Raced | Done::Failed | Done::Refused => {
                let failures = state.failures.entry(key.clone()).or_insert(0);
                let pause = pause(done, *failures);
                *failures = failures.saturating_add(1);
                // Spread over a fifth, so that what failed together is not tried again together.
                let share = u32::try_from(self.jitter.hash_one((&key, *failures)) % 1000).unwrap_or(0);
                state.wake(key, now + pause + pause * share / 5000);
            }
        }
        drop(state);
        self.changed.notify_waiters();
    }

    fn lock(&self) -> MutexGuard<'_, State<K>> {
        // No code that could panic runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn pause(done: Done, failures: u32) -> Duration {
    let (first, longest) = match done {
        Done::Raced => (FIRST_RACE_PAUSE, LONGEST_RACE_PAUSE),
        Done::Refused => (FIRST_REFUSAL_PAUSE, LONGEST_REFUSAL_PAUSE),
        _ => (FIRST_FAILURE_PAUSE, LONGEST_FAILURE_PAUSE),
    };
    first.saturating_mul(2_u32.saturating_pow(failures)).min(longest)
}

impl<K: Clone + Ord + Hash> State<K> {
    fn wake(&mut self, key: K, at: Instant) {
        match self.due.get(&key) {
            Some(due) if *due <= at => return,
            Some(due) => {
                self.order.remove(&(*due, key.clone()));
            }
            None => {}
        }
        self.due.insert(key.clone(), at);
        self.order.insert((at, key));
    }

    /// Few keys run at a time, so few are skipped.
    fn first(&self) -> Option<(Instant, K)> {
        self.order.iter().find(|(_, key)| !self.running.contains(key)).cloned()
    }

    fn start(&mut self, key: &K, at: Instant) {
        self.due.remove(key);
        self.order.remove(&(at, key.clone()));
        self.running.insert(key.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::{advance, timeout};

    async fn idle(queue: &Queue<&'static str>) -> bool {
        timeout(Duration::from_micros(1), queue.next()).await.is_err()
    }

    #[tokio::test(start_paused = true)]
    async fn key_that_waits_is_not_added_again_and_the_earlier_time_holds() {
        let queue = Queue::new();
        let now = Instant::now();
        queue.wake("a", now + Duration::from_secs(9));
        queue.wake("a", now);
        queue.wake("a", now + Duration::from_secs(1));
        assert_eq!(queue.next().await, "a");
        queue.done("a", Done::Settled);
        assert!(idle(&queue).await);
    }

    #[tokio::test(start_paused = true)]
    async fn key_is_never_worked_on_twice_at_a_time_and_no_wake_is_lost() {
        let queue = Queue::new();
        queue.wake("a", Instant::now());
        assert_eq!(queue.next().await, "a");
        queue.wake("a", Instant::now());
        queue.wake("b", Instant::now());
        assert_eq!(queue.next().await, "b");
        assert!(idle(&queue).await);
        queue.done("a", Done::Settled);
        assert_eq!(queue.next().await, "a");
    }

    #[tokio::test(start_paused = true)]
    async fn failures_are_tried_again_with_growing_pauses_and_success_resets_them() {
        let queue = Queue::new();
        queue.wake("a", Instant::now());
        for least in [5, 10, 20, 40, 80, 160, 300, 300] {
            assert_eq!(queue.next().await, "a");
            let before = Instant::now();
            queue.done("a", Done::Failed);
            advance(Duration::from_millis(least * 1000 - 1)).await;
            assert!(idle(&queue).await, "{least}");
            queue.next().await;
            let (waited, least) = (before.elapsed(), Duration::from_secs(least));
            assert!(
                waited >= least && waited <= least * 6 / 5 + Duration::from_millis(2),
                "{waited:?}"
            );
            queue.state.lock().unwrap().running.clear();
            queue.wake("a", Instant::now());
        }
        queue.next().await;
        queue.done("a", Done::Settled);
        assert!(queue.state.lock().unwrap().failures.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn race_is_tried_again_promptly() {
        let queue = Queue::new();
        queue.wake("a", Instant::now());
        let key = queue.next().await;
        let before = Instant::now();
        queue.done(key, Done::Raced);
        queue.next().await;
        assert!(before.elapsed() < Duration::from_millis(130));
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_worker_hears_of_new_work() {
        let queue = std::sync::Arc::new(Queue::new());
        let waiting = tokio::spawn({
            let queue = queue.clone();
            async move { queue.next().await }
        });
        tokio::task::yield_now().await;
        queue.wake("a", Instant::now());
        assert_eq!(waiting.await.unwrap(), "a");
    }
}
