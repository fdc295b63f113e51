//! Time that a test can judge also on a busy machine.

use std::{
    fs,
    time::{Duration, Instant},
};

/// Measures time without that in which some task of the machine waited for a processor: Linux counts it (pressure stall
/// information). So a limit is judged as on an idle machine; a kernel that does not count makes it strict.
#[derive(Debug, Clone, Copy)]
pub struct Stopwatch {
    start: Instant,
    stalled: Duration,
}

impl Stopwatch {
    /// Starts now.
    pub fn start() -> Self {
        Self {
            start: Instant::now(),
            stalled: stalled_since_boot(),
        }
    }

    /// Returns how long the machine had tasks that waited for a processor since the start.
    pub fn stalled(&self) -> Duration {
        stalled_since_boot().saturating_sub(self.stalled)
    }

    /// Returns the time since the start without that.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed().saturating_sub(self.stalled())
    }
}

/// Reads the microseconds of `some avg10=0.00 avg60=0.00 avg300=0.00 total=12345`.
fn stalled_since_boot() -> Duration {
    let text = fs::read_to_string("/proc/pressure/cpu").unwrap_or_default();
    let total = text
        .lines()
        .find(|line| line.starts_with("some "))
        .and_then(|line| line.split_once("total=")?.1.parse().ok());
    Duration::from_micros(total.unwrap_or_default())
}
