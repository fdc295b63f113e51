//! Waiting for a condition.

use anyhow::{Context as _, Result};
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// Long enough for a busy machine, and for the agent's own patience: 20 s with a GPU that hangs, or as a successor.
pub const PATIENCE: Duration = Duration::from_secs(30);
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
