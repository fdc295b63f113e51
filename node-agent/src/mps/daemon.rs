//! Decides the next action on the MPS control daemon of one device. Pure: the probe and the time are arguments.

use std::time::{Duration, Instant};

/// First pause between two attempts.
const MIN_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause between two attempts.
const MAX_PAUSE: Duration = Duration::from_mins(1);
/// Time of answers after which a daemon counts as stable: when it dies, the pauses start over.
const STABLE: Duration = Duration::from_mins(1);
/// Time of silence after which a daemon is killed, unless it may have clients.
const HUNG: Duration = Duration::from_mins(1);
/// Pause between two requests to quit.
const QUIT_INTERVAL: Duration = Duration::from_secs(10);

/// Load of the driver: the inode of its kernel module; none without one.
pub type DriverLoad = Option<u64>;

/// Desired state of a device's daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DesiredDaemon {
    /// Runs.
    Run,
    /// Serves its present clients, while its answers are not published.
    Rest,
    /// Ends as soon as no container holds the device, and leaves no folders.
    Gone,
}

/// Observed state of a device's daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DaemonProbe {
    /// The daemon answers.
    Answers,
    /// The process exists, but did not answer or was not asked.
    Silent {
        /// True if it has answered since its start, so that it may have clients.
        answered: bool,
    },
    /// No process exists.
    Gone,
}

/// Observation of a device's daemon and of the driver.
#[derive(Clone, Copy, Debug)]
pub struct DaemonObservation {
    pub probe: DaemonProbe,
    pub load: DriverLoad,
    /// False while the driver's container is not ready.
    pub is_validated: bool,
}

/// Action on a daemon. Each can be repeated after a crash in the middle of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DaemonAction {
    /// Report that the driver's container is not ready: until then no session with the driver may begin.
    AwaitDriver,
    /// Create the folders; save the GPU's compute mode and set the one for MPS.
    Prepare,
    /// Start the daemon.
    Start,
    /// Tell it to quit if no container holds the device.
    QuitUnlessHeld,
    /// Kill it.
    Kill,
    /// Kill it if no container holds the device.
    KillUnlessHeld,
    /// Restore the compute mode and remove the folders if no container holds the device.
    CleanUnlessHeld,
}

/// State of the decisions between two probes.
#[derive(Clone, Debug)]
pub struct DaemonState {
    /// Load of the driver for which the device is prepared: a driver that is loaded again has forgotten the compute mode.
    prepared: Option<DriverLoad>,
    /// Last load of the driver.
    load: DriverLoad,
    pause: Duration,
    not_before: Option<Instant>,
    answering_since: Option<Instant>,
    silent_since: Option<Instant>,
    /// Time of the first request to quit.
    quit_since: Option<Instant>,
    next_quit: Option<Instant>,
}

impl Default for DaemonState {
    fn default() -> Self {
        Self {
            prepared: None,
            load: None,
            pause: MIN_PAUSE,
            not_before: None,
            answering_since: None,
            silent_since: None,
            quit_since: None,
            next_quit: None,
        }
    }
}

impl DaemonState {
    /// Returns the state to bring the daemon to. One with a request to quit accepts no new client: it ends first, and is not
    /// asked any more.
    pub fn target(&self, desired: DesiredDaemon) -> DesiredDaemon {
        match desired {
            DesiredDaemon::Run | DesiredDaemon::Rest if self.quit_since.is_some() => DesiredDaemon::Gone,
            desired => desired,
        }
    }

    /// Returns the next action; `None` if the daemon needs none now.
    pub fn next_action(
        &mut self,
        desired: DesiredDaemon,
        observation: DaemonObservation,
        now: Instant,
    ) -> Option<DaemonAction> {
        let DaemonObservation {
            probe,
            load,
            is_validated,
        } = observation;
        self.record(probe, now);
        if std::mem::replace(&mut self.load, load) != load {
            // What failed with another driver, or with none, may succeed now.
            (self.not_before, self.pause) = (None, MIN_PAUSE);
        }
        let prepared = self.prepared == Some(load);
        match (self.target(desired), probe) {
            (DesiredDaemon::Rest, _) => None,
            (DesiredDaemon::Run, DaemonProbe::Answers) if prepared => None,
            (DesiredDaemon::Run, DaemonProbe::Gone) if !is_validated => Some(DaemonAction::AwaitDriver),
            (DesiredDaemon::Run, DaemonProbe::Gone) if prepared => self.attempt(DaemonAction::Start, now),
            // A daemon that answers already comes from an earlier supervisor, or the driver was loaded again.
            (DesiredDaemon::Run, DaemonProbe::Gone | DaemonProbe::Answers) => self.attempt(DaemonAction::Prepare, now),
            (DesiredDaemon::Run, DaemonProbe::Silent { answered }) => {
                let hung = self.silent_since.is_some_and(|since| now.duration_since(since) >= HUNG);
                if hung && !answered {
                    self.attempt(DaemonAction::Kill, now)
                } else {
                    None
                }
            }
            (DesiredDaemon::Gone, DaemonProbe::Gone) => self
                .attempt(DaemonAction::CleanUnlessHeld, now)
                .inspect(|_| self.prepared = None),
            (DesiredDaemon::Gone, DaemonProbe::Answers | DaemonProbe::Silent { .. }) => self.quit(now),
        }
    }

    /// Notes the success of [`DaemonAction::Prepare`]: the next action needs no pause.
    pub fn prepared(&mut self, load: DriverLoad) {
        self.prepared = Some(load);
        self.not_before = None;
        self.pause = self.pause.div_f32(2.0).max(MIN_PAUSE);
    }

    /// Notes that [`DaemonAction::QuitUnlessHeld`] found no holder. Until then the daemon serves on.
    pub fn quit_requested(&mut self, now: Instant) {
        self.quit_since.get_or_insert(now);
    }

    fn record(&mut self, probe: DaemonProbe, now: Instant) {
        match probe {
            DaemonProbe::Answers => {
                self.silent_since = None;
                let since = *self.answering_since.get_or_insert(now);
                if now.duration_since(since) >= STABLE {
                    self.pause = MIN_PAUSE;
                }
            }
            DaemonProbe::Silent { .. } => {
                self.answering_since = None;
                self.silent_since.get_or_insert(now);
            }
            DaemonProbe::Gone => {
                // Whatever ended it, such as a reset of the GPU, may have changed the compute mode.
                if self.answering_since.is_some() || self.silent_since.is_some() {
                    self.prepared = None;
                }
                (self.answering_since, self.silent_since) = (None, None);
                (self.quit_since, self.next_quit) = (None, None);
            }
        }
    }

    fn attempt(&mut self, action: DaemonAction, now: Instant) -> Option<DaemonAction> {
        if self.not_before.is_some_and(|time| now < time) {
            return None;
        }
        self.not_before = Some(now + self.pause);
        self.pause = (self.pause * 2).min(MAX_PAUSE);
        Some(action)
    }

    fn quit(&mut self, now: Instant) -> Option<DaemonAction> {
        if self.next_quit.is_some_and(|time| now < time) {
            return None;
        }
        self.next_quit = Some(now + QUIT_INTERVAL);
        let hung = self.quit_since.is_some_and(|first| now.duration_since(first) >= HUNG);
        Some(if hung {
            DaemonAction::KillUnlessHeld
        } else {
            DaemonAction::QuitUnlessHeld
        })
    }
}

#[cfg(test)]
mod tests;
