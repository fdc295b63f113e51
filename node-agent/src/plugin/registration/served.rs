//! Checks against the kubelet's own list of devices: another plugin may serve a resource, the kubelet may have forgotten
//! this agent's, or it may have kept the devices of a plugin that is gone.

use crate::{
    kubelet::podresources::{PodResources, PodResourcesError},
    plugin::socket::other_sockets,
};
use gpunode_gpu::AdvertisedResource;
use std::{
    collections::BTreeSet,
    path::Path,
    time::{Duration, Instant},
};
use tokio::time::sleep;

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
/// Time after which devices that nobody seems to serve are registered. A kubelet calls back a plugin that registers for up to
/// 10 s.
const ABANDONED_AFTER: Duration = Duration::from_secs(30);

/// Returns the ids of the kubelet's healthy devices of a resource; none if it refuses to answer, as with its rate limit.
pub async fn listed_ids(kubelet: &PodResources, resource: &str) -> Option<BTreeSet<String>> {
    match kubelet.allocatable().await {
        Ok(allocatable) => {
            let devices = allocatable.devices.into_iter();
            Some(devices.filter(|(name, _)| name == resource).map(|(_, id)| id).collect())
        }
        Err(PodResourcesError::Refused { .. }) => None,
        Err(_) => Some(BTreeSet::new()),
    }
}

/// Returns true if the kubelet has healthy devices of a resource that this agent has not registered. A kubelet that
/// does not answer counts as having none: it accepts any registration.
///
/// The kubelet's time to notice the end of a plugin counts from its first answer: one that answers late is as late to notice.
pub async fn is_served_by_another(kubelet: &PodResources, resource: &str) -> bool {
    let (mut is_served, mut pause, mut noticed_by) = (false, FIRST_PAUSE, None);
    loop {
        let asked = Instant::now();
        match listed_ids(kubelet, resource).await {
            Some(ids) if ids.is_empty() => return false,
            Some(_) => is_served = true,
            None => {}
        }
        let noticed_by = *noticed_by.get_or_insert_with(|| Instant::now() + NOTICE_TIMEOUT);
        // Devices that are still healthy then belong to another plugin.
        if asked >= noticed_by {
            return is_served;
        }
        sleep(pause.min(noticed_by.saturating_duration_since(Instant::now()))).await;
        pause = pause * 3 / 2;
    }
}

/// Returns true if the plugin of these devices in the kubelet may be gone: all of them are in the list `own`, which an agent before
/// this one may have sent, and no other plugin has a socket in `directory`.
pub fn may_be_abandoned(listed: &BTreeSet<String>, own: &AdvertisedResource, directory: &Path) -> bool {
    let own: BTreeSet<&str> = own.shares.iter().map(|share| share.id.as_str()).collect();
    listed.iter().all(|id| own.contains(id.as_str())) && other_sockets(directory).is_empty()
}

/// Detects that the kubelet has kept the devices of a plugin that is gone.
#[derive(Debug, Default)]
pub struct AbandonedDevices {
    since: Option<Instant>,
}

impl AbandonedDevices {
    /// Takes in one check at `at`, by [`may_be_abandoned`]. Returns true if it is time to register the resource.
    pub fn check(&mut self, at: Instant, may_be: bool) -> bool {
        let since = self.since.filter(|_| may_be).unwrap_or(at);
        self.since = may_be.then_some(since);
        at.saturating_duration_since(since) >= ABANDONED_AFTER
    }
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
    use crate::kubelet::podresources::tests::{Kubelet, LATE, serve};
    use gpunode_gpu::AdvertisedShare;
    use std::os::unix::net::UnixListener;

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
    async fn a_kubelet_that_answers_late_is_asked_until_it_can_have_noticed_the_end_of_a_plugin() {
        let folder = tempfile::tempdir().unwrap();
        let (kubelet, start) = (serve(folder.path(), Kubelet::Late), Instant::now());
        assert!(is_served_by_another(&kubelet, "a.b/c").await);
        assert!(start.elapsed() >= LATE + NOTICE_TIMEOUT, "{:?}", start.elapsed());
    }

    #[tokio::test]
    async fn a_kubelet_that_refuses_to_answer_is_asked_again_for_a_second() {
        let folder = tempfile::tempdir().unwrap();
        let (kubelet, start) = (serve(folder.path(), Kubelet::RefusesAll), Instant::now());
        assert!(!is_served_by_another(&kubelet, "a.b/c").await);
        assert!(start.elapsed() >= NOTICE_TIMEOUT, "{:?}", start.elapsed());
    }

    #[tokio::test]
    async fn a_kubelet_that_does_not_say_is_asked_no_longer_than_a_second() {
        let folder = tempfile::tempdir().unwrap();
        let mut kubelet = serve(folder.path(), Kubelet::Held);
        kubelet.socket = folder.path().join("nowhere.sock");
        assert!(!is_served_by_another(&kubelet, "a.b/c").await);
    }

    #[test]
    fn own_devices_may_be_abandoned_where_no_other_plugin_has_a_socket() {
        let folder = tempfile::tempdir().unwrap();
        let share = |id: &str| AdvertisedShare {
            id: id.to_owned(),
            healthy: false,
            numa_node: None,
            surplus: false,
        };
        let own = AdvertisedResource {
            name: "a.b/c".to_owned(),
            is_companion: false,
            shares: ["GPU-1", "GPU-2"].map(share).into(),
        };
        let may_be = |ids: &[&str]| {
            let listed = ids.iter().map(|id| (*id).to_owned()).collect();
            may_be_abandoned(&listed, &own, folder.path())
        };
        for socket in ["kubelet.sock", "gpunode-a-1.sock"] {
            drop(UnixListener::bind(folder.path().join(socket)).unwrap());
        }
        assert!(may_be(&["GPU-1"]) && may_be(&["GPU-1", "GPU-2"]));
        assert!(!may_be(&["GPU-1", "GPU-3"]), "another plugin's");
        drop(UnixListener::bind(folder.path().join("another.sock")).unwrap());
        assert!(!may_be(&["GPU-1"]));
    }

    #[test]
    fn devices_are_abandoned_after_half_a_minute_of_checks_in_a_row() {
        let (start, mut abandoned) = (Instant::now(), AbandonedDevices::default());
        let mut check = |second, may_be| abandoned.check(start + Duration::from_secs(second), may_be);
        assert!(!check(0, true) && !check(29, true) && !check(30, false));
        assert!(!check(31, true) && !check(60, true) && check(61, true));
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
