//! Random parts of pauses, so that many processes which fail together do not come back together.

use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};

/// Steps into which a pause is divided.
const STEPS: u32 = 1 << 20;

/// Returns a random time below `limit`.
pub fn random_up_to(limit: Duration) -> Duration {
    // Every state has keys of its own, so the hash of the same value differs each time.
    let step = RandomState::new().hash_one(0_u8) % u64::from(STEPS);
    limit.mul_f64(f64::from(u32::try_from(step).unwrap_or_default()) / f64::from(STEPS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_spread_below_the_limit() {
        let limit = Duration::from_secs(16);
        let times: Vec<Duration> = (0..1000).map(|_| random_up_to(limit)).collect();
        assert!(times.iter().all(|time| *time < limit));
        for part in 0..8 {
            let range = limit * part / 8..limit * (part + 1) / 8;
            let count = times.iter().filter(|time| range.contains(*time)).count();
            assert!(count > 50, "{count} of 1000 in {range:?}");
        }
        assert_eq!(random_up_to(Duration::ZERO), Duration::ZERO);
    }
}
