//! Small helpers for moments.

use jiff::Timestamp;

/// Rounds down to whole seconds, as the API server stores times.
pub fn whole_second(now: Timestamp) -> Timestamp {
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}

/// Returns the earliest of several moments, any of which may be missing.
pub fn earliest(moments: impl IntoIterator<Item = Option<Timestamp>>) -> Option<Timestamp> {
    moments.into_iter().flatten().min()
}
