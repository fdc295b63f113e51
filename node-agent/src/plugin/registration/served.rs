//! Checks against the kubelet's own list of devices: another plugin may serve a resource, or the kubelet may have
//! forgotten this agent's.

use crate::kubelet::podresources::{PodResources, PodResourcesError};
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout};

/// Time in which the kubelet notices the end of a plugin. Until then the old devices count as healthy, and kubelets up
/// to 1.36 would take the end of the old stream for that of the new one.
const NOTICE_TIMEOUT: Duration = Duration::from_secs(1);
/// First pause between two checks. Each further pause is half as long again: a dozen checks in a second.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
/// Time from the first check that misses a resource in the kubelet to its new registration.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(1);
/// Shortest such time for a kubelet that still does not list the resource after a new registration. It doubles each time.
const STILL_FORGOTTEN_AFTER: Duration = Duration::from_secs(10);
/// Longest such time.
const MAX_FORGOTTEN_AFTER: Duration = Duration::from_mins(10);

/// Returns true if the kubelet has healthy devices of a resource; none if it refuses to answer, as with its rate limit.
pub async fn is_listed(kubelet: &PodResources, resource: &str) -> Option<bool> {
    match kubelet.allocatable().await {
        Ok(allocatable) => Some(allocatable.iter().any(|(name, _)| name == resource)),
        Err(PodResourcesError::Refused { .. }) => None,
        Err(_) => Some(false),
    }
}

/// Returns true if the kubelet has healthy devices of a resource that this agent has not registered. A kubelet that
/// does not answer counts as having none: it accepts any registration.
pub async fn is_served_by_another(kubelet: &PodResources, resource: &str) -> bool {
    let (mut is_served, mut pause) = (false, FIRST_PAUSE);
    let checks = async {
        loop {
            is_served = is_listed(kubelet, resource).await.unwrap_or(is_served);
            if !is_served {
                return;
            }
            sleep(pause).await;
            pause = pause * 3 / 2;
        }
    };
    // Devices that are still healthy after that belong to another plugin.
    _ = timeout(NOTICE_TIMEOUT, checks).await;
    is_served
}

/// Detects that the kubelet has forgotten a registered resource.
#[derive(Debug)]
pub struct ForgottenResource {
    missing_since: Option<Instant>,
    after: Duration,
}

impl Default for ForgottenResource {
    fn default() -> Self {
        Self {
            missing_since: None,
            after: FORGOTTEN_AFTER,
        }
    }
}

impl ForgottenResource {
    /// Takes in one check at `at`: `listed` if the kubelet has a healthy device, `missing` if it has none though it should.
    /// Returns true if it is time to register again, after at least two checks in a row that miss the resource.
    pub fn check(&mut self, at: Instant, missing: bool, listed: bool) -> bool {
        if listed {
            *self = Self::default();
        }
        if !missing {
            self.missing_since = None;
            return false;
        }
        let Some(since) = self.missing_since else {
            self.missing_since = Some(at);
            return false;
        };
        let is_due = at.saturating_duration_since(since) >= self.after;
        if is_due {
            self.missing_since = None;
            self.after = (self.after * 2).clamp(STILL_FORGOTTEN_AFTER, MAX_FORGOTTEN_AFTER);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubelet::podresources::tests::{Kubelet, serve};

    #[tokio::test]
    async fn a_resource_is_anothers_while_the_kubelet_has_healthy_devices_of_it() {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let [held, idle] = [Kubelet::Held, Kubelet::Idle];
        let kubelet = serve(folders[0].path(), held);
        assert!(is_served_by_another(&kubelet, "a.b/c").await);
        assert!(!is_served_by_another(&kubelet, "x.y/z").await);
        assert!(!is_served_by_another(&serve(folders[1].path(), idle), "a.b/c").await);
    }

    #[tokio::test]
    async fn a_kubelet_that_does_not_say_is_asked_no_longer_than_a_second() {
        let folder = tempfile::tempdir().unwrap();
        let mut kubelet = serve(folder.path(), Kubelet::Held);
        kubelet.socket = folder.path().join("nowhere.sock");
        assert!(!is_served_by_another(&kubelet, "a.b/c").await);
    }

    /// Returns the seconds at which it is time to register again, with a check every 10 s.
    fn due(checks: u64, missing: impl Fn(u64) -> bool, listed: impl Fn(u64) -> bool) -> Vec<u64> {
        let (start, mut forgotten) = (Instant::now(), ForgottenResource::default());
        let checks = (0..checks).map(|check| check * 10);
        checks
            .filter(|at| forgotten.check(start + Duration::from_secs(*at), missing(*at), listed(*at)))
            .collect()
    }

    #[test]
    fn what_is_missing_in_two_looks_is_registered_again() {
        assert_eq!(due(2, |_| true, |_| false), [10]);
        let every_other = |at: u64| at.is_multiple_of(20);
        assert!(
            due(10, |at| !every_other(at), every_other).is_empty(),
            "never twice in a row"
        );
        assert!(due(10, |_| false, |_| false).is_empty(), "nothing is missing");
        assert!(due(10, |_| false, |_| true).is_empty());
    }

    #[test]
    fn looks_that_come_close_together_are_not_two() {
        let (start, mut forgotten) = (Instant::now(), ForgottenResource::default());
        let mut check = |millis| forgotten.check(start + Duration::from_millis(millis), true, false);
        assert!(!check(0) && !check(500) && !check(999));
        assert!(check(1000));
    }

    #[test]
    fn a_kubelet_that_never_lists_it_is_not_asked_in_a_loop() {
        assert_eq!(due(20, |_| true, |_| false), [10, 30, 60, 110]);
        assert_eq!(
            due(10, |at| at != 50, |at| at == 50),
            [10, 30, 70, 90],
            "one that listed it starts anew"
        );
    }
}
