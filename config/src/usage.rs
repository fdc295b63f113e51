//! Figures of what containers use of the GPUs that they hold.

use jiff::SignedDuration;
use kube::KubeSchema;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Default of `interval`.
const INTERVAL: Duration = Duration::from_secs(30);
/// Default of `idleAfter`.
const IDLE_AFTER: Duration = Duration::from_hours(1);

/// Figures of what containers use of the GPUs that they hold, in the agent's metrics and in `kubectl gpunode status NODE`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
// Atomic: server-side apply turns an emptied granular block into null (structured-merge-diff 6.3.3).
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct UsageConfig {
    /// Time between two reads of the driver, from `5s` to `99m`; `0s` for no figures. Default: 30s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 2, max = 5),
        regex(pattern = r"^(0s|[5-9]s|[1-9][0-9]{1,2}s|[1-9][0-9]?m)$")
    )]
    pub interval: Option<String>,

    /// Time without use of a GPU after which the container that holds it counts as idle, such as `1h`; `0s` for never.
    /// Default: 1h.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 2, max = 16),
        regex(pattern = r"^(0s|([1-9][0-9]{0,3}h)?([1-9][0-9]{0,3}m)?([1-9][0-9]{0,4}s)?)$")
    )]
    pub idle_after: Option<String>,
}

impl UsageConfig {
    /// Returns the time between two reads; none if there are no figures.
    pub fn interval(&self) -> Option<Duration> {
        in_force(self.interval.as_deref(), INTERVAL)
    }

    /// Returns the time without use after which a holder counts as idle; none for never.
    pub fn idle_after(&self) -> Option<Duration> {
        in_force(self.idle_after.as_deref(), IDLE_AFTER)
    }
}

/// Returns the duration in force; none if it is 0. One that cannot be parsed counts as unset.
fn in_force(given: Option<&str>, default: Duration) -> Option<Duration> {
    let given = given.and_then(parse).unwrap_or(default);
    (!given.is_zero()).then_some(given)
}

pub(crate) fn parse(text: &str) -> Option<Duration> {
    text.parse::<SignedDuration>().ok()?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_defaults_and_zero_switches_off() {
        let of = |interval: Option<&str>, idle_after: Option<&str>| {
            let config = UsageConfig {
                interval: interval.map(str::to_owned),
                idle_after: idle_after.map(str::to_owned),
            };
            let seconds = |time: Option<Duration>| time.map(|time| time.as_secs());
            (seconds(config.interval()), seconds(config.idle_after()))
        };
        assert_eq!(of(None, None), (Some(30), Some(3600)));
        assert_eq!(of(Some("2m"), Some("1h30m5s")), (Some(120), Some(5405)));
        assert_eq!(of(Some("0s"), Some("0s")), (None, None));
        assert_eq!(of(Some("soon"), Some("-1h")), (Some(30), Some(3600)));
    }
}
