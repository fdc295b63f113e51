//! What to do next about the MPS control daemon of one device. Pure: what was seen and the time come in.

use std::time::{Duration, Instant};

/// First pause between two attempts.
const MIN_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause between two attempts.
const MAX_PAUSE: Duration = Duration::from_mins(1);
/// A daemon that has answered for so long starts with the first pause again when it dies.
const STABLE: Duration = Duration::from_mins(1);
/// A daemon that has not said a word for so long is killed, unless somebody may be its client.
const HUNG: Duration = Duration::from_mins(1);
/// Pause between two requests to quit.
const ASK_AGAIN: Duration = Duration::from_secs(10);

/// What is wanted of a device's daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DesiredDaemon {
    /// It runs.
    Run,
    /// It goes on serving the clients that it has, and nobody learns that it answers.
    Rest,
    /// It ends as soon as nobody holds the device, and nothing of it is left.
    Gone,
}

/// What was seen of a device's daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DaemonProbe {
    /// It answers.
    Answers,
    /// There is a process, which does not answer or was not asked.
    Silent {
        /// Whether it has answered since it started, so that it may have clients.
        answered: bool,
    },
    /// There is no process.
    Gone,
}

/// What to do. Each may be done again after a crash in the middle of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DaemonAction {
    /// Make the folders; keep the GPU's compute mode and set the one that MPS needs.
    Prepare,
    /// Start the daemon.
    Start,
    /// Tell it to quit if nobody holds the device.
    QuitUnlessHeld,
    /// Kill it.
    Kill,
    /// Kill it if nobody holds the device.
    KillUnlessHeld,
    /// Restore the compute mode and remove the folders if nobody holds the device.
    CleanUnlessHeld,
}

/// What is remembered between two looks.
#[derive(Clone, Debug)]
pub struct DaemonState {
    prepared: bool,
    pause: Duration,
    not_before: Option<Instant>,
    answering_since: Option<Instant>,
    silent_since: Option<Instant>,
    /// When it was told to quit first.
    told: Option<Instant>,
    ask_again: Option<Instant>,
}

impl Default for DaemonState {
    fn default() -> Self {
        Self {
            prepared: false,
            pause: MIN_PAUSE,
            not_before: None,
            answering_since: None,
            silent_since: None,
            told: None,
            ask_again: None,
        }
    }
}

impl DaemonState {
    /// The next step; none when there is nothing to do now.
    pub fn next(&mut self, want: DesiredDaemon, seen: DaemonProbe, now: Instant) -> Option<DaemonAction> {
        self.remember(seen, now);
        // A daemon that was told to quit takes no new client: it ends first.
        let want = match want {
            DesiredDaemon::Run | DesiredDaemon::Rest if self.told.is_some() => DesiredDaemon::Gone,
            want => want,
        };
        match (want, seen) {
            (DesiredDaemon::Rest, _) => None,
            (DesiredDaemon::Run, DaemonProbe::Answers) if self.prepared => None,
            (DesiredDaemon::Run, DaemonProbe::Gone) if self.prepared => self.attempt(DaemonAction::Start, now),
            // One that answers was started by an earlier supervisor.
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
                .inspect(|_| self.prepared = false),
            (DesiredDaemon::Gone, DaemonProbe::Answers | DaemonProbe::Silent { .. }) => self.quit(now),
        }
    }

    /// [`DaemonAction::Prepare`] has succeeded: what follows needs no pause.
    pub fn prepared(&mut self) {
        self.prepared = true;
        self.not_before = None;
        self.pause = self.pause.div_f32(2.0).max(MIN_PAUSE);
    }

    /// [`DaemonAction::QuitUnlessHeld`] has found nobody. Until then the daemon goes on serving.
    pub fn told(&mut self, now: Instant) {
        self.told.get_or_insert(now);
    }

    fn remember(&mut self, seen: DaemonProbe, now: Instant) {
        match seen {
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
                (self.answering_since, self.silent_since) = (None, None);
                (self.told, self.ask_again) = (None, None);
            }
        }
    }

    fn attempt(&mut self, step: DaemonAction, now: Instant) -> Option<DaemonAction> {
        if self.not_before.is_some_and(|time| now < time) {
            return None;
        }
        self.not_before = Some(now + self.pause);
        self.pause = (self.pause * 2).min(MAX_PAUSE);
        Some(step)
    }

    fn quit(&mut self, now: Instant) -> Option<DaemonAction> {
        if self.ask_again.is_some_and(|time| now < time) {
            return None;
        }
        self.ask_again = Some(now + ASK_AGAIN);
        let hung = self.told.is_some_and(|first| now.duration_since(first) >= HUNG);
        Some(if hung {
            DaemonAction::KillUnlessHeld
        } else {
            DaemonAction::QuitUnlessHeld
        })
    }
}

#[cfg(test)]
mod tests;
