//! The right to write, which ends unless it is renewed.

use std::time::Duration;
use tokio::{sync::watch, time::Instant};

/// Duration of a Lease without renewal. Client-go's default.
pub const LEASE_DURATION: Duration = Duration::from_secs(15);
/// No write begins this close to the end of a leadership, so that it reaches the API server before.
pub const MARGIN: Duration = Duration::from_secs(3);

/// The right of this process to write.
#[derive(Clone, Debug)]
pub struct Leadership(watch::Receiver<Option<Instant>>);

impl Leadership {
    /// Follows the end of the leadership; `None` while another process leads.
    pub fn new(until: watch::Receiver<Option<Instant>>) -> Self {
        Self(until)
    }

    /// A leadership that is never renewed.
    #[cfg(test)]
    pub fn until(until: Instant) -> Self {
        Self(watch::channel(Some(until)).1)
    }

    /// True if a write may begin.
    pub fn is_current(&self) -> bool {
        self.0.borrow().is_some_and(may_write)
    }

    /// Waits until a write may begin: until this process leads, or a late renewal succeeds. Never returns after the election
    /// has ended, since the process ends too.
    pub async fn acquired(&mut self) {
        if self.0.wait_for(|until| until.is_some_and(may_write)).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

fn may_write(until: Instant) -> bool {
    Instant::now() + MARGIN < until
}
