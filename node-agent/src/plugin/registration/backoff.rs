//! Growing pauses between tries.

use std::time::Duration;

const MIN_RETRY: Duration = Duration::from_millis(100);
const MAX_RETRY: Duration = Duration::from_secs(5);

/// Pause before the next try; doubles with each one.
#[derive(Debug)]
pub struct Backoff(Duration);

impl Default for Backoff {
    fn default() -> Self {
        Self(MIN_RETRY)
    }
}

impl Backoff {
    /// Returns the next pause.
    pub fn next(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (pause * 2).min(MAX_RETRY);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_a_limit() {
        let mut backoff = Backoff::default();
        let pauses: Vec<Duration> = (0..8).map(|_| backoff.next()).collect();
        assert_eq!(pauses.first(), Some(&MIN_RETRY));
        assert_eq!(pauses.last(), Some(&MAX_RETRY));
    }
}
