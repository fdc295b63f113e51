//! Durations of the figures of what containers use.

use super::problem::FieldProblem;
use crate::{UsageConfig, usage::parse};
use std::{ops::RangeInclusive, time::Duration};

const SHORTEST_INTERVAL: Duration = Duration::from_secs(5);
const LONGEST_INTERVAL: Duration = Duration::from_mins(99);
const LONGEST_IDLE: Duration = Duration::from_hours(10_000);

pub(super) fn validate(usage: &UsageConfig, problems: &mut Vec<FieldProblem>) {
    let mut check = |field: &str, text: Option<&str>, units: usize, allowed: RangeInclusive<Duration>, rule: &str| {
        let Some(text) = text else { return };
        let is_good = |time: Duration| time.is_zero() || allowed.contains(&time);
        // The CRD allows no fractions, and no units but these.
        let is_known = |letter: char| letter.is_ascii_digit() || "hms".contains(letter);
        let is_plain = text.chars().all(is_known) && text.chars().filter(char::is_ascii_alphabetic).count() <= units;
        if !is_plain || !parse(text).is_some_and(is_good) {
            problems.push(FieldProblem::new(
                format!("usage.{field}"),
                format!("`{text}` is not a duration {rule}"),
            ));
        }
    };
    let interval = "from 5s to 99m, such as 30s; 0s switches the figures off";
    check(
        "interval",
        usage.interval.as_deref(),
        1,
        SHORTEST_INTERVAL..=LONGEST_INTERVAL,
        interval,
    );
    let idle = "in hours, minutes and seconds, such as 1h30m; with 0s no container counts as idle";
    check(
        "idleAfter",
        usage.idle_after.as_deref(),
        3,
        Duration::from_secs(1)..=LONGEST_IDLE,
        idle,
    );
}

#[cfg(test)]
mod tests {
    use crate::load;

    #[test]
    fn durations_have_bounds_and_zero_is_one() {
        let problems = |usage: &str| {
            load(&format!("usage: {usage}")).map_or_else(
                |error| error.problems().iter().map(ToString::to_string).collect(),
                |_| Vec::new(),
            )
        };
        for good in [
            "{}",
            "{interval: 0s, idleAfter: 0s}",
            "{interval: 5s, idleAfter: 1h30m}",
            "{interval: 99m}",
        ] {
            assert_eq!(problems(good), Vec::<String>::new(), "{good}");
        }
        assert_eq!(
            problems("{interval: 4s, idleAfter: 1d}"),
            [
                "usage.interval: `4s` is not a duration from 5s to 99m, such as 30s; 0s switches the figures off",
                "usage.idleAfter: `1d` is not a duration in hours, minutes and seconds, such as 1h30m; with 0s no container counts as idle",
            ]
        );
        for bad in ["3h", "1m30s", "10.5s", "-10s", "30", ""] {
            assert_eq!(problems(&format!("{{interval: '{bad}'}}")).len(), 1, "{bad}");
        }
    }
}
