//! Time limit of requests that does not run while they wait for their turn.

use std::{
    future::poll_fn,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Poll,
    time::Duration,
};
use tokio::{
    task_local,
    time::{Instant, sleep},
};

task_local! {
    /// The clock of the requests that this task makes now.
    static CLOCK: Arc<Mutex<RequestClock>>;
}

/// Awaits requests for `limit`; returns `None` after it.
///
/// Times at which a paced client holds one of them back do not count: the limit is for the API server's answers.
/// Requests that `requests` makes in tasks of their own count in full.
pub async fn within<T>(limit: Duration, requests: impl Future<Output = T>) -> Option<T> {
    let clock = Arc::new(Mutex::new(RequestClock::new(Instant::now())));
    let mut requests = pin!(CLOCK.scope(clock.clone(), requests));
    let mut timer = pin!(sleep(limit));
    poll_fn(|context| {
        if let Poll::Ready(answer) = requests.as_mut().poll(context) {
            return Poll::Ready(Some(answer));
        }
        // Each wait begins and ends while the requests are polled, so the clock is up to date here.
        let deadline = lock(&clock).deadline(limit);
        let Some(deadline) = deadline else {
            return Poll::Pending;
        };
        if timer.deadline() != deadline {
            timer.as_mut().reset(deadline);
        }
        timer.as_mut().poll(context).map(|()| None)
    })
    .await
}

/// Stops the clock of the requests that this task makes, if it has one, until it is dropped.
pub struct StoppedClock(Option<Arc<Mutex<RequestClock>>>);

impl StoppedClock {
    /// Stops the clock.
    pub fn stop() -> Self {
        let clock = CLOCK.try_with(Arc::clone).ok();
        if let Some(clock) = &clock {
            lock(clock).stop(Instant::now());
        }
        Self(clock)
    }
}

impl Drop for StoppedClock {
    fn drop(&mut self) {
        if let Some(clock) = &self.0 {
            lock(clock).resume(Instant::now());
        }
    }
}

/// A clock that stands still while a request waits.
#[derive(Debug)]
struct RequestClock {
    start: Instant,
    /// Requests that wait now.
    waiting: usize,
    /// Begin of the present wait.
    stopped_at: Instant,
    /// Sum of the waits before.
    stopped_for: Duration,
}

impl RequestClock {
    fn new(now: Instant) -> Self {
        Self {
            start: now,
            waiting: 0,
            stopped_at: now,
            stopped_for: Duration::ZERO,
        }
    }

    fn stop(&mut self, now: Instant) {
        if self.waiting == 0 {
            self.stopped_at = now;
        }
        self.waiting += 1;
    }

    fn resume(&mut self, now: Instant) {
        self.waiting = self.waiting.saturating_sub(1);
        if self.waiting == 0 {
            self.stopped_for += now.duration_since(self.stopped_at);
        }
    }

    /// Returns the end of the limit; none while the clock stands still.
    fn deadline(&self, limit: Duration) -> Option<Instant> {
        (self.waiting == 0).then(|| self.start + limit + self.stopped_for)
    }
}

fn lock(clock: &Mutex<RequestClock>) -> MutexGuard<'_, RequestClock> {
    clock.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    async fn wait(seconds: u64) {
        let _stopped = StoppedClock::stop();
        sleep(Duration::from_secs(seconds)).await;
    }

    async fn answer_after(seconds: u64) {
        sleep(Duration::from_secs(seconds)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn waits_do_not_count() {
        let requests = async {
            wait(60).await;
            answer_after(5).await;
            wait(60).await;
            answer_after(4).await;
        };
        assert!(within(LIMIT, requests).await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn late_answers_end_at_the_limit() {
        let start = Instant::now();
        let requests = async {
            answer_after(6).await;
            wait(60).await;
            answer_after(6).await;
        };
        assert!(within(LIMIT, requests).await.is_none());
        assert_eq!(start.elapsed().as_secs(), 70);
    }

    #[tokio::test(start_paused = true)]
    async fn requests_side_by_side_wait_once() {
        let start = Instant::now();
        let requests = async { tokio::join!(wait(30), wait(20), answer_after(99)) };
        assert!(within(LIMIT, requests).await.is_none());
        assert_eq!(start.elapsed().as_secs(), 40);
    }

    #[tokio::test(start_paused = true)]
    async fn wait_without_a_limit_stops_no_clock() {
        wait(1).await;
        assert!(within(LIMIT, answer_after(9)).await.is_some());
        assert!(within(LIMIT, answer_after(11)).await.is_none());
    }
}
