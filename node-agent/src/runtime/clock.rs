//! Clock that no administrator or time service adjusts.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Returns the time since boot, the same in every container of the node.
pub fn since_boot() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default()
}
