//! Telling how far a start is.

use std::{fmt, time::Instant};

/// Receiver of progress lines. A library prints none unless its user asks for them.
#[derive(Clone, Copy)]
pub struct Progress {
    start: Instant,
    print: fn(&str),
}

impl Progress {
    /// Sends lines to `print`, with the seconds since this call.
    pub fn new(print: fn(&str)) -> Self {
        Progress {
            start: Instant::now(),
            print,
        }
    }

    /// Discards all lines.
    pub fn silent() -> Self {
        Progress::new(|_| {})
    }

    pub(crate) fn print(&self, what: &str, state: impl fmt::Display) {
        (self.print)(&format!(
            "{:6.1}s  {what:<16} {state}",
            self.start.elapsed().as_secs_f32()
        ));
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Progress").finish_non_exhaustive()
    }
}
