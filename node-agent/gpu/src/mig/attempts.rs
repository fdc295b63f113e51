//! Attempts on one GPU as the decision sees them, and the pauses between them.

use super::{AttemptResult, MigAttempt, MigWork, MigWorkKind};
use crate::GpuLayout;
use jiff::{SignedDuration, Timestamp};

/// Pause after the first attempt that something blocked, and the longest one.
const BLOCKED: (SignedDuration, SignedDuration) = (SignedDuration::from_secs(2), SignedDuration::from_mins(1));
/// Pause after the first change that was refused although its check was clear, and the longest one. Something holds the GPU that only a
/// person finds, and each attempt takes an approval and closes the sessions with the driver.
const REFUSED: (SignedDuration, SignedDuration) = (SignedDuration::from_mins(1), SignedDuration::from_mins(30));
/// Pause after the first attempt that the driver refused, and the longest one.
const FAILED: (SignedDuration, SignedDuration) = (SignedDuration::from_secs(10), SignedDuration::from_mins(5));

/// Longest time between two attempts in a row: longer than their longest pause. While nothing is tried, nobody knows what is in the way.
const LONGEST_GAP: SignedDuration = SignedDuration::from_mins(3);

/// Attempts of this process on one GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AttemptHistory {
    /// Work under way, and the time since when.
    running: Option<(MigWork, Timestamp)>,
    last: Option<EndedAttempt>,
    /// Attempts in a row at the same layout that were blocked or failed.
    misses: u32,
    /// Those of them that were blocked after a check that was clear.
    refusals: u32,
    blocked: Option<BlockedChange>,
}

/// A change that has begun, and that something blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockedChange {
    /// Hash of the configuration that wants it.
    hash: String,
    /// Time of the first attempt that was blocked.
    pub since: Timestamp,
    /// Time of the last one.
    pub last: Timestamp,
    /// Names of what is in the way, as of the last attempt.
    pub message: String,
}

/// An attempt that is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedAttempt {
    /// The work.
    pub work: MigWork,
    /// Its result.
    pub result: AttemptResult,
    /// Time of the result.
    pub at: Timestamp,
}

impl AttemptHistory {
    /// Takes the last attempt on the GPU. `again` is true if it is known to be another one than the last, though it is equal.
    pub fn observe(&mut self, attempt: Option<&MigAttempt>, again: bool, now: Timestamp) {
        let Some(MigAttempt { work, result }) = attempt else {
            *self = Self::default();
            return;
        };
        if *result == AttemptResult::Running {
            let running = self.running.take().filter(|(running, _)| running == work);
            self.running = Some(running.unwrap_or_else(|| (work.clone(), now)));
            return;
        }
        let is_known = |last: &EndedAttempt| last.work == *work && last.result == *result;
        if self.running.is_none() && !again && self.last.as_ref().is_some_and(is_known) {
            return;
        }
        let is_same = |last: &EndedAttempt| last.work.hash == work.hash && last.work.layout == work.layout;
        if *result == AttemptResult::Done || !self.last.as_ref().is_some_and(is_same) {
            (self.misses, self.refusals) = (0, 0);
        }
        self.misses += u32::from(is_miss(result));
        let is_refused = matches!(result, AttemptResult::Blocked { .. }) && work.kind != MigWorkKind::Check;
        self.refusals += u32::from(is_refused);
        self.observe_blocked(work, result, now);
        self.running = None;
        self.last = Some(EndedAttempt {
            work: work.clone(),
            result: result.clone(),
            at: now,
        });
    }

    /// A way back that is blocked as well, and an error of the driver, change nothing about what blocks the change.
    fn observe_blocked(&mut self, work: &MigWork, result: &AttemptResult, now: Timestamp) {
        match (work.kind, result) {
            (MigWorkKind::Apply, AttemptResult::Blocked { message, .. }) => {
                let goes_on =
                    |before: &BlockedChange| before.hash == work.hash && now.duration_since(before.last) <= LONGEST_GAP;
                let before = self.blocked.take().filter(goes_on);
                self.blocked = Some(BlockedChange {
                    hash: work.hash.clone(),
                    since: before.map_or(now, |blocked| blocked.since),
                    last: now,
                    message: message.clone(),
                });
            }
            (
                MigWorkKind::Apply | MigWorkKind::RollBack,
                AttemptResult::Blocked { .. } | AttemptResult::Failed { .. },
            ) => {}
            _ => self.blocked = None,
        }
    }

    /// Returns the change for the configuration with this hash if something blocks it.
    pub(super) fn blocked(&self, hash: &str) -> Option<&BlockedChange> {
        self.blocked.as_ref().filter(|blocked| blocked.hash == hash)
    }

    /// Returns the work that is under way.
    pub(super) fn running(&self) -> Option<&MigWork> {
        self.running.as_ref().map(|(work, _)| work)
    }

    /// Returns the time since when that work is under way.
    pub(super) fn running_since(&self) -> Option<Timestamp> {
        self.running.as_ref().map(|(_, since)| *since)
    }

    /// Returns the last attempt that is over.
    pub(super) fn last(&self) -> Option<&EndedAttempt> {
        self.last.as_ref()
    }

    /// Returns the last attempt if it was at this layout of this configuration.
    pub(super) fn last_at(&self, hash: &str, layout: &GpuLayout) -> Option<&EndedAttempt> {
        self.last()
            .filter(|last| last.work.hash == hash && last.work.layout == *layout)
    }

    /// Returns the time of the next attempt after `last`.
    pub(super) fn retry_at(&self, last: &EndedAttempt) -> Timestamp {
        let pause = match last.result {
            AttemptResult::Failed { .. } => FAILED,
            _ => BLOCKED,
        };
        later(last.at, pause, self.misses)
    }

    /// Returns the time of the next check after a change of which nothing has begun.
    pub(super) fn retry_refused_at(&self, last: &EndedAttempt) -> Timestamp {
        match last.result {
            AttemptResult::Blocked { .. } => later(last.at, REFUSED, self.refusals),
            _ => self.retry_at(last),
        }
    }
}

/// Returns the time of the next attempt after `attempts` that failed, the last of them at `at`.
pub fn retry_after_failures(at: Timestamp, attempts: u32) -> Timestamp {
    later(at, FAILED, attempts)
}

fn is_miss(result: &AttemptResult) -> bool {
    matches!(result, AttemptResult::Blocked { .. } | AttemptResult::Failed { .. })
}

fn later(at: Timestamp, (first, longest): (SignedDuration, SignedDuration), misses: u32) -> Timestamp {
    let factor = 2_i32.saturating_pow(misses.saturating_sub(1));
    let pause = first.checked_mul(factor).unwrap_or(longest).min(longest);
    at.saturating_add(pause).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpunode_crds::MigReason;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn attempt(hash: &str, result: AttemptResult) -> MigAttempt {
        MigAttempt {
            work: MigWork {
                gpu: "GPU-0".to_owned(),
                hash: hash.to_owned(),
                layout: GpuLayout::default(),
                kind: MigWorkKind::Check,
                gives_up: None,
            },
            result,
        }
    }

    fn blocked() -> AttemptResult {
        AttemptResult::Blocked {
            reason: MigReason::InUse,
            message: "dcgm".to_owned(),
        }
    }

    #[test]
    fn pauses_grow_until_a_minute_and_begin_anew_with_another_configuration() {
        let mut history = AttemptHistory::default();
        let mut pauses = Vec::new();
        for hash in ["one", "one", "one", "one", "one", "one", "one", "two"] {
            history.observe(Some(&attempt(hash, AttemptResult::Running)), false, at(100));
            history.observe(Some(&attempt(hash, blocked())), false, at(100));
            pauses.push(history.retry_at(history.last().unwrap()).as_second() - 100);
        }
        assert_eq!(pauses, [2, 4, 8, 16, 32, 60, 60, 2]);
        let failures: Vec<i64> = (1..8)
            .map(|count| retry_after_failures(at(0), count).as_second())
            .collect();
        assert_eq!(failures, [10, 20, 40, 80, 160, 300, 300]);
    }

    #[test]
    fn change_is_blocked_since_the_first_of_the_attempts_in_a_row_that_were() {
        let mut history = AttemptHistory::default();
        let mut observe = |kind, result: AttemptResult, second| {
            let mut attempt = attempt("one", result);
            attempt.work.kind = kind;
            history.observe(Some(&attempt), true, at(second));
            history.blocked("one").map(|blocked| blocked.since.as_second())
        };
        let failed = || AttemptResult::Failed {
            message: "error".to_owned(),
        };
        assert_eq!(observe(MigWorkKind::Check, blocked(), 1), None, "nothing has begun");
        assert_eq!(observe(MigWorkKind::Apply, blocked(), 2), Some(2));
        assert_eq!(observe(MigWorkKind::Apply, failed(), 3), Some(2));
        assert_eq!(observe(MigWorkKind::Apply, blocked(), 4), Some(2));
        assert_eq!(observe(MigWorkKind::RollBack, blocked(), 5), Some(2));
        assert_eq!(observe(MigWorkKind::RollBack, AttemptResult::Done, 6), None);
        assert_eq!(observe(MigWorkKind::Apply, blocked(), 7), Some(7));
        assert_eq!(observe(MigWorkKind::Apply, blocked(), 187), Some(7));
        assert_eq!(
            observe(MigWorkKind::Apply, blocked(), 368),
            Some(368),
            "nothing was tried for long"
        );
        assert_eq!(history.blocked("two"), None);
    }

    #[test]
    fn change_that_is_refused_after_a_clear_check_is_tried_again_ever_more_rarely() {
        let mut history = AttemptHistory::default();
        let observe = |history: &mut AttemptHistory, kind, result: AttemptResult| {
            let of_kind = |result| {
                let mut attempt = attempt("one", result);
                attempt.work.kind = kind;
                attempt
            };
            history.observe(Some(&of_kind(AttemptResult::Running)), false, at(0));
            history.observe(Some(&of_kind(result)), false, at(0));
        };
        // Checks that find something do not count.
        for _ in 0..5 {
            observe(&mut history, MigWorkKind::Check, blocked());
        }
        let mut pauses = Vec::new();
        for _ in 0..7 {
            observe(&mut history, MigWorkKind::Check, AttemptResult::Clear);
            observe(&mut history, MigWorkKind::Apply, blocked());
            pauses.push(history.retry_refused_at(history.last().unwrap()).as_second());
        }
        assert_eq!(pauses, [60, 120, 240, 480, 960, 1800, 1800]);
    }

    #[test]
    fn attempt_counts_once_unless_it_ran_again_or_is_known_to_have() {
        let mut history = AttemptHistory::default();
        let pause = |history: &AttemptHistory| history.retry_at(history.last().unwrap());
        let observe = |history: &mut AttemptHistory, result, again, second| {
            history.observe(Some(&attempt("one", result)), again, at(second));
        };
        observe(&mut history, blocked(), false, 0);
        observe(&mut history, blocked(), false, 5);
        assert_eq!(pause(&history), at(2));
        observe(&mut history, blocked(), true, 10);
        assert_eq!(pause(&history), at(14));
        observe(&mut history, AttemptResult::Running, false, 20);
        assert_eq!(history.running().map(|work| work.kind), Some(MigWorkKind::Check));
        observe(&mut history, AttemptResult::Clear, false, 20);
        observe(&mut history, blocked(), false, 20);
        assert_eq!(
            pause(&history),
            at(28),
            "a check that is clear proves nothing about the change"
        );
        history.observe(None, false, at(30));
        assert_eq!(history, AttemptHistory::default());
    }
}
