//! Waiting for a condition, never for a time.

use anyhow::{Result, bail};
use std::time::{Duration, Instant};

/// Asks again until `ask` gives a value, and fails with its last answer when `limit` is over.
///
/// A limit costs time only where a test fails, so it is long enough for a machine that is busy with other clusters.
///
/// `ask` gives `Ok(value)` when the condition holds and `Err(what is seen instead)` while it does not.
pub fn eventually<T>(what: &str, limit: Duration, mut ask: impl FnMut() -> Result<T>) -> Result<T> {
    let end = Instant::now() + limit;
    loop {
        match ask() {
            Ok(value) => return Ok(value),
            Err(seen) if Instant::now() >= end => bail!("{what}: not within {limit:?}; seen last: {seen:#}"),
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}
