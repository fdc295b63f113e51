//! Durations of the Lease, with client-go's names, defaults and rules.

use std::time::Duration;

/// Duration of a Lease without renewal, also of one that tells none. Client-go's default.
pub const LEASE_DURATION: Duration = Duration::from_secs(15);
/// Longest duration of a Lease: nobody waits longer for another holder, whatever its Lease says.
pub const MAX_LEASE_DURATION: Duration = Duration::from_mins(5);
/// Client-go's factor for the jitter of retries (`JitterFactor` in `tools/leaderelection`).
const JITTER_FACTOR: f64 = 1.2;

/// Durations that do not fit together.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseDurationsError {
    /// A Lease counts whole seconds.
    #[error("--lease-duration is {0:?}; write whole seconds, from 1s to {max}s", max = MAX_LEASE_DURATION.as_secs())]
    Lease(Duration),
    /// Writes would go on after another replica took the Lease.
    #[error("--renew-deadline ({renew:?}) must be shorter than --lease-duration ({lease:?})")]
    RenewDeadline { lease: Duration, renew: Duration },
    /// There would be no second try.
    #[error(
        "--retry-period is {retry:?}; write more than 0s, and less than --renew-deadline ({renew:?}) / {JITTER_FACTOR}"
    )]
    RetryPeriod { renew: Duration, retry: Duration },
}

/// Durations of the Lease that fit together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseDurations {
    lease: Duration,
    renew_deadline: Duration,
    retry_period: Duration,
}

impl LeaseDurations {
    /// Checks the durations against each other, as client-go's `NewLeaderElector` does.
    pub fn new(lease: Duration, renew_deadline: Duration, retry_period: Duration) -> Result<Self, LeaseDurationsError> {
        if lease.is_zero() || lease.subsec_nanos() != 0 || lease > MAX_LEASE_DURATION {
            return Err(LeaseDurationsError::Lease(lease));
        }
        if renew_deadline >= lease {
            let renew = renew_deadline;
            return Err(LeaseDurationsError::RenewDeadline { lease, renew });
        }
        // Not longer than the Lease, so the product cannot overflow.
        let has_second_try = retry_period < renew_deadline && renew_deadline > retry_period.mul_f64(JITTER_FACTOR);
        if retry_period.is_zero() || !has_second_try {
            let (renew, retry) = (renew_deadline, retry_period);
            return Err(LeaseDurationsError::RetryPeriod { renew, retry });
        }
        Ok(Self {
            lease,
            renew_deadline,
            retry_period,
        })
    }

    /// Time without a renewal after which another replica takes the Lease.
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// Time after a renewal in which writes may begin. What is left of the Lease then is the time that they have to
    /// reach the API server.
    pub fn renew_deadline(&self) -> Duration {
        self.renew_deadline
    }

    /// Time between a standby's reads of the Lease, and from the start of a failed request to the next one.
    pub fn retry_period(&self) -> Duration {
        self.retry_period
    }

    /// Time between renewals: the second half of the deadline is for retries.
    pub fn renew_every(&self) -> Duration {
        self.renew_deadline / 2
    }

    /// Timeout of the requests of one renewal together, so that none uses up the time in which writes may begin; of each
    /// request of a standby.
    pub fn request_timeout(&self) -> Duration {
        self.renew_deadline * 2 / 5
    }

    /// Age of the last attempt at which the election counts as stuck. Attempts of a leader begin at most a little more than a
    /// renew deadline apart, those of a standby at most as long as its five requests.
    pub fn stuck_after(&self) -> Duration {
        self.lease * 2
    }
}

impl Default for LeaseDurations {
    /// Client-go's defaults.
    fn default() -> Self {
        Self {
            lease: LEASE_DURATION,
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(lease: u64, renew: u64, retry: u64) -> Result<LeaseDurations, String> {
        let [lease, renew, retry] = [lease, renew, retry].map(Duration::from_millis);
        LeaseDurations::new(lease, renew, retry).map_err(|error| error.to_string())
    }

    #[test]
    fn durations_are_checked_against_each_other_as_client_go_does() {
        assert_eq!(check(15_000, 10_000, 2_000), Ok(LeaseDurations::default()));
        assert!(check(137_000, 107_000, 26_000).is_ok());
        assert!(check(1_000, 600, 400).is_ok());
        for (lease, renew, retry, message) in [
            (
                0,
                10_000,
                2_000,
                "--lease-duration is 0ns; write whole seconds, from 1s to 300s",
            ),
            (1_500, 1_000, 200, "--lease-duration is 1.5s; write whole seconds"),
            (301_000, 10_000, 2_000, "--lease-duration is 301s"),
            (
                10_000,
                10_000,
                2_000,
                "--renew-deadline (10s) must be shorter than --lease-duration (10s)",
            ),
            (15_000, 10_000, 0, "--retry-period is 0ns; write more than 0s"),
            (15_000, 0, 1, "--retry-period is 1ms"),
            (
                15_000,
                6_000,
                5_000,
                "--retry-period is 5s; write more than 0s, and less than --renew-deadline (6s) / 1.2",
            ),
        ] {
            let error = check(lease, renew, retry).unwrap_err();
            assert!(error.starts_with(message), "{lease} {renew} {retry}: {error}");
        }
    }

    #[test]
    fn attempts_begin_before_the_election_counts_as_stuck() {
        for (lease, renew, retry) in [(15, 10, 2), (137, 107, 26), (3, 2, 1), (11, 10, 8)] {
            let [lease, renew, retry] = [lease, renew, retry].map(Duration::from_secs);
            let durations = LeaseDurations::new(lease, renew, retry).unwrap();
            let longest_pause = durations.renew_every().max(durations.retry_period());
            assert!(longest_pause + durations.request_timeout() < durations.stuck_after());
            // A get, a list, a write, another list, and perhaps a write that gives the Lease back.
            assert!(5 * durations.request_timeout() < durations.stuck_after());
            assert!(2 * durations.request_timeout() < durations.renew_deadline());
            assert!(durations.renew_every() + durations.request_timeout() < durations.renew_deadline());
        }
    }
}
