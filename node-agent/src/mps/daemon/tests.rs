use super::*;

/// A daemon, and seconds since the beginning.
struct World {
    daemon: DaemonState,
    start: Instant,
}

const SILENT: DaemonProbe = DaemonProbe::Silent { answered: true };

impl World {
    fn new() -> Self {
        Self {
            daemon: DaemonState::default(),
            start: Instant::now(),
        }
    }

    fn next(&mut self, seconds: u64, want: DesiredDaemon, seen: DaemonProbe) -> Option<DaemonAction> {
        self.daemon.next(want, seen, self.start + Duration::from_secs(seconds))
    }

    /// Like [`Self::next`], on a device without holders.
    fn next_if_free(&mut self, seconds: u64, want: DesiredDaemon, seen: DaemonProbe) -> Option<DaemonAction> {
        let step = self.next(seconds, want, seen);
        if step == Some(DaemonAction::QuitUnlessHeld) {
            self.daemon.told(self.start + Duration::from_secs(seconds));
        }
        step
    }

    /// Times of the starts of a daemon that dies at once, until `end`.
    fn starts(&mut self, from: u64, end: u64) -> Vec<u64> {
        (from..end)
            .filter(|second| self.next(*second, DesiredDaemon::Run, DaemonProbe::Gone) == Some(DaemonAction::Start))
            .collect()
    }
}

fn running() -> World {
    let mut world = World::new();
    assert_eq!(
        world.next(0, DesiredDaemon::Run, DaemonProbe::Gone),
        Some(DaemonAction::Prepare)
    );
    world.daemon.prepared();
    assert_eq!(
        world.next(0, DesiredDaemon::Run, DaemonProbe::Gone),
        Some(DaemonAction::Start)
    );
    assert_eq!(world.next(1, DesiredDaemon::Run, DaemonProbe::Answers), None);
    world
}

#[test]
fn a_daemon_is_started_only_with_the_compute_mode_set() {
    let mut world = World::new();
    let attempts: Vec<u64> = (0..200)
        .filter(|second| world.next(*second, DesiredDaemon::Run, DaemonProbe::Gone) == Some(DaemonAction::Prepare))
        .collect();
    assert_eq!(attempts, [0, 1, 3, 7, 15, 31, 63, 123, 183]);
    world.daemon.prepared();
    assert_eq!(
        world.next(200, DesiredDaemon::Run, DaemonProbe::Gone),
        Some(DaemonAction::Start)
    );
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
        assert_eq!(world.next(second, DesiredDaemon::Run, DaemonProbe::Answers), None);
    }
    assert_eq!(world.starts(131, 136), [131, 132, 134]);
}

#[test]
fn a_daemon_of_an_earlier_supervisor_is_taken_over_as_it_is() {
    let mut world = World::new();
    assert_eq!(
        world.next(0, DesiredDaemon::Run, DaemonProbe::Answers),
        Some(DaemonAction::Prepare)
    );
    world.daemon.prepared();
    assert!((0..100).all(|second| world.next(second, DesiredDaemon::Run, DaemonProbe::Answers).is_none()));
}

#[test]
fn a_daemon_that_may_have_clients_is_not_killed_for_its_silence() {
    let mut world = running();
    assert!((2..1000).all(|second| world.next(second, DesiredDaemon::Run, SILENT).is_none()));
}

#[test]
fn a_daemon_that_never_answered_is_killed_after_a_minute() {
    let mut world = running();
    let steps: Vec<_> = (2..70)
        .filter_map(|second| {
            Some((
                second,
                world.next(second, DesiredDaemon::Run, DaemonProbe::Silent { answered: false })?,
            ))
        })
        .collect();
    assert_eq!(steps.first(), Some(&(62, DaemonAction::Kill)));
}

#[test]
fn a_daemon_that_cannot_be_killed_is_killed_ever_more_rarely() {
    let mut world = running();
    let silent = DaemonProbe::Silent { answered: false };
    // Ten probes per second.
    let kills = (20..2000).filter(|tenth| {
        let now = world.start + Duration::from_millis(tenth * 100);
        world.daemon.next(DesiredDaemon::Run, silent, now) == Some(DaemonAction::Kill)
    });
    assert_eq!(
        kills.map(|tenth| tenth / 10).collect::<Vec<_>>(),
        [62, 64, 68, 76, 92, 124, 184]
    );
}

#[test]
fn a_daemon_that_is_not_wanted_quits_and_leaves_nothing() {
    let mut world = running();
    assert_eq!(
        world.next_if_free(10, DesiredDaemon::Gone, SILENT),
        Some(DaemonAction::QuitUnlessHeld)
    );
    assert_eq!(world.next(11, DesiredDaemon::Gone, SILENT), None);
    assert_eq!(
        world.next(12, DesiredDaemon::Gone, DaemonProbe::Gone),
        Some(DaemonAction::CleanUnlessHeld)
    );
}

#[test]
fn a_daemon_that_does_not_quit_is_asked_again_and_killed_only_if_nobody_holds_the_device() {
    let mut world = running();
    let steps: Vec<_> = (10..81)
        .filter_map(|second| Some((second, world.next_if_free(second, DesiredDaemon::Gone, SILENT)?)))
        .collect();
    let quits = [10, 20, 30, 40, 50, 60].map(|second| (second, DaemonAction::QuitUnlessHeld));
    assert_eq!(steps[..6], quits);
    assert_eq!(
        steps[6..],
        [(70, DaemonAction::KillUnlessHeld), (80, DaemonAction::KillUnlessHeld)]
    );
}

#[test]
fn a_daemon_whose_device_is_held_goes_on_and_the_kubelet_is_not_asked_all_the_time() {
    let mut world = running();
    let steps: Vec<_> = (10..200)
        .filter_map(|second| Some((second, world.next(second, DesiredDaemon::Gone, SILENT)?)))
        .collect();
    assert_eq!(steps.len(), 19);
    assert!(
        steps.iter().all(|(_, step)| *step == DaemonAction::QuitUnlessHeld),
        "{steps:?}"
    );
    assert_eq!(world.next(200, DesiredDaemon::Rest, SILENT), None);
    assert_eq!(world.next(201, DesiredDaemon::Run, DaemonProbe::Answers), None);
    assert_eq!(
        world.next_if_free(202, DesiredDaemon::Gone, SILENT),
        Some(DaemonAction::QuitUnlessHeld)
    );
    assert_eq!(
        world.next(203, DesiredDaemon::Gone, DaemonProbe::Gone),
        Some(DaemonAction::CleanUnlessHeld)
    );
}

#[test]
fn a_daemon_that_is_wanted_again_while_it_quits_ends_first() {
    let mut world = running();
    assert_eq!(
        world.next_if_free(10, DesiredDaemon::Gone, SILENT),
        Some(DaemonAction::QuitUnlessHeld)
    );
    assert_eq!(world.next(11, DesiredDaemon::Run, DaemonProbe::Answers), None);
    assert_eq!(
        world.next(12, DesiredDaemon::Run, DaemonProbe::Gone),
        Some(DaemonAction::Start)
    );
}

#[test]
fn after_a_clean_up_everything_is_prepared_again() {
    let mut world = running();
    assert_eq!(
        world.next(10, DesiredDaemon::Gone, DaemonProbe::Gone),
        Some(DaemonAction::CleanUnlessHeld)
    );
    assert_eq!(
        world.next(20, DesiredDaemon::Run, DaemonProbe::Gone),
        Some(DaemonAction::Prepare)
    );
}

#[test]
fn a_daemon_that_rests_is_left_alone() {
    let mut world = running();
    for seen in [DaemonProbe::Gone, SILENT, DaemonProbe::Answers] {
        assert_eq!(world.next(100, DesiredDaemon::Rest, seen), None);
    }
}
