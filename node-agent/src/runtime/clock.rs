//! A clock that nobody sets.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Time since boot, the same in every container.
pub fn since_boot() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default()
}
