//! The time for which a container has not used a device.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

/// UID of a pod, name of its container and UUID of the device.
pub type IdleKey = (Option<String>, String, String);

/// Time of the last use of each device by each container. The first read of a holder counts as use: nobody knows what was before.
#[derive(Clone, Debug, Default)]
pub struct IdleClocks(BTreeMap<IdleKey, Instant>);

impl IdleClocks {
    /// Takes in if a container uses a device now. Returns the time since its last use; none while this cannot be told, after which
    /// the time begins anew.
    pub fn observe(&mut self, key: IdleKey, is_active: Option<bool>, now: Instant) -> Option<Duration> {
        let Some(is_active) = is_active else {
            self.0.remove(&key);
            return None;
        };
        let last = self.0.entry(key).or_insert(now);
        if is_active {
            *last = now;
        }
        Some(now.saturating_duration_since(*last))
    }

    /// Forgets the holders that are not among these.
    pub fn retain(&mut self, keys: &BTreeSet<IdleKey>) {
        self.0.retain(|key, _| keys.contains(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_counts_from_the_last_use_and_anew_after_a_gap() {
        let (mut clocks, start) = (IdleClocks::default(), Instant::now());
        let key = || (Some("a".to_owned()), "main".to_owned(), "GPU-0".to_owned());
        let mut at = |seconds: u64, is_active: Option<bool>| {
            let idle = clocks.observe(key(), is_active, start + Duration::from_secs(seconds));
            idle.map(|time| time.as_secs())
        };
        assert_eq!(at(0, Some(false)), Some(0), "nobody knows what was before");
        assert_eq!(at(30, Some(false)), Some(30));
        assert_eq!(at(60, Some(true)), Some(0));
        assert_eq!(at(90, Some(false)), Some(30));
        assert_eq!(at(120, None), None);
        assert_eq!(at(150, Some(false)), Some(0), "it may have been busy");
        assert_eq!(at(180, Some(false)), Some(30));
        clocks.retain(&BTreeSet::new());
        assert_eq!(
            clocks.observe(key(), Some(false), start),
            Some(Duration::ZERO),
            "it is another pod"
        );
    }
}
