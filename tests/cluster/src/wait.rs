//! Waiting for conditions, never for a length of time.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

const INTERVAL: Duration = Duration::from_millis(50);

/// Looks again and again until `look` finds something or `timeout` is over; `what` completes "waited .. for".
///
/// An error of `look` ends the wait: it is for what cannot get better.
pub(crate) fn until<T>(what: &str, timeout: Duration, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let start = Instant::now();
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        if start.elapsed() >= timeout {
            bail!("waited {} s for {what}", timeout.as_secs());
        }
        thread::sleep(INTERVAL);
    }
}
