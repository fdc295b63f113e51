//! Limits how often the status of a policy is written.

use std::{collections::HashMap, time::Duration};
use tokio::time::Instant;

/// Time between two writes of one policy's status.
const INTERVAL: Duration = Duration::from_secs(1);

/// Time of the last write of each status. Entries older than the interval are dropped.
#[derive(Debug, Default)]
pub struct StatusPace(HashMap<String, Instant>);

impl StatusPace {
    /// Returns when the status of a policy may be written; `None` is now.
    pub fn not_before(&mut self, policy: &str) -> Option<Instant> {
        self.0.retain(|_, at| at.elapsed() < INTERVAL);
        self.0.get(policy).map(|at| *at + INTERVAL)
    }

    /// Records a write.
    pub fn written(&mut self, policy: &str) {
        self.0.insert(policy.to_owned(), Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn status_of_a_policy_is_written_once_a_second_and_others_wait_for_none_of_it() {
        let mut pace = StatusPace::default();
        assert_eq!(pace.not_before("p"), None);
        pace.written("p");
        tokio::time::advance(Duration::from_millis(400)).await;
        let next = pace.not_before("p").map(|at| at - Instant::now());
        assert_eq!(next, Some(Duration::from_millis(600)));
        assert_eq!(pace.not_before("q"), None);
        tokio::time::advance(Duration::from_millis(600)).await;
        assert_eq!(pace.not_before("p"), None);
    }
}
