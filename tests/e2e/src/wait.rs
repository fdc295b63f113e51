//! Waiting for a condition, never for a time.

use anyhow::{Result, bail};
use std::time::{Duration, Instant};

/// Time between two looks: a tenth of the wait until now, within these bounds.
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_millis(500);

/// Asks again until `ask` gives a value, and fails with its last answer when `limit` is over.
///
/// A limit costs time only where a test fails, so it is long enough for a machine that is busy with other clusters.
///
/// `ask` gives `Ok(value)` when the condition holds and `Err(what is seen instead)` while it does not.
pub fn eventually<T>(what: &str, limit: Duration, mut ask: impl FnMut() -> Result<T>) -> Result<T> {
    let begin = Instant::now();
    loop {
        match ask() {
            Ok(value) => return Ok(value),
            Err(seen) if begin.elapsed() >= limit => bail!("{what}: not within {limit:?}; seen last: {seen:#}"),
            // A look starts kubectl and costs the other clusters their processor, so a long wait looks more rarely.
            Err(_) => std::thread::sleep((begin.elapsed() / 10).clamp(SHORTEST, LONGEST)),
        }
    }
}
