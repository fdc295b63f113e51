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
pub enum Want {
    /// It runs.
    Run,
    /// It goes on serving the clients that it has, and nobody learns that it answers.
    Rest,
    /// It ends if nobody holds the device when it is told to, and nothing of it is left.
    GoneIfFree,
    /// It ends, and nothing of it is left.
    Gone,
}

/// What was seen of a device's daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
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
pub enum Step {
    /// Make the folders; keep the GPU's compute mode and set the one that MPS needs.
    Prepare,
    /// Start the daemon.
    Start,
    /// Tell it to quit.
    Quit,
    /// Tell it to quit if nobody holds the device.
    QuitUnlessHeld,
    /// Kill it.
    Kill,
    /// Kill it if nobody holds the device.
    KillUnlessHeld,
    /// Restore the compute mode and remove the folders.
    Clean,
}

/// What is remembered between two looks.
#[derive(Clone, Debug)]
pub struct Daemon {
    prepared: bool,
    pause: Duration,
    not_before: Option<Instant>,
    answering_since: Option<Instant>,
    silent_since: Option<Instant>,
    quit: Option<Quit>,
}

#[derive(Clone, Copy, Debug)]
struct Quit {
    first: Instant,
    last: Instant,
}

impl Default for Daemon {
    fn default() -> Self {
        Self {
            prepared: false,
            pause: MIN_PAUSE,
            not_before: None,
            answering_since: None,
            silent_since: None,
            quit: None,
        }
    }
}

impl Daemon {
    /// The next step; none when there is nothing to do now.
    pub fn next(&mut self, want: Want, seen: Seen, now: Instant) -> Option<Step> {
        self.remember(seen, now);
        // A daemon that was told to quit takes no new client: it ends first.
        let want = match want {
            Want::Run | Want::Rest if self.quit.is_some() => Want::Gone,
            want => want,
        };
        match (want, seen) {
            (Want::Rest, _) => None,
            (Want::Run, Seen::Answers) if self.prepared => None,
            (Want::Run, Seen::Gone) if self.prepared => self.attempt(Step::Start, now),
            // One that answers was started by an earlier supervisor.
            (Want::Run, Seen::Gone | Seen::Answers) => self.attempt(Step::Prepare, now),
            (Want::Run, Seen::Silent { answered }) => {
                let hung = self.silent_since.is_some_and(|since| now.duration_since(since) >= HUNG);
                (hung && !answered).then_some(Step::Kill)
            }
            (Want::Gone | Want::GoneIfFree, Seen::Gone) => {
                self.attempt(Step::Clean, now).inspect(|_| self.prepared = false)
            }
            (Want::Gone, Seen::Answers | Seen::Silent { .. }) => self.quit(Step::Quit, now),
            (Want::GoneIfFree, Seen::Answers | Seen::Silent { .. }) => self.quit(Step::QuitUnlessHeld, now),
        }
    }

    /// [`Step::Prepare`] has succeeded: what follows needs no pause.
    pub fn prepared(&mut self) {
        self.prepared = true;
        self.not_before = None;
        self.pause = self.pause.div_f32(2.0).max(MIN_PAUSE);
    }

    /// [`Step::QuitUnlessHeld`] was not done: the daemon goes on serving.
    pub fn not_told(&mut self) {
        self.quit = None;
    }

    fn remember(&mut self, seen: Seen, now: Instant) {
        match seen {
            Seen::Answers => {
                self.silent_since = None;
                let since = *self.answering_since.get_or_insert(now);
                if now.duration_since(since) >= STABLE {
                    self.pause = MIN_PAUSE;
                }
            }
            Seen::Silent { .. } => {
                self.answering_since = None;
                self.silent_since.get_or_insert(now);
            }
            Seen::Gone => (self.answering_since, self.silent_since, self.quit) = (None, None, None),
        }
    }

    fn attempt(&mut self, step: Step, now: Instant) -> Option<Step> {
        if self.not_before.is_some_and(|time| now < time) {
            return None;
        }
        self.not_before = Some(now + self.pause);
        self.pause = (self.pause * 2).min(MAX_PAUSE);
        Some(step)
    }

    fn quit(&mut self, step: Step, now: Instant) -> Option<Step> {
        let Some(quit) = &mut self.quit else {
            self.quit = Some(Quit { first: now, last: now });
            return Some(step);
        };
        if now.duration_since(quit.last) < ASK_AGAIN {
            return None;
        }
        quit.last = now;
        Some(if now.duration_since(quit.first) < HUNG { step } else { Step::KillUnlessHeld })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A daemon, and seconds since the beginning.
    struct World {
        daemon: Daemon,
        start: Instant,
    }

    const SILENT: Seen = Seen::Silent { answered: true };

    impl World {
        fn new() -> Self {
            Self { daemon: Daemon::default(), start: Instant::now() }
        }

        fn next(&mut self, seconds: u64, want: Want, seen: Seen) -> Option<Step> {
            self.daemon.next(want, seen, self.start + Duration::from_secs(seconds))
        }

        /// Times of the starts of a daemon that dies at once, until `end`.
        fn starts(&mut self, from: u64, end: u64) -> Vec<u64> {
            (from..end).filter(|second| self.next(*second, Want::Run, Seen::Gone) == Some(Step::Start)).collect()
        }
    }

    fn running() -> World {
        let mut world = World::new();
        assert_eq!(world.next(0, Want::Run, Seen::Gone), Some(Step::Prepare));
        world.daemon.prepared();
        assert_eq!(world.next(0, Want::Run, Seen::Gone), Some(Step::Start));
        assert_eq!(world.next(1, Want::Run, Seen::Answers), None);
        world
    }

    #[test]
    fn a_daemon_is_started_only_with_the_compute_mode_set() {
        let mut world = World::new();
        let attempts: Vec<u64> =
            (0..200).filter(|second| world.next(*second, Want::Run, Seen::Gone) == Some(Step::Prepare)).collect();
        assert_eq!(attempts, [0, 1, 3, 7, 15, 31, 63, 123, 183]);
        world.daemon.prepared();
        assert_eq!(world.next(200, Want::Run, Seen::Gone), Some(Step::Start));
    }

    #[test]
    fn a_daemon_that_keeps_dying_is_started_ever_more_rarely() {
        let mut world = running();
        assert_eq!(world.starts(2, 200), [2, 4, 8, 16, 32, 64, 124, 184]);
    }

    #[test]
    fn a_daemon_that_dies_after_a_long_time_is_started_at_once() {
        let mut world = running();
        world.starts(2, 70);
        for second in 70..=130 {
            assert_eq!(world.next(second, Want::Run, Seen::Answers), None);
        }
        assert_eq!(world.starts(131, 136), [131, 132, 134]);
    }

    #[test]
    fn a_daemon_of_an_earlier_supervisor_is_taken_over_as_it_is() {
        let mut world = World::new();
        assert_eq!(world.next(0, Want::Run, Seen::Answers), Some(Step::Prepare));
        world.daemon.prepared();
        assert!((0..100).all(|second| world.next(second, Want::Run, Seen::Answers).is_none()));
    }

    #[test]
    fn a_daemon_that_may_have_clients_is_not_killed_for_its_silence() {
        let mut world = running();
        assert!((2..1000).all(|second| world.next(second, Want::Run, SILENT).is_none()));
    }

    #[test]
    fn a_daemon_that_never_answered_is_killed_after_a_minute() {
        let mut world = running();
        let steps: Vec<_> = (2..70)
            .filter_map(|second| Some((second, world.next(second, Want::Run, Seen::Silent { answered: false })?)))
            .collect();
        assert_eq!(steps.first(), Some(&(62, Step::Kill)));
    }

    #[test]
    fn a_daemon_that_is_not_wanted_quits_and_leaves_nothing() {
        let mut world = running();
        assert_eq!(world.next(10, Want::Gone, SILENT), Some(Step::Quit));
        assert_eq!(world.next(11, Want::Gone, SILENT), None);
        assert_eq!(world.next(12, Want::Gone, Seen::Gone), Some(Step::Clean));
    }

    #[test]
    fn a_daemon_that_does_not_quit_is_asked_again_and_killed_only_if_nobody_holds_the_device() {
        let mut world = running();
        let steps: Vec<_> =
            (10..81).filter_map(|second| Some((second, world.next(second, Want::Gone, SILENT)?))).collect();
        let quits = [10, 20, 30, 40, 50, 60].map(|second| (second, Step::Quit));
        assert_eq!(steps[..6], quits);
        assert_eq!(steps[6..], [(70, Step::KillUnlessHeld), (80, Step::KillUnlessHeld)]);
    }

    #[test]
    fn a_daemon_whose_device_is_held_again_was_never_told_to_quit() {
        let mut world = running();
        assert_eq!(world.next(10, Want::GoneIfFree, SILENT), Some(Step::QuitUnlessHeld));
        world.daemon.not_told();
        assert_eq!(world.next(11, Want::Rest, SILENT), None);
        assert_eq!(world.next(12, Want::GoneIfFree, SILENT), Some(Step::QuitUnlessHeld));
        let steps: Vec<_> =
            (13..33).filter_map(|second| Some((second, world.next(second, Want::GoneIfFree, SILENT)?))).collect();
        assert_eq!(steps, [(22, Step::QuitUnlessHeld), (32, Step::QuitUnlessHeld)]);
        assert_eq!(world.next(33, Want::GoneIfFree, Seen::Gone), Some(Step::Clean));
    }

    #[test]
    fn a_daemon_that_is_wanted_again_while_it_quits_ends_first() {
        let mut world = running();
        assert_eq!(world.next(10, Want::Gone, SILENT), Some(Step::Quit));
        assert_eq!(world.next(11, Want::Run, Seen::Answers), None);
        assert_eq!(world.next(12, Want::Run, Seen::Gone), Some(Step::Start));
    }

    #[test]
    fn after_a_clean_up_everything_is_prepared_again() {
        let mut world = running();
        assert_eq!(world.next(10, Want::Gone, Seen::Gone), Some(Step::Clean));
        assert_eq!(world.next(20, Want::Run, Seen::Gone), Some(Step::Prepare));
    }

    #[test]
    fn a_daemon_that_rests_is_left_alone() {
        let mut world = running();
        for seen in [Seen::Gone, SILENT, Seen::Answers] {
            assert_eq!(world.next(100, Want::Rest, seen), None);
        }
    }
}
