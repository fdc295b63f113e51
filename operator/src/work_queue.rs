//! Work queue: each key at most once, never processed twice at a time, earliest first, and urgent ones before ordinary
//! ones.
//!
//! The number of objects bounds its length, since a key that waits already is not added again.

use crate::metrics::{QueueMetrics, QueueNumbers, RetryReason, WorkClass};
use gpunode_process::random_up_to;
use std::{
    collections::{BTreeSet, HashMap},
    hash::Hash,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

/// Pauses after a conflict; the newer version is known already, or the watch is about to bring it. Several tries fit into a
/// second, since others may change the object all the time.
const FIRST_CONFLICT_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_CONFLICT_PAUSE: Duration = Duration::from_secs(1);
/// Pauses after any other failure.
const FIRST_FAILURE_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_FAILURE_PAUSE: Duration = Duration::from_mins(5);
/// Pauses after the API server said that it is too early.
const FIRST_REFUSAL_PAUSE: Duration = Duration::from_secs(10);
const LONGEST_REFUSAL_PAUSE: Duration = Duration::from_mins(5);

/// Ordinary keys have one of so many turns while urgent ones are due all the time.
const ORDINARY_TURN: u32 = 8;

/// Result of processing a key; it decides about the next try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkResult {
    /// Nothing is left to do.
    Done,
    /// There is more to do at this time. Says nothing about the tries before.
    RetryAt(Instant),
    /// The object changed meanwhile.
    Conflict,
    Failed,
    /// It is too early, by the word of the API server.
    TooEarly,
}

impl WorkResult {
    /// Returns the reason to try again, for metrics; `None` where nothing went wrong.
    fn retry_reason(self) -> Option<RetryReason> {
        match self {
            Self::Done | Self::RetryAt(_) => None,
            Self::Conflict => Some(RetryReason::Conflict),
            Self::Failed => Some(RetryReason::Failure),
            Self::TooEarly => Some(RetryReason::TooEarly),
        }
    }
}

/// A queue of keys with due times.
#[derive(Debug)]
pub struct WorkQueue<K> {
    state: Mutex<QueueState<K>>,
    changed: Notify,
    metrics: Option<QueueMetrics>,
}

#[derive(Debug)]
struct QueueState<K> {
    ordinary: ClassKeys<K>,
    urgent: ClassKeys<K>,
    /// Keys that are being processed, with their class and the time at which each was handed out.
    running: HashMap<K, (WorkClass, Instant)>,
    /// Tries in a row that were not successful.
    tries: HashMap<K, FailedTries>,
    /// Urgent keys in a row while an ordinary one was due.
    urgent_turns: u32,
}

/// Keys of one class. Those that are due are apart, so that nobody walks through all to count them.
#[derive(Debug)]
struct ClassKeys<K> {
    times: HashMap<K, Instant>,
    /// Keys whose time has come, as of the last look.
    due: BTreeSet<(Instant, K)>,
    later: BTreeSet<(Instant, K)>,
}

/// Tries of a key since its last success, by what became of them: a lost race says nothing about failures.
#[derive(Clone, Copy, Debug, Default)]
struct FailedTries {
    conflicts: u32,
    failures: u32,
    refusals: u32,
}

impl FailedTries {
    /// Counts a try and returns the pause after it.
    fn pause_after(&mut self, result: WorkResult) -> Duration {
        let (count, first, longest) = match result {
            WorkResult::Done | WorkResult::RetryAt(_) => return Duration::ZERO,
            WorkResult::Conflict => (&mut self.conflicts, FIRST_CONFLICT_PAUSE, LONGEST_CONFLICT_PAUSE),
            WorkResult::Failed => (&mut self.failures, FIRST_FAILURE_PAUSE, LONGEST_FAILURE_PAUSE),
            WorkResult::TooEarly => (&mut self.refusals, FIRST_REFUSAL_PAUSE, LONGEST_REFUSAL_PAUSE),
        };
        let pause = first.saturating_mul(2_u32.saturating_pow(*count)).min(longest);
        *count = count.saturating_add(1);
        pause
    }
}

impl<K: Clone + Ord + Hash> WorkQueue<K> {
    /// An empty queue.
    pub fn new() -> Self {
        let state = QueueState {
            ordinary: ClassKeys::new(),
            urgent: ClassKeys::new(),
            running: HashMap::new(),
            tries: HashMap::new(),
            urgent_turns: 0,
        };
        Self {
            state: Mutex::new(state),
            changed: Notify::new(),
            metrics: None,
        }
    }

    /// An empty queue whose waits and retries are measured.
    pub fn measured(metrics: QueueMetrics) -> Self {
        Self {
            metrics: Some(metrics),
            ..Self::new()
        }
    }

    /// Adds an ordinary key that is due at a time. If the key waits already, the earlier time holds.
    pub fn add(&self, key: K, at: Instant) {
        self.add_as(WorkClass::Ordinary, key, at);
    }

    /// Adds a key of a class that is due at a time. A key may wait in both classes; the first turn is for both.
    pub fn add_as(&self, class: WorkClass, key: K, at: Instant) {
        self.lock().add(class, key, at);
        self.changed.notify_waiters();
    }

    /// Waits for the next key that is due. It is not handed out again before [`WorkQueue::done`]. Cancel safe.
    pub async fn next(&self) -> K {
        self.next_of(WorkClass::Ordinary).await.0
    }

    /// Waits for the next key of this class or a more urgent one. Returns the class of its turn, too. Otherwise as
    /// [`WorkQueue::next`].
    pub async fn next_of(&self, least: WorkClass) -> (K, WorkClass) {
        loop {
            let changed = self.changed.notified();
            let mut changed = std::pin::pin!(changed);
            // From here on no notification is missed.
            changed.as_mut().enable();
            let due = {
                let mut state = self.lock();
                if let Some((key, class, wait)) = state.start_next(least, Instant::now()) {
                    drop(state);
                    if let Some(metrics) = &self.metrics {
                        metrics.waited(class, wait);
                    }
                    return (key, class);
                }
                state.next_time(least)
            };
            match due {
                Some(due) => tokio::select! { () = sleep_until(due) => {}, () = changed => {} },
                None => changed.await,
            }
        }
    }

    /// Ends the processing of a key and, unless it is done, adds it again; pauses grow with each try of the same result.
    /// Returns the time since the key was handed out.
    pub fn done(&self, key: K, result: WorkResult) -> Duration {
        if let (Some(metrics), Some(reason)) = (&self.metrics, result.retry_reason()) {
            metrics.retried(reason);
        }
        let mut state = self.lock();
        let now = Instant::now();
        let (class, taken) = state.running.remove(&key).unwrap_or((WorkClass::Ordinary, now));
        match result {
            WorkResult::Done => {
                state.tries.remove(&key);
            }
            WorkResult::RetryAt(at) => state.add(class, key, at),
            WorkResult::Conflict | WorkResult::Failed | WorkResult::TooEarly => {
                let tries = state.tries.entry(key.clone()).or_default();
                let pause = tries.pause_after(result);
                // Up to a fifth longer, so that keys that failed together are not retried together.
                state.add(class, key, now + pause + random_up_to(pause / 5));
            }
        }
        drop(state);
        self.changed.notify_waiters();
        now - taken
    }

    /// Forgets the failed tries of a key: its object is another one now.
    pub fn forget(&self, key: &K) {
        self.lock().tries.remove(key);
    }

    /// Returns the numbers of this moment. A key that is due in both classes counts as urgent. The queue knows nothing
    /// of sweeps.
    pub fn numbers(&self) -> QueueNumbers {
        let mut state = self.lock();
        let now = Instant::now();
        state.look(now);
        let QueueState { urgent, ordinary, .. } = &*state;
        let first = [urgent, ordinary].into_iter().filter_map(ClassKeys::first_due).min();
        QueueNumbers {
            urgent: urgent.due.len(),
            ordinary: ordinary.due.len() - urgent.due_in_both(ordinary),
            oldest: first.map_or(Duration::ZERO, |at| now - at),
            ..QueueNumbers::default()
        }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState<K>> {
        // No code that could panic runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Clone + Ord + Hash> QueueState<K> {
    fn add(&mut self, class: WorkClass, key: K, at: Instant) {
        match class {
            WorkClass::Ordinary => self.ordinary.add(key, at),
            WorkClass::Urgent => self.urgent.add(key, at),
        }
    }

    /// Finds the keys whose time has come.
    fn look(&mut self, now: Instant) {
        self.ordinary.look(now);
        self.urgent.look(now);
    }

    /// Starts the next key that is due, of this class or a more urgent one. Returns its class and the time for which it
    /// was due, too.
    fn start_next(&mut self, least: WorkClass, now: Instant) -> Option<(K, WorkClass, Duration)> {
        self.look(now);
        let urgent = self.urgent.first(&self.running).filter(|(at, _)| *at <= now);
        let ordinary = self.ordinary.first(&self.running);
        let ordinary = ordinary.filter(|(at, _)| *at <= now && least == WorkClass::Ordinary);
        let ((at, key), class) = match (urgent, ordinary) {
            (Some(urgent), Some(_)) if self.urgent_turns + 1 < ORDINARY_TURN => {
                self.urgent_turns += 1;
                (urgent, WorkClass::Urgent)
            }
            (_, Some(ordinary)) => {
                self.urgent_turns = 0;
                (ordinary, WorkClass::Ordinary)
            }
            (Some(urgent), None) => (urgent, WorkClass::Urgent),
            (None, None) => return None,
        };
        let (key, wait) = (key.clone(), now - *at);
        self.ordinary.remove(&key);
        self.urgent.remove(&key);
        self.running.insert(key.clone(), (class, now));
        Some((key, class, wait))
    }

    /// Returns the time at which the next key of this class or a more urgent one is due.
    fn next_time(&self, least: WorkClass) -> Option<Instant> {
        let urgent = self.urgent.first(&self.running);
        let ordinary = self.ordinary.first(&self.running);
        let ordinary = ordinary.filter(|_| least == WorkClass::Ordinary);
        [urgent, ordinary].into_iter().flatten().map(|(at, _)| *at).min()
    }
}

impl<K: Clone + Ord + Hash> ClassKeys<K> {
    fn new() -> Self {
        Self {
            times: HashMap::new(),
            due: BTreeSet::new(),
            later: BTreeSet::new(),
        }
    }

    fn add(&mut self, key: K, at: Instant) {
        if self.times.get(&key).is_some_and(|known| *known <= at) {
            return;
        }
        self.remove(&key);
        self.times.insert(key.clone(), at);
        self.later.insert((at, key));
    }

    fn remove(&mut self, key: &K) {
        if let Some((key, at)) = self.times.remove_entry(key) {
            let entry = (at, key);
            if !self.due.remove(&entry) {
                self.later.remove(&entry);
            }
        }
    }

    /// Finds the keys whose time has come; each is found once.
    fn look(&mut self, now: Instant) {
        while self.later.first().is_some_and(|(at, _)| *at <= now)
            && let Some(entry) = self.later.pop_first()
        {
            self.due.insert(entry);
        }
    }

    /// Returns the first key that is not running. Few run at a time, so few are skipped.
    fn first(&self, running: &HashMap<K, (WorkClass, Instant)>) -> Option<&(Instant, K)> {
        let mut all = self.due.iter().chain(&self.later);
        all.find(|(_, key)| !running.contains_key(key))
    }

    /// Returns the time of the first key that is due.
    fn first_due(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Counts the keys that are due in another class too. Of thousands in one class few are in the other.
    fn due_in_both(&self, other: &Self) -> usize {
        let (fewer, more) = if self.due.len() < other.due.len() {
            (self, other)
        } else {
            (other, self)
        };
        let is_due = |key: &K| {
            let at = more.times.get(key);
            at.is_some_and(|at| more.due.contains(&(*at, key.clone())))
        };
        fewer.due.iter().filter(|(_, key)| is_due(key)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::OperatorMetrics;
    use tokio::time::{advance, timeout};

    async fn idle(queue: &WorkQueue<&'static str>) -> bool {
        timeout(Duration::from_micros(1), queue.next()).await.is_err()
    }

    #[tokio::test(start_paused = true)]
    async fn key_that_waits_is_not_added_again_and_the_earlier_time_holds() {
        let queue = WorkQueue::new();
        let now = Instant::now();
        queue.add("a", now + Duration::from_secs(9));
        queue.add("a", now);
        queue.add("a", now + Duration::from_secs(1));
        assert_eq!(queue.next().await, "a");
        queue.done("a", WorkResult::Done);
        assert!(idle(&queue).await);
    }

    #[tokio::test(start_paused = true)]
    async fn key_is_never_processed_twice_at_a_time_and_no_addition_is_lost() {
        let queue = WorkQueue::new();
        queue.add("a", Instant::now());
        assert_eq!(queue.next().await, "a");
        queue.add("a", Instant::now());
        queue.add("b", Instant::now());
        assert_eq!(queue.next().await, "b");
        assert!(idle(&queue).await);
        queue.done("a", WorkResult::Done);
        assert_eq!(queue.next().await, "a");
    }

    #[tokio::test(start_paused = true)]
    async fn failures_are_retried_with_growing_pauses_and_success_resets_them() {
        let queue = WorkQueue::new();
        queue.add("a", Instant::now());
        for least in [5, 10, 20, 40, 80, 160, 300, 300] {
            assert_eq!(queue.next().await, "a");
            let before = Instant::now();
            queue.done("a", WorkResult::Failed);
            // The timeout of `idle` is rounded up to a millisecond.
            advance(Duration::from_millis(least * 1000 - 2)).await;
            assert!(idle(&queue).await, "{least}");
            queue.next().await;
            let (waited, least) = (before.elapsed(), Duration::from_secs(least));
            assert!(
                waited >= least && waited <= least * 6 / 5 + Duration::from_millis(2),
                "{waited:?}"
            );
            queue.state.lock().unwrap().running.clear();
            queue.add("a", Instant::now());
        }
        queue.next().await;
        queue.done("a", WorkResult::Done);
        assert!(queue.state.lock().unwrap().tries.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn key_of_another_object_begins_with_the_first_pause() {
        let queue = WorkQueue::new();
        queue.add("a", Instant::now());
        for _ in 0..3 {
            let key = queue.next().await;
            queue.done(key, WorkResult::Failed);
        }
        queue.forget(&"a");
        let key = queue.next().await;
        let before = Instant::now();
        queue.done(key, WorkResult::Failed);
        queue.next().await;
        assert!(before.elapsed() < Duration::from_secs(7), "{:?}", before.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn conflict_is_retried_promptly() {
        let queue = WorkQueue::new();
        queue.add("a", Instant::now());
        let key = queue.next().await;
        let before = Instant::now();
        queue.done(key, WorkResult::Conflict);
        queue.next().await;
        assert!(before.elapsed() < Duration::from_millis(130));
    }

    #[tokio::test(start_paused = true)]
    async fn conflicts_do_not_lengthen_the_pause_after_a_failure_nor_failures_that_after_a_conflict() {
        let queue = WorkQueue::new();
        queue.add("a", Instant::now());
        for _ in 0..8 {
            let key = queue.next().await;
            queue.done(key, WorkResult::Conflict);
        }
        for least in [5, 10] {
            let key = queue.next().await;
            let before = Instant::now();
            queue.done(key, WorkResult::Failed);
            let key = queue.next().await;
            let waited = before.elapsed();
            assert!(waited <= Duration::from_secs(least) * 6 / 5, "{waited:?}");
            // A race between two failures.
            let before = Instant::now();
            queue.done(key, WorkResult::Conflict);
            let waited = {
                let key = queue.next().await;
                let waited = before.elapsed();
                queue.state.lock().unwrap().running.clear();
                queue.add(key, Instant::now());
                waited
            };
            assert!(waited <= Duration::from_millis(1200), "{waited:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn object_that_others_change_all_the_time_is_tried_several_times_within_a_second() {
        let queue = WorkQueue::new();
        queue.add("a", Instant::now());
        let start = Instant::now();
        for _ in 0..6 {
            let key = queue.next().await;
            queue.done(key, WorkResult::Conflict);
        }
        queue.next().await;
        assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn urgent_key_is_first_and_ordinary_ones_have_one_of_eight_turns() {
        let urgent: Vec<String> = (10..30).map(|index| format!("u{index}")).collect();
        let queue = WorkQueue::new();
        let now = Instant::now();
        for key in ["o1", "o2"] {
            queue.add(key, now);
        }
        for key in &urgent {
            queue.add_as(WorkClass::Urgent, key.as_str(), now);
        }
        let mut turns = Vec::new();
        for _ in 0..22 {
            let key = queue.next().await;
            queue.done(key, WorkResult::Done);
            turns.push(key);
        }
        let ordinary: Vec<_> = turns
            .iter()
            .enumerate()
            .filter(|(_, key)| key.starts_with('o'))
            .collect();
        assert_eq!(ordinary, [(7, &"o1"), (15, &"o2")]);
        assert!(turns.iter().filter(|key| key.starts_with('u')).eq(&urgent));
    }

    #[tokio::test(start_paused = true)]
    async fn worker_for_urgent_keys_leaves_ordinary_ones_and_waits_for_none_of_them() {
        let queue = WorkQueue::new();
        let now = Instant::now();
        queue.add("o", now);
        queue.add_as(WorkClass::Urgent, "u", now + Duration::from_secs(5));
        let next = timeout(Duration::from_secs(4), queue.next_of(WorkClass::Urgent)).await;
        assert!(next.is_err(), "{next:?}");
        assert_eq!(queue.next_of(WorkClass::Urgent).await, ("u", WorkClass::Urgent));
        assert!(now.elapsed() < Duration::from_secs(6), "{:?}", now.elapsed());
        assert_eq!(queue.next_of(WorkClass::Ordinary).await, ("o", WorkClass::Ordinary));
    }

    #[tokio::test(start_paused = true)]
    async fn ordinary_key_that_becomes_urgent_has_one_turn() {
        let queue = WorkQueue::new();
        let now = Instant::now();
        for key in ["a", "b"] {
            queue.add(key, now);
        }
        queue.add_as(WorkClass::Urgent, "b", now);
        assert_eq!((queue.next().await, queue.next().await), ("b", "a"));
        queue.done("b", WorkResult::Done);
        queue.done("a", WorkResult::Done);
        assert!(idle(&queue).await);
    }

    #[tokio::test(start_paused = true)]
    async fn urgent_moment_in_the_future_makes_no_ordinary_key_urgent() {
        let queue = WorkQueue::new();
        let now = Instant::now();
        queue.add_as(WorkClass::Urgent, "a", now + Duration::from_mins(1));
        for key in ["b", "a"] {
            queue.add(key, now);
        }
        queue.add_as(WorkClass::Urgent, "c", now);
        for expected in ["c", "a", "b"] {
            let key = queue.next().await;
            assert_eq!(key, expected);
            queue.done(key, WorkResult::Done);
        }
        advance(Duration::from_mins(2)).await;
        assert!(idle(&queue).await, "its turn was for both");
    }

    #[tokio::test(start_paused = true)]
    async fn numbers_count_each_key_that_is_due_once_and_tell_how_long_the_first_waits() {
        let queue = WorkQueue::new();
        assert_eq!(queue.numbers(), QueueNumbers::default());
        let now = Instant::now();
        queue.add("a", now);
        queue.add_as(WorkClass::Urgent, "a", now + Duration::from_secs(1));
        queue.add("b", now + Duration::from_secs(2));
        queue.add_as(WorkClass::Urgent, "later", now + Duration::from_mins(1));
        queue.add("later", now + Duration::from_secs(3));
        advance(Duration::from_secs(5)).await;
        let numbers = |urgent, ordinary, seconds| QueueNumbers {
            urgent,
            ordinary,
            oldest: Duration::from_secs(seconds),
            sweep: 0,
        };
        assert_eq!(queue.numbers(), numbers(1, 2, 5));
        let key = queue.next().await;
        assert_eq!((key, queue.numbers()), ("a", numbers(0, 2, 3)));
        queue.done(key, WorkResult::Failed);
        assert_eq!(queue.numbers(), numbers(0, 2, 3));
        queue.add("b", now + Duration::from_secs(1));
        assert_eq!(queue.numbers(), numbers(0, 2, 4), "the earlier time holds");
    }

    #[tokio::test(start_paused = true)]
    async fn end_of_a_key_tells_how_long_it_took_and_waits_and_retries_are_measured() {
        let metrics = OperatorMetrics::new();
        let queue = WorkQueue::measured(metrics.queue.clone());
        for result in [WorkResult::Conflict, WorkResult::Failed, WorkResult::Done] {
            queue.add_as(WorkClass::Urgent, "a", Instant::now());
            let key = queue.next().await;
            advance(Duration::from_secs(2)).await;
            assert_eq!(queue.done(key, result), Duration::from_secs(2), "{result:?}");
        }
        let text = metrics.render();
        for line in [
            r#"gpunode_operator_workqueue_retries_total{reason="conflict"} 1"#,
            r#"gpunode_operator_workqueue_retries_total{reason="failure"} 1"#,
            r#"gpunode_operator_workqueue_queue_duration_seconds_count{class="urgent"} 3"#,
        ] {
            assert!(text.lines().any(|of| of == line), "{line} is not in {text}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn key_that_is_retried_later_keeps_its_pauses() {
        let queue = WorkQueue::new();
        queue.add("a", Instant::now());
        for _ in 0..3 {
            let key = queue.next().await;
            queue.done(key, WorkResult::Failed);
        }
        // Somebody adds it, and it is too early for another reason.
        queue.add("a", Instant::now());
        let key = queue.next().await;
        queue.done(key, WorkResult::RetryAt(Instant::now() + Duration::from_secs(1)));
        let key = queue.next().await;
        let before = Instant::now();
        queue.done(key, WorkResult::Failed);
        queue.next().await;
        assert!(before.elapsed() >= Duration::from_secs(40), "{:?}", before.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_worker_gets_new_work() {
        let queue = std::sync::Arc::new(WorkQueue::new());
        let waiting = tokio::spawn({
            let queue = queue.clone();
            async move { queue.next().await }
        });
        tokio::task::yield_now().await;
        queue.add("a", Instant::now());
        assert_eq!(waiting.await.unwrap(), "a");
    }
}
