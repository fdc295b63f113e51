//! The last XIDs of each device, also those that make none unhealthy.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Time within which an XID that comes again counts as the same report: a storm of XIDs writes no status and sends no event.
const STORM: SignedDuration = SignedDuration::from_secs(60);
/// Numbers that are remembered for each device. The oldest goes first.
const MAX_NUMBERS: usize = 16;

/// Numbers and times of XIDs by UUID of the device: each number once, the newest last. The agent saves those of GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LastXids(BTreeMap<String, Vec<(i32, Timestamp)>>);

impl LastXids {
    /// Takes an XID of a device. Returns true if it is worth a report: the first of its number within a minute.
    pub fn observe(&mut self, device: &str, xid: i32, now: Timestamp) -> bool {
        let xids = self.0.entry(device.to_owned()).or_default();
        // A time in the future was noted before the clock was set back.
        let is_recent = |at: Timestamp| at <= now && now.duration_since(at) < STORM;
        if xids.iter().any(|(number, at)| *number == xid && is_recent(*at)) {
            return false;
        }
        xids.retain(|(number, _)| *number != xid);
        xids.push((xid, now));
        if xids.len() > MAX_NUMBERS {
            xids.remove(0);
        }
        true
    }

    /// Returns the last XID of a device with its time, which is up to a minute old where it came several times.
    pub fn last(&self, device: &str) -> Option<(i32, Timestamp)> {
        self.0.get(device)?.last().copied()
    }

    /// Forgets the XIDs of devices that are gone.
    pub fn forget(&mut self, is_gone: impl Fn(&str) -> bool) {
        self.0.retain(|gpu, _| !is_gone(gpu));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).unwrap()
    }

    #[test]
    fn the_last_xid_of_each_gpu_is_known_and_a_storm_is_one() {
        let mut xids = LastXids::default();
        assert_eq!(xids.last("G"), None);
        assert!(xids.observe("G", 13, at(0)));
        assert!(xids.observe("G", 31, at(1)), "another number is news");
        assert!(!xids.observe("G", 13, at(59)));
        assert_eq!(xids.last("G"), Some((31, at(1))));
        assert!(xids.observe("G", 13, at(60)));
        assert!(xids.observe("H", 13, at(60)), "of another GPU");
        assert_eq!(
            (xids.last("G"), xids.last("H")),
            (Some((13, at(60))), Some((13, at(60))))
        );
        assert!(xids.observe("G", 13, at(-1000)), "the clock was set back");
        assert_eq!(xids.last("G"), Some((13, at(-1000))));
        xids.forget(|gpu| gpu == "H");
        assert_eq!(xids.last("H"), None);
    }

    #[test]
    fn whatever_comes_few_numbers_are_remembered_and_the_newest_is_one_of_them() {
        let mut xids = LastXids::default();
        for number in 0..1000 {
            assert!(xids.observe("G", number, at(number.into())));
        }
        assert_eq!((xids.0["G"].len(), xids.last("G")), (MAX_NUMBERS, Some((999, at(999)))));
    }
}
