//! A condition before its transition time is known.

use crate::{ConditionType, Reason};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// Maximum length of a message in bytes, so that a status stays readable.
const MAX_MESSAGE: usize = 1024;

/// A condition without its transition time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UntimedCondition {
    /// Type of the condition.
    pub of: ConditionType,
    /// True for status `True`, false for status `False`.
    pub holds: bool,
    /// Reason for the status.
    pub reason: Reason,
    /// Details for people.
    pub message: String,
}

impl UntimedCondition {
    /// Creates a condition.
    pub fn new(of: ConditionType, holds: bool, reason: Reason, message: impl Into<String>) -> Self {
        Self {
            of,
            holds,
            reason,
            message: message.into(),
        }
    }

    /// Returns the condition with the transition time of the one in `before`, or with `now` if the status changed. Cuts the
    /// message at 1,024 bytes.
    pub fn at(mut self, now: Timestamp, before: &[Condition]) -> Condition {
        self.message.truncate(self.message.floor_char_boundary(MAX_MESSAGE));
        let status = if self.holds { "True" } else { "False" };
        let old = self.of.find(before).filter(|old| old.status == status);
        Condition {
            type_: self.of.as_str().to_owned(),
            status: status.to_owned(),
            reason: self.reason.as_str().to_owned(),
            message: self.message,
            last_transition_time: old.map_or(Time(now), |old| old.last_transition_time.clone()),
            observed_generation: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_transition_time_stays_while_the_status_does() {
        let ready = |holds, message: &str| UntimedCondition::new(ConditionType::Ready, holds, Reason::InForce, message);
        let [early, late] = [1, 2].map(|second| Timestamp::from_second(second).unwrap());
        let before = [ready(true, "first").at(early, &[])];
        assert_eq!(
            ready(true, "second").at(late, &before).last_transition_time,
            Time(early)
        );
        assert_eq!(ready(true, "second").at(late, &before).message, "second");
        assert_eq!(ready(false, "first").at(late, &before).last_transition_time, Time(late));
        assert_eq!(ready(false, "first").at(late, &before).status, "False");
    }

    #[test]
    fn a_long_message_is_cut_between_characters() {
        let condition = UntimedCondition::new(ConditionType::Ready, true, Reason::InForce, "ä".repeat(1000));
        assert_eq!(condition.at(Timestamp::UNIX_EPOCH, &[]).message, "ä".repeat(512));
    }
}
