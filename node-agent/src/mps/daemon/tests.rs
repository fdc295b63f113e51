use super::*;

/// A daemon, and the start of the test.
struct DaemonTest {
    daemon: DaemonState,
    load: DriverLoad,
    is_validated: bool,
    start: Instant,
}

const SILENT: DaemonProbe = DaemonProbe::Silent { answered: true };

impl DaemonTest {
    fn new() -> Self {
        Self {
            daemon: DaemonState::default(),
            load: Some(1),
            is_validated: true,
            start: Instant::now(),
        }
    }

    fn next(&mut self, seconds: u64, desired: DesiredDaemon, probe: DaemonProbe) -> Option<DaemonAction> {
        self.next_at(self.start + Duration::from_secs(seconds), desired, probe)
    }

    fn next_at(&mut self, now: Instant, desired: DesiredDaemon, probe: DaemonProbe) -> Option<DaemonAction> {
        let observation = DaemonObservation {
            probe,
            load: self.load,
            is_validated: self.is_validated,
        };
        self.daemon.next_action(desired, observation, now)
    }

    /// Like [`Self::next`], with a preparation that succeeds at once.
    fn next_prepared(&mut self, seconds: u64, desired: DesiredDaemon, probe: DaemonProbe) -> Option<DaemonAction> {
        match self.next(seconds, desired, probe) {
            Some(DaemonAction::Prepare) => {
                self.daemon.prepared(self.load);
                self.next(seconds, desired, probe)
            }
            action => action,
        }
    }

    /// Like [`Self::next`], on a device without holders.
    fn next_if_free(&mut self, seconds: u64, desired: DesiredDaemon, probe: DaemonProbe) -> Option<DaemonAction> {
        let action = self.next(seconds, desired, probe);
        if action == Some(DaemonAction::QuitUnlessHeld) {
            self.daemon.quit_requested(self.start + Duration::from_secs(seconds));
        }
        action
    }

    /// Times of the starts of a daemon that dies at once, until `end`.
    fn starts(&mut self, from: u64, end: u64) -> Vec<u64> {
        (from..end)
            .filter(|second| {
                self.next_prepared(*second, DesiredDaemon::Run, DaemonProbe::Gone) == Some(DaemonAction::Start)
            })
            .collect()
    }
}

fn running() -> DaemonTest {
    let mut test = DaemonTest::new();
    assert_eq!(
        test.next(0, DesiredDaemon::Run, DaemonProbe::Gone),
        Some(DaemonAction::Prepare)
    );
    test.daemon.prepared(test.load);
    assert_eq!(
        test.next(0, DesiredDaemon::Run, DaemonProbe::Gone),
        Some(DaemonAction::Start)
    );
    assert_eq!(test.next(1, DesiredDaemon::Run, DaemonProbe::Answers), None);
    test
}

#[test]
fn a_daemon_is_started_only_with_the_compute_mode_set() {
    let mut test = DaemonTest::new();
    let attempts: Vec<u64> = (0..200)
        .filter(|second| test.next(*second, DesiredDaemon::Run, DaemonProbe::Gone) == Some(DaemonAction::Prepare))
        .collect();
    assert_eq!(attempts, [0, 1, 3, 7, 15, 31, 63, 123, 183]);
    test.daemon.prepared(test.load);
    assert_eq!(
        test.next(200, DesiredDaemon::Run, DaemonProbe::Gone),
        Some(DaemonAction::Start)
    );
}

#[test]
fn a_daemon_that_keeps_dying_is_started_ever_more_rarely() {
    let mut test = running();
    assert_eq!(test.starts(2, 200), [2, 4, 8, 16, 32, 64, 124, 184]);
}

#[test]
fn a_daemon_that_dies_after_a_long_time_is_started_at_once() {
    let mut test = running();
    test.starts(2, 70);
    for second in 70..=130 {
        assert_eq!(test.next(second, DesiredDaemon::Run, DaemonProbe::Answers), None);
    }
    assert_eq!(test.starts(131, 136), [131, 132, 134]);
}

#[test]
fn a_daemon_of_an_earlier_supervisor_is_taken_over_as_it_is() {
    let mut test = DaemonTest::new();
    assert_eq!(
        test.next(0, DesiredDaemon::Run, DaemonProbe::Answers),
        Some(DaemonAction::Prepare)
    );
    test.daemon.prepared(test.load);
    assert!((0..100).all(|second| test.next(second, DesiredDaemon::Run, DaemonProbe::Answers).is_none()));
}

#[test]
fn a_daemon_that_may_have_clients_is_not_killed_for_its_silence() {
    let mut test = running();
    assert!((2..1000).all(|second| test.next(second, DesiredDaemon::Run, SILENT).is_none()));
}

#[test]
fn a_daemon_that_never_answered_is_killed_after_a_minute() {
    let mut test = running();
    let actions: Vec<_> = (2..70)
        .filter_map(|second| {
            Some((
                second,
                test.next(second, DesiredDaemon::Run, DaemonProbe::Silent { answered: false })?,
            ))
        })
        .collect();
    assert_eq!(actions.first(), Some(&(62, DaemonAction::Kill)));
}

#[test]
fn a_daemon_that_cannot_be_killed_is_killed_ever_more_rarely() {
    let mut test = running();
    let silent = DaemonProbe::Silent { answered: false };
    // Ten probes per second.
    let kills = (20..2000).filter(|tenth| {
        let now = test.start + Duration::from_millis(tenth * 100);
        test.next_at(now, DesiredDaemon::Run, silent) == Some(DaemonAction::Kill)
    });
    assert_eq!(
        kills.map(|tenth| tenth / 10).collect::<Vec<_>>(),
        [62, 64, 68, 76, 92, 124, 184]
    );
}

#[test]
fn a_daemon_that_is_not_wanted_quits_and_leaves_nothing() {
    let mut test = running();
    assert_eq!(
        test.next_if_free(10, DesiredDaemon::Gone, SILENT),
        Some(DaemonAction::QuitUnlessHeld)
    );
    assert_eq!(test.next(11, DesiredDaemon::Gone, SILENT), None);
    assert_eq!(
        test.next(12, DesiredDaemon::Gone, DaemonProbe::Gone),
        Some(DaemonAction::CleanUnlessHeld)
    );
}

#[test]
fn a_daemon_that_does_not_quit_is_asked_again_and_killed_only_if_nobody_holds_the_device() {
    let mut test = running();
    let actions: Vec<_> = (10..81)
        .filter_map(|second| Some((second, test.next_if_free(second, DesiredDaemon::Gone, SILENT)?)))
        .collect();
    let quits = [10, 20, 30, 40, 50, 60].map(|second| (second, DaemonAction::QuitUnlessHeld));
    assert_eq!(actions[..6], quits);
    assert_eq!(
        actions[6..],
        [(70, DaemonAction::KillUnlessHeld), (80, DaemonAction::KillUnlessHeld)]
    );
}

#[test]
fn a_daemon_whose_device_is_held_goes_on_and_the_kubelet_is_not_asked_all_the_time() {
    let mut test = running();
    let actions: Vec<_> = (10..200)
        .filter_map(|second| Some((second, test.next(second, DesiredDaemon::Gone, SILENT)?)))
        .collect();
    assert_eq!(actions.len(), 19);
    assert!(
        actions
            .iter()
            .all(|(_, action)| *action == DaemonAction::QuitUnlessHeld),
        "{actions:?}"
    );
    assert_eq!(test.next(200, DesiredDaemon::Rest, SILENT), None);
    assert_eq!(test.next(201, DesiredDaemon::Run, DaemonProbe::Answers), None);
    assert_eq!(
        test.next_if_free(202, DesiredDaemon::Gone, SILENT),
        Some(DaemonAction::QuitUnlessHeld)
    );
    assert_eq!(
        test.next(203, DesiredDaemon::Gone, DaemonProbe::Gone),
        Some(DaemonAction::CleanUnlessHeld)
    );
}

#[test]
fn a_daemon_that_is_wanted_again_while_it_quits_ends_first() {
    let mut test = running();
    assert_eq!(
        test.next_if_free(10, DesiredDaemon::Gone, SILENT),
        Some(DaemonAction::QuitUnlessHeld)
    );
    assert_eq!(test.next(11, DesiredDaemon::Run, DaemonProbe::Answers), None);
    assert_eq!(
        test.next_prepared(12, DesiredDaemon::Run, DaemonProbe::Gone),
        Some(DaemonAction::Start)
    );
}

#[test]
fn the_compute_mode_is_set_again_before_a_daemon_that_died_is_started() {
    for before in [DaemonProbe::Answers, SILENT] {
        let mut test = running();
        test.next(10, DesiredDaemon::Run, before);
        let gone = test.next(11, DesiredDaemon::Run, DaemonProbe::Gone);
        assert_eq!(gone, Some(DaemonAction::Prepare), "{before:?}");
    }
}

#[test]
fn the_compute_mode_is_set_again_after_the_driver_was_loaded_again() {
    let mut test = running();
    test.load = Some(2);
    assert_eq!(
        test.next(10, DesiredDaemon::Run, DaemonProbe::Answers),
        Some(DaemonAction::Prepare)
    );
    test.daemon.prepared(test.load);
    assert_eq!(test.next(11, DesiredDaemon::Run, DaemonProbe::Answers), None);
    // The kernel module is gone for a while.
    test.load = None;
    assert_eq!(
        test.next(20, DesiredDaemon::Run, DaemonProbe::Gone),
        Some(DaemonAction::Prepare)
    );
}

#[test]
fn the_compute_mode_is_set_at_once_when_a_driver_is_back_after_a_long_time() {
    let mut test = running();
    test.load = None;
    for second in 2..130 {
        test.next(second, DesiredDaemon::Run, DaemonProbe::Answers);
    }
    test.load = Some(2);
    assert_eq!(
        test.next(130, DesiredDaemon::Run, DaemonProbe::Answers),
        Some(DaemonAction::Prepare)
    );
}

#[test]
fn a_daemon_is_started_as_soon_as_the_drivers_container_is_ready() {
    let mut test = DaemonTest::new();
    test.is_validated = false;
    for second in 0..200 {
        let action = test.next(second, DesiredDaemon::Run, DaemonProbe::Gone);
        assert_eq!(action, Some(DaemonAction::AwaitDriver));
    }
    test.is_validated = true;
    assert_eq!(
        test.next_prepared(200, DesiredDaemon::Run, DaemonProbe::Gone),
        Some(DaemonAction::Start)
    );
    // It uses the driver, which therefore needs no validation.
    test.is_validated = false;
    assert_eq!(test.next(201, DesiredDaemon::Run, DaemonProbe::Answers), None);
}

#[test]
fn after_a_clean_up_everything_is_prepared_again() {
    let mut test = running();
    assert_eq!(
        test.next(10, DesiredDaemon::Gone, DaemonProbe::Gone),
        Some(DaemonAction::CleanUnlessHeld)
    );
    assert_eq!(
        test.next(20, DesiredDaemon::Run, DaemonProbe::Gone),
        Some(DaemonAction::Prepare)
    );
}

#[test]
fn a_daemon_that_rests_is_left_alone() {
    let mut test = running();
    for probe in [DaemonProbe::Gone, SILENT, DaemonProbe::Answers] {
        assert_eq!(test.next(100, DesiredDaemon::Rest, probe), None);
    }
}

#[test]
fn a_daemon_told_to_quit_is_not_asked_until_it_is_gone() {
    let mut schedule = DaemonState::default();
    let start = Instant::now();
    assert_eq!(schedule.target(DesiredDaemon::Run), DesiredDaemon::Run);
    schedule.quit_requested(start);
    for desired in [DesiredDaemon::Run, DesiredDaemon::Rest, DesiredDaemon::Gone] {
        assert_eq!(schedule.target(desired), DesiredDaemon::Gone, "{desired:?}");
    }
    schedule.record(DaemonProbe::Gone, start);
    assert_eq!(schedule.target(DesiredDaemon::Run), DesiredDaemon::Run);
}
