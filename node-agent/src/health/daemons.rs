//! Finds MPS control daemons that died: they answered before and do not any more. Pure.

use gpunode_crds::{MpsDaemon, MpsDaemonState};
use gpunode_gpu::{DeviceFaults, FaultReason, HealthObservation};
use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

/// Time after a release in which the end of a daemon is no death: the supervisor reads a request every 2 s, with a timeout, and
/// may end daemons for one that is over by then.
const AFTER_RELEASE: Duration = Duration::from_secs(10);

/// The daemons that answered the last probe, by the UUIDs of their devices.
#[derive(Debug, Default)]
pub struct AnsweringDaemons {
    answering: BTreeSet<String>,
    /// Last time at which the GPUs were released.
    released: Option<Instant>,
}

impl AnsweringDaemons {
    /// Compares the daemons with the last probe and returns what follows. A daemon that ends because the GPUs are released has
    /// not died.
    pub fn compare(
        &mut self,
        daemons: &[MpsDaemon],
        released: bool,
        health: &DeviceFaults,
        now: Instant,
    ) -> Vec<HealthObservation> {
        if released {
            self.released = Some(now);
        }
        let is_ended = self
            .released
            .is_some_and(|last| now.duration_since(last) < AFTER_RELEASE);
        let in_state = |state| {
            let daemons = daemons.iter().filter(move |daemon| daemon.state == state);
            daemons.map(|daemon| daemon.device.clone()).collect::<BTreeSet<_>>()
        };
        let silent = in_state(MpsDaemonState::NotAnswering);
        let before = std::mem::replace(&mut self.answering, in_state(MpsDaemonState::Answering));
        let died = before.into_iter().filter(|device| silent.contains(device) && !is_ended);
        // A daemon that is no longer desired clears its fault, too.
        let known = health.devices().map(|(device, _)| device);
        let over =
            known.filter(|device| !silent.contains(*device) && health.has_fault(device, FaultReason::MpsDaemonDied));
        let over = over.map(|device| HealthObservation::MpsDaemon(device.to_owned(), true));
        died.map(|device| HealthObservation::MpsDaemon(device, false))
            .chain(over)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpunode_config::HealthRules as Rules;
    use jiff::Timestamp;

    #[test]
    fn a_daemon_has_died_that_answered_and_ceases_to_until_it_answers_or_is_not_wanted() {
        use MpsDaemonState::{Answering, NotAnswering, Stopping};
        let (mut daemons, mut health) = (AnsweringDaemons::default(), DeviceFaults::default());
        let start = Instant::now();
        let mut is_dead = |state: Option<MpsDaemonState>, released, after: u64| {
            let daemon = state.map(|state| MpsDaemon {
                device: "GPU-1".to_owned(),
                state,
            });
            for observation in daemons.compare(daemon.as_slice(), released, &health, start + Duration::from_secs(after))
            {
                health.observe(observation, &Rules::default(), Timestamp::UNIX_EPOCH);
            }
            health.has_fault("GPU-1", FaultReason::MpsDaemonDied)
        };
        for over in [Some(Stopping), None, Some(Answering)] {
            assert!(!is_dead(Some(NotAnswering), false, 0), "it is starting");
            assert!(!is_dead(Some(Answering), false, 0));
            assert!(is_dead(Some(NotAnswering), false, 0) && is_dead(Some(NotAnswering), false, 0));
            assert!(!is_dead(over, false, 0), "{over:?}");
        }
        assert!(!is_dead(Some(NotAnswering), true, 0), "it was ended");
        assert!(!is_dead(Some(Answering), true, 10));
        // The release was over before this was seen.
        assert!(!is_dead(Some(NotAnswering), false, 12), "it was ended");
        assert!(!is_dead(Some(Answering), false, 14));
        assert!(is_dead(Some(NotAnswering), false, 20), "it died after the release");
    }
}
