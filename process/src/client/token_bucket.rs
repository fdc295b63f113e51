//! Token bucket that limits a rate. Pure.

use std::{num::NonZeroU32, time::Duration};
use tokio::time::Instant;

/// A bucket that gets a token in each interval. Who takes a token that is not there yet waits for it, in order.
#[derive(Debug)]
pub struct TokenBucket {
    interval: Duration,
    /// Time in which an empty bucket becomes full.
    filling: Duration,
    /// Time from which the bucket is full if nobody takes a token.
    full_at: Instant,
}

impl TokenBucket {
    /// Returns a full bucket of `burst` tokens, which gets `rate` tokens a second.
    pub fn new(rate: NonZeroU32, burst: NonZeroU32, now: Instant) -> Self {
        let interval = Duration::from_secs(1) / rate.get();
        Self {
            interval,
            filling: interval * burst.get(),
            full_at: now,
        }
    }

    /// Takes a token. Returns the time until it is there.
    pub fn take(&mut self, now: Instant) -> Duration {
        self.full_at = self.full_at.max(now) + self.interval;
        self.full_at.duration_since(now).saturating_sub(self.filling)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(rate: u32, burst: u32, now: Instant) -> TokenBucket {
        let [rate, burst] = [rate, burst].map(|number| NonZeroU32::new(number).unwrap());
        TokenBucket::new(rate, burst, now)
    }

    fn millis(times: &[Duration]) -> Vec<u128> {
        times.iter().map(Duration::as_millis).collect()
    }

    #[test]
    fn burst_goes_at_once_and_the_rest_at_the_rate() {
        let now = Instant::now();
        let mut bucket = bucket(10, 3, now);
        let waits: Vec<Duration> = (0..6).map(|_| bucket.take(now)).collect();
        assert_eq!(millis(&waits), [0, 0, 0, 100, 200, 300]);
        let later = now + Duration::from_millis(450);
        assert_eq!(millis(&[bucket.take(later), bucket.take(later)]), [0, 50]);
    }

    #[test]
    fn bucket_holds_no_more_than_the_burst() {
        let now = Instant::now();
        let mut bucket = bucket(10, 1, now);
        assert_eq!(bucket.take(now), Duration::ZERO);
        let later = now + Duration::from_mins(1);
        assert_eq!(millis(&[bucket.take(later), bucket.take(later)]), [0, 100]);
    }
}
