//! The right to write, which ends unless it is renewed.

use tokio::{sync::watch, time::Instant};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeadershipState {
    Standby,
    /// Writes may begin until then.
    Until(Instant),
    /// The process is about to end.
    Ended,
}

impl LeadershipState {
    fn may_write(self) -> bool {
        matches!(self, Self::Until(until) if Instant::now() < until)
    }
}

/// The side that gives this process the right to write, and ends it.
#[derive(Clone, Debug)]
pub struct LeadershipOwner(watch::Sender<LeadershipState>);

impl Default for LeadershipOwner {
    /// Of a process that does not lead yet.
    fn default() -> Self {
        Self(watch::channel(LeadershipState::Standby).0)
    }
}

impl LeadershipOwner {
    /// Returns the view of those who write.
    pub fn follow(&self) -> Leadership {
        Leadership(self.0.subscribe())
    }

    /// Lets writes begin until then. A leadership that has ended stays so.
    pub fn extend(&self, until: Instant) {
        self.0.send_if_modified(|state| {
            let is_open = *state != LeadershipState::Ended;
            if is_open {
                *state = LeadershipState::Until(until);
            }
            is_open
        });
    }

    /// Ends the leadership for good, from any thread: no write begins after this.
    pub fn end(&self) {
        self.0.send_replace(LeadershipState::Ended);
    }

    /// Waits until the leadership has ended for good.
    pub async fn ended(&self) {
        let mut state = self.0.subscribe();
        // Cannot fail: the sender is alive.
        if state.wait_for(|state| *state == LeadershipState::Ended).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// The right of this process to write.
#[derive(Clone, Debug)]
pub struct Leadership(watch::Receiver<LeadershipState>);

impl Leadership {
    /// A leadership that is never renewed.
    #[cfg(test)]
    pub fn until(until: Instant) -> Self {
        Self(watch::channel(LeadershipState::Until(until)).1)
    }

    /// True if a write may begin.
    pub fn is_current(&self) -> bool {
        self.0.borrow().may_write()
    }

    /// Waits until a write may begin: until this process leads, or a late renewal succeeds. Never returns after the election
    /// has ended, since the process ends too.
    pub async fn acquired(&mut self) {
        if self.0.wait_for(|state| state.may_write()).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::time::advance;

    #[tokio::test(start_paused = true)]
    async fn leadership_that_has_ended_is_not_extended() {
        let owner = LeadershipOwner::default();
        let leadership = owner.follow();
        assert!(!leadership.is_current());
        owner.extend(Instant::now() + Duration::from_secs(2));
        assert!(leadership.is_current());
        advance(Duration::from_secs(2)).await;
        assert!(!leadership.is_current());
        owner.extend(Instant::now() + Duration::from_secs(2));
        assert!(leadership.is_current(), "a late renewal succeeded");
        owner.end();
        owner.ended().await;
        owner.extend(Instant::now() + Duration::from_secs(2));
        assert!(!leadership.is_current());
    }
}
