//! Pauses between tries of something that should work for long, such as a watch.

use crate::jitter::random_up_to;
use std::time::Duration;
use tokio::time::Instant;

/// First pause.
const FIRST: Duration = Duration::from_secs(1);
/// Longest pause, as of client-go's reflectors.
const LONGEST: Duration = Duration::from_secs(30);
/// Time for which it must have worked before the pauses begin anew.
const STEADY: Duration = Duration::from_secs(30);

/// Growing pauses with jitter. A try that works only for a moment does not shorten them.
#[derive(Debug)]
pub struct RetryPace {
    pause: Duration,
    /// First and last sign of work since the last failure.
    worked: Option<(Instant, Instant)>,
}

impl Default for RetryPace {
    fn default() -> Self {
        Self {
            pause: FIRST,
            worked: None,
        }
    }
}

impl RetryPace {
    /// Notes a sign of work, such as an accepted request or a line of a watch.
    pub fn worked(&mut self, now: Instant) {
        let (first, _) = self.worked.unwrap_or((now, now));
        self.worked = Some((first, now));
    }

    /// Returns the pause before the next try: at random from the upper half of 1 s, 2 s, 4 s and so on, up to 30 s.
    pub fn failed(&mut self) -> Duration {
        let worked = self.worked.take();
        if worked.is_some_and(|(first, last)| last.duration_since(first) >= STEADY) {
            self.pause = FIRST;
        }
        let half = self.pause / 2;
        self.pause = (self.pause * 2).min(LONGEST);
        half + random_up_to(half)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_half_a_minute() {
        let mut pace = RetryPace::default();
        for longest in [1, 2, 4, 8, 16, 30, 30].map(Duration::from_secs) {
            let pause = pace.failed();
            assert!((longest / 2..longest).contains(&pause), "{pause:?} for {longest:?}");
        }
    }

    #[test]
    fn only_what_worked_for_a_while_begins_anew() {
        let now = Instant::now();
        let mut pace = RetryPace::default();
        for _ in 0..6 {
            // Accepted, and gone at once.
            pace.worked(now);
            pace.failed();
        }
        assert!(pace.failed() >= LONGEST / 2);
        // Accepted, and silent ever after.
        pace.worked(now);
        assert!(pace.failed() >= LONGEST / 2);
        pace.worked(now);
        pace.worked(now + STEADY);
        assert!(pace.failed() < FIRST);
    }
}
