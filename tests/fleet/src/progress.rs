//! Lines that say how far a wait of more than two seconds is.

use std::{
    pin::pin,
    time::{Duration, Instant},
};
use tokio::time::timeout;

/// Time after which a wait says how far it is.
const FIRST: Duration = Duration::from_secs(2);
/// Time between its later lines.
const BETWEEN: Duration = Duration::from_secs(10);
/// Time between two looks at work that says nothing itself.
const LOOK: Duration = Duration::from_millis(500);

/// A wait that says how far it is.
#[derive(Debug)]
pub struct WaitProgress {
    begin: Instant,
    next: Duration,
}

impl WaitProgress {
    /// Begins a wait.
    pub fn start() -> Self {
        Self {
            begin: Instant::now(),
            next: FIRST,
        }
    }

    /// Prints the state if a line is due.
    pub fn tick(&mut self, state: impl FnOnce() -> String) {
        let elapsed = self.begin.elapsed();
        if self.is_due(elapsed) {
            println!("{:6} s  {}", elapsed.as_secs(), state());
        }
    }

    fn is_due(&mut self, elapsed: Duration) -> bool {
        let is_due = elapsed >= self.next;
        if is_due {
            self.next = elapsed + BETWEEN;
        }
        is_due
    }
}

/// Carries out work that says nothing itself.
pub async fn with_progress<T>(what: &str, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    let mut progress = WaitProgress::start();
    loop {
        if let Ok(result) = timeout(LOOK, work.as_mut()).await {
            return result;
        }
        progress.tick(|| what.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_waits_say_nothing_and_long_ones_a_line_in_ten_seconds() {
        let mut progress = WaitProgress::start();
        let due: Vec<u64> = (0..=25)
            .filter(|second| progress.is_due(Duration::from_secs(*second)))
            .collect();
        assert_eq!(due, [2, 12, 22]);
    }
}
