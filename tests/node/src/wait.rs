//! Waiting for a condition.

use anyhow::{Context as _, Result};
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// The longest wait for a condition. It costs time only where a test fails, so it is long enough for a busy machine and for the
/// agent's own time-outs, of up to 30 s.
pub const PATIENCE: Duration = Duration::from_mins(2);
pub const POLL: Duration = Duration::from_millis(5);

/// Asks `condition` until it has an answer. `what` is named where there is none.
pub async fn until<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> Result<T> {
    let poll = async {
        loop {
            if let Some(answer) = condition() {
                return answer;
            }
            sleep(POLL).await;
        }
    };
    timeout(PATIENCE, poll)
        .await
        .with_context(|| format!("wait until {what}"))
}
