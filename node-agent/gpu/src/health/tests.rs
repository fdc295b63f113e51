use super::{fault::Cure, *};
use gpunode_config::{HealthRules as Rules, IgnorableFault, Recovery, Resolution};
use gpunode_crds::{FaultGrade, FaultReason};
use jiff::Timestamp;
use proptest::prelude::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// A look that shows nothing wrong, by a driver that tells no recovery action.
fn look(gpu: &str, health: &DeviceFaults) -> GpuProbe {
    GpuProbe {
        gpu: gpu.to_owned(),
        ticket: health.ticket(),
        result: ProbeResult::Responds,
        recovery_action: None,
        uncorrected_ecc: Some(0),
        remap_pending: Some(false),
        remap_failed: Some(false),
        retirement_pending: None,
        double_bit_pending: None,
        link_down: Some(false),
        processes: Some(0),
        instances: vec![MigProbe {
            uuid: format!("{gpu}/mig"),
            answers: true,
            processes: Some(0),
        }],
    }
}

fn run(boot: &str, driver: &str) -> HealthObservation {
    HealthObservation::Run(RunId {
        boot: boot.to_owned(),
        driver: driver.to_owned(),
    })
}

fn xids(health: &DeviceFaults, device: &str) -> Vec<i32> {
    health
        .faults
        .get(device)
        .into_iter()
        .flatten()
        .filter_map(|fault| fault.xid)
        .collect()
}

fn with_xids(rules: &Rules, numbers: &[i32]) -> DeviceFaults {
    let mut health = DeviceFaults::default();
    health.observe(run("a", "1"), rules, at(0));
    for number in numbers {
        health.observe(HealthObservation::Xid("G".to_owned(), *number), rules, at(1));
    }
    health
}

#[test]
fn a_milder_xid_clears_no_graver_one_and_each_goes_by_its_own_evidence() {
    let rules = Rules {
        watch_xids: vec![94],
        ..Rules::default()
    };
    let mut health = with_xids(&rules, &[79, 95, 94]);
    let mut seen = Vec::new();
    for step in [run("a", "1"), run("a", "2"), run("b", "2")] {
        health.observe(step, &rules, at(2));
        let probe = look("G", &health);
        health.observe(HealthObservation::Probe(probe), &rules, at(3));
        seen.push(xids(&health, "G"));
    }
    assert_eq!(seen, [vec![79, 95], vec![79], vec![]]);
}

#[test]
fn the_drivers_recovery_action_decides_where_it_is_told() {
    let rules = Rules::default();
    for (action, failed, left) in [(0, false, 0), (1, false, 1), (5, false, 1), (9, false, 1), (0, true, 1)] {
        let mut health = with_xids(&rules, &[95]);
        let probe = GpuProbe {
            recovery_action: Some(action),
            remap_pending: Some(true),
            remap_failed: Some(failed),
            ..look("G", &health)
        };
        health.observe(HealthObservation::Probe(probe), &rules, at(2));
        assert_eq!(xids(&health, "G").len(), left, "action {action}, failed {failed}");
    }
}

#[test]
fn damage_that_the_policy_ignores_keeps_no_xid() {
    let ignoring = Rules {
        ignore: vec![IgnorableFault::RowRemapFailed, IgnorableFault::UncorrectedEcc],
        ..Rules::default()
    };
    for (rules, left) in [(Rules::default(), 1), (ignoring, 0)] {
        type Damage = fn(&mut GpuProbe);
        let damages: [Damage; 2] = [
            |it| it.remap_failed = Some(true),
            |it| it.double_bit_pending = Some(true),
        ];
        for damage in damages {
            let mut health = with_xids(&rules, &[95]);
            let mut probe = look("G", &health);
            damage(&mut probe);
            probe.recovery_action = Some(0);
            health.observe(HealthObservation::Probe(probe), &rules, at(2));
            assert_eq!(xids(&health, "G").len(), left);
        }
    }
}

#[test]
fn a_look_from_before_an_xid_proves_nothing() {
    let rules = Rules::default();
    let mut health = DeviceFaults::default();
    let probe = GpuProbe {
        recovery_action: Some(0),
        ..look("G", &health)
    };
    health.observe(HealthObservation::Xid("G".to_owned(), 95), &rules, at(1));
    health.observe(HealthObservation::Probe(probe), &rules, at(2));
    assert_eq!(xids(&health, "G"), [95]);
}

#[test]
fn a_mig_device_that_does_not_answer_itself_stays_faulty() {
    let rules = Rules::default();
    let mut health = DeviceFaults::default();
    health.observe(HealthObservation::Xid("G/mig".to_owned(), 95), &rules, at(1));
    let mut probe = GpuProbe {
        recovery_action: Some(0),
        ..look("G", &health)
    };
    probe.instances[0].answers = false;
    for _ in 0..2 {
        health.observe(HealthObservation::Probe(probe.clone()), &rules, at(2));
    }
    assert_eq!(health.faults["G/mig"].len(), 2);
    assert_eq!(health.faults.get("G"), None);
    probe.instances[0].answers = true;
    health.observe(HealthObservation::Probe(probe), &rules, at(3));
    assert_eq!(health.faults.len(), 0);
}

#[test]
fn a_call_that_fails_once_is_no_fault_and_one_that_hangs_or_a_lost_gpu_is() {
    let rules = Rules::default();
    let mut health = DeviceFaults::default();
    let mut probe = GpuProbe {
        result: ProbeResult::Fails,
        ..look("G", &health)
    };
    let mut began = |health: &mut DeviceFaults, answer, instance| {
        probe.result = answer;
        probe.instances[0].answers = instance;
        health
            .observe(HealthObservation::Probe(probe.clone()), &rules, at(1))
            .iter()
            .filter(|it| it.began)
            .count()
    };
    for _ in 0..3 {
        assert_eq!(
            (began(&mut health, ProbeResult::Responds, false), health.doubts("G/mig")),
            (0, true)
        );
        assert_eq!(
            (began(&mut health, ProbeResult::Responds, true), health.doubts("G/mig")),
            (0, false)
        );
    }
    assert_eq!(
        (began(&mut health, ProbeResult::Fails, true), health.doubts("G")),
        (0, true)
    );
    assert_eq!(
        (began(&mut health, ProbeResult::Fails, true), health.doubts("G")),
        (1, false)
    );
    assert_eq!(
        (began(&mut health, ProbeResult::Fails, true), health.doubts("G")),
        (0, false),
        "it is known"
    );
    for answer in [ProbeResult::Hangs, ProbeResult::Lost] {
        let mut health = DeviceFaults::default();
        assert_eq!(
            (began(&mut health, answer, true), health.doubts("G")),
            (1, false),
            "{answer:?}"
        );
    }
}

#[test]
fn a_gpu_whose_call_waits_behind_another_gpu_has_that_fault_until_the_driver_answers_for_it() {
    let rules = Rules::default();
    for answer in [
        ProbeResult::Responds,
        ProbeResult::Fails,
        ProbeResult::Lost,
        ProbeResult::Hangs,
    ] {
        let mut health = DeviceFaults::default();
        let mut observe = |result| {
            let probe = GpuProbe {
                result,
                ..look("G", &health)
            };
            health.observe(HealthObservation::Probe(probe), &rules, at(1));
            health
                .faults
                .get("G")
                .map(|faults| faults.iter().map(|fault| fault.reason).collect::<Vec<_>>())
        };
        let blocked = Some(vec![FaultReason::DriverBlocked]);
        assert_eq!(observe(ProbeResult::Blocked), blocked);
        assert_eq!(observe(ProbeResult::Blocked), blocked, "it still waits");
        let after = observe(answer).unwrap_or_default();
        assert!(!after.contains(&FaultReason::DriverBlocked), "{answer:?}: {after:?}");
        assert_eq!(
            after.contains(&FaultReason::NotAnswering),
            answer == ProbeResult::Hangs,
            "{answer:?}"
        );
    }
}

#[test]
fn a_reset_of_a_gpu_cures_its_mig_devices() {
    let rules = Rules::default();
    let mut health = with_xids(&rules, &[95]);
    health.observe(HealthObservation::Xid("G/mig".to_owned(), 95), &rules, at(1));
    health.observe(HealthObservation::Xid("H".to_owned(), 95), &rules, at(1));
    health.observe(
        HealthObservation::Reset(vec!["G".to_owned(), "G/mig".to_owned()]),
        &rules,
        at(2),
    );
    for gpu in ["G", "H"] {
        let probe = look(gpu, &health);
        health.observe(HealthObservation::Probe(probe), &rules, at(3));
    }
    assert_eq!(health.faults.keys().collect::<Vec<_>>(), ["H"]);
}

#[test]
fn manual_recovery_waits_for_a_person_and_trouble_that_is_still_there_comes_back() {
    let rules = Rules {
        recovery: Some(Recovery::Manual),
        ..Rules::default()
    };
    let mut health = with_xids(&rules, &[95]);
    let lost = GpuProbe {
        result: ProbeResult::Lost,
        ..look("G", &health)
    };
    health.observe(HealthObservation::Probe(lost.clone()), &rules, at(2));
    health.observe(run("b", "2"), &rules, at(3));
    let whole = GpuProbe {
        recovery_action: Some(0),
        ..look("G", &health)
    };
    health.observe(HealthObservation::Probe(whole), &rules, at(4));
    assert_eq!(health.faults["G"].len(), 2);
    health.observe(HealthObservation::Recovered(at(5)), &rules, at(6));
    assert_eq!(health.faults.len(), 0);
    health.observe(HealthObservation::Probe(lost), &rules, at(7));
    assert_eq!(health.faults["G"].len(), 1);
}

#[test]
fn a_person_clears_what_a_clock_noted_that_was_ahead() {
    let rules = Rules {
        recovery: Some(Recovery::Manual),
        ..Rules::default()
    };
    let mut health = DeviceFaults::default();
    health.observe(HealthObservation::Xid("G".to_owned(), 95), &rules, at(1_000_000));
    health.observe(HealthObservation::Recovered(at(5)), &rules, at(6));
    assert_eq!(health.faults.len(), 0);
}

#[test]
fn what_is_not_known_of_a_run_is_no_evidence() {
    let rules = Rules::default();
    let mut health = with_xids(&rules, &[95, 79]);
    for step in [run("a", ""), run("", "1"), run("", ""), run("a", "1")] {
        assert!(!matches!(&step, HealthObservation::Run(run) if health.is_other_boot(run)));
        health.observe(step, &rules, at(2));
        let probe = look("G", &health);
        health.observe(HealthObservation::Probe(probe), &rules, at(3));
        assert_eq!(xids(&health, "G"), [95, 79]);
    }
    // A fault of this boot, before the driver is known again.
    health.observe(run("b", ""), &rules, at(4));
    health.observe(HealthObservation::Xid("H".to_owned(), 95), &rules, at(5));
    health.observe(run("b", "2"), &rules, at(6));
    let probe = look("H", &health);
    health.observe(HealthObservation::Probe(probe), &rules, at(7));
    assert_eq!(xids(&health, "H"), [95]);
}

#[test]
fn a_device_is_broken_since_its_first_fault_whatever_comes_and_goes_beside_it() {
    let rules = Rules {
        watch_xids: vec![94],
        ..Rules::default()
    };
    let mut health = DeviceFaults::default();
    health.observe(HealthObservation::Xid("G".to_owned(), 94), &rules, at(1));
    health.observe(HealthObservation::Xid("G".to_owned(), 79), &rules, at(5));
    assert_eq!(health.gravest(&["G"]).unwrap().xid, Some(79));
    assert_eq!(broken_since(&health, &["G"]), Some(at(1)));
    // Its processes are gone, so that the milder one is over.
    let probe = look("G", &health);
    health.observe(HealthObservation::Probe(probe), &rules, at(6));
    assert_eq!(xids(&health, "G"), [79]);
    assert_eq!(broken_since(&health, &["G/mig", "G"]), Some(at(1)));
    assert_eq!(broken_since(&health, &["H"]), None);
}

fn broken_since(health: &DeviceFaults, uuids: &[&str]) -> Option<Timestamp> {
    health.since(uuids, FaultGrade::Broken)
}

fn grade(health: &DeviceFaults, device: &str) -> Option<FaultGrade> {
    health.gravest(&[device]).map(Fault::grade)
}

#[test]
fn what_a_probe_shows_has_a_grade() {
    type Change = fn(&mut GpuProbe);
    let cases: [(Change, FaultReason, FaultGrade); 17] = [
        (
            |it| it.remap_pending = Some(true),
            FaultReason::RowRemapPending,
            FaultGrade::Degraded,
        ),
        (
            |it| it.remap_failed = Some(true),
            FaultReason::RowRemapFailed,
            FaultGrade::NoNewWork,
        ),
        (
            |it| it.link_down = Some(true),
            FaultReason::NvLinkDown,
            FaultGrade::NoNewWork,
        ),
        (
            |it| it.result = ProbeResult::Blocked,
            FaultReason::DriverBlocked,
            FaultGrade::NoNewWork,
        ),
        (
            |it| it.result = ProbeResult::Hangs,
            FaultReason::NotAnswering,
            FaultGrade::Broken,
        ),
        (
            |it| it.result = ProbeResult::Lost,
            FaultReason::Lost,
            FaultGrade::Broken,
        ),
        (
            |it| (it.uncorrected_ecc, it.remap_pending, it.remap_failed) = (Some(1), None, None),
            FaultReason::UncorrectedEcc,
            FaultGrade::Broken,
        ),
        (
            |it| (it.retirement_pending, it.double_bit_pending) = (Some(true), Some(false)),
            FaultReason::PageRetirementPending,
            FaultGrade::Degraded,
        ),
        (
            |it| (it.retirement_pending, it.double_bit_pending) = (Some(true), Some(true)),
            FaultReason::UncorrectedEcc,
            FaultGrade::Broken,
        ),
        (
            |it| it.recovery_action = Some(1),
            FaultReason::RecoveryPending,
            FaultGrade::Broken,
        ),
        (
            |it| it.recovery_action = Some(2),
            FaultReason::RecoveryPending,
            FaultGrade::Broken,
        ),
        (
            |it| it.recovery_action = Some(3),
            FaultReason::RecoveryPending,
            FaultGrade::NoNewWork,
        ),
        (
            |it| it.recovery_action = Some(4),
            FaultReason::RecoveryPending,
            FaultGrade::NoNewWork,
        ),
        (
            |it| it.recovery_action = Some(5),
            FaultReason::RecoveryPending,
            FaultGrade::NoNewWork,
        ),
        (
            |it| it.recovery_action = Some(6),
            FaultReason::RecoveryPending,
            FaultGrade::Broken,
        ),
        (
            |it| it.recovery_action = Some(7),
            FaultReason::RecoveryPending,
            FaultGrade::Broken,
        ),
        (
            |it| it.recovery_action = Some(8),
            FaultReason::RecoveryPending,
            FaultGrade::NoNewWork,
        ),
    ];
    for (change, reason, grade) in cases {
        let mut health = DeviceFaults::default();
        let mut probe = look("G", &health);
        change(&mut probe);
        let began = health.observe(HealthObservation::Probe(probe), &Rules::default(), at(1));
        let [transition] = &began[..] else {
            panic!("{reason:?}: {began:?}")
        };
        assert_eq!((transition.fault.reason, transition.fault.grade()), (reason, grade));
        let whole = GpuProbe {
            retirement_pending: Some(false),
            double_bit_pending: Some(false),
            ..look("G", &health)
        };
        health.observe(HealthObservation::Probe(whole), &Rules::default(), at(2));
        // Only the driver says that it asks for nothing more.
        assert_eq!(
            health.faults.is_empty(),
            reason != FaultReason::RecoveryPending,
            "{reason:?}"
        );
    }
}

#[test]
fn the_driver_grades_an_xid_where_it_reports_a_recovery_action_and_the_catalog_elsewhere() {
    let rules = Rules::default();
    for number in [48, 74].into_iter().chain(143..=151).chain([9999]) {
        let expected = match number {
            74 | 144..=150 => FaultGrade::NoNewWork,
            _ => FaultGrade::Broken,
        };
        assert_eq!(grade(&with_xids(&rules, &[number]), "G"), Some(expected), "{number}");
    }
    let mut health = DeviceFaults::default();
    let asks = |action, health: &DeviceFaults, ticket| GpuProbe {
        recovery_action: Some(action),
        ticket,
        ..look("G", health)
    };
    let probe = asks(0, &health, 0);
    health.observe(HealthObservation::Probe(probe), &rules, at(0));
    for device in ["G", "G/mig"] {
        health.observe(HealthObservation::Xid(device.to_owned(), 48), &rules, at(10));
        assert_eq!(
            grade(&health, device),
            Some(FaultGrade::NoNewWork),
            "the driver has not said yet"
        );
    }
    for (action, expected, second) in [
        (0, FaultGrade::NoNewWork, 20),
        (1, FaultGrade::Broken, 30),
        (6, FaultGrade::Broken, 40),
        (4, FaultGrade::NoNewWork, 50),
        (7, FaultGrade::Broken, 60),
    ] {
        // From before the XID, so that it ends nothing.
        let probe = asks(action, &health, 0);
        health.observe(HealthObservation::Probe(probe), &rules, at(second));
        for device in ["G", "G/mig"] {
            assert_eq!(grade(&health, device), Some(expected), "{action} {device}");
        }
        assert_eq!(health.since(&["G"], FaultGrade::NoNewWork), Some(at(10)));
    }
    assert_eq!(
        broken_since(&health, &["G"]),
        Some(at(60)),
        "it was not broken in between"
    );
    let wishes = health.faults["G"]
        .iter()
        .filter(|fault| fault.reason == FaultReason::RecoveryPending);
    assert_eq!(wishes.map(|fault| fault.recovery_action).collect::<Vec<_>>(), [Some(7)]);
    let probe = asks(0, &health, health.ticket());
    health.observe(HealthObservation::Probe(probe), &rules, at(70));
    assert!(health.faults.is_empty());
    assert_eq!(health.since(&["G"], FaultGrade::Degraded), None);
}

#[test]
fn a_degraded_device_is_unhealthy_only_since_another_fault() {
    let rules = Rules::default();
    let mut health = DeviceFaults::default();
    let mut probe = look("G", &health);
    probe.remap_pending = Some(true);
    health.observe(HealthObservation::Probe(probe.clone()), &rules, at(1));
    assert_eq!(grade(&health, "G"), Some(FaultGrade::Degraded));
    assert_eq!(health.since(&["G"], FaultGrade::NoNewWork), None);
    probe.link_down = Some(true);
    health.observe(HealthObservation::Probe(probe.clone()), &rules, at(2));
    probe.result = ProbeResult::Lost;
    health.observe(HealthObservation::Probe(probe), &rules, at(3));
    let times =
        [FaultGrade::Degraded, FaultGrade::NoNewWork, FaultGrade::Broken].map(|grade| health.since(&["G"], grade));
    assert_eq!(times, [1, 2, 3].map(|second| Some(at(second))));
    assert_eq!(health.gravest(&["G"]).unwrap().reason, FaultReason::Lost);
}

#[test]
fn what_the_policy_ignores_does_not_begin_and_ends_at_once() {
    let ignoring = Rules {
        ignore: vec![IgnorableFault::NvLinkDown, IgnorableFault::FabricNotReady],
        ..Rules::default()
    };
    let shows = |health: &DeviceFaults| {
        let mut probe = look("G", health);
        (probe.link_down, probe.remap_failed) = (Some(true), Some(true));
        [
            HealthObservation::Probe(probe),
            HealthObservation::Fabric("G".to_owned(), false),
        ]
    };
    let reasons = |health: &DeviceFaults| {
        let faults = health.faults.get("G").into_iter().flatten();
        faults.map(|fault| fault.reason).collect::<Vec<_>>()
    };
    let mut health = DeviceFaults::default();
    for observation in shows(&health) {
        health.observe(observation, &ignoring, at(1));
    }
    assert_eq!(reasons(&health), [FaultReason::RowRemapFailed]);
    for observation in shows(&health) {
        health.observe(observation, &Rules::default(), at(2));
    }
    assert_eq!(reasons(&health).len(), 3);
    let ended = health.observe(run("a", "1"), &ignoring, at(3));
    assert!(ended.len() == 2 && ended.iter().all(|it| !it.began), "{ended:?}");
    assert_eq!(reasons(&health), [FaultReason::RowRemapFailed]);
}

#[test]
fn an_mps_daemon_that_died_keeps_new_work_away_and_evicts_nobody() {
    let rules = Rules::default();
    let mut health = DeviceFaults::default();
    health.observe(HealthObservation::MpsDaemon("G".to_owned(), false), &rules, at(1));
    assert_eq!(grade(&health, "G"), Some(FaultGrade::NoNewWork));
}

#[test]
fn a_gpu_that_has_not_joined_its_fabric_gets_no_work_until_it_has_and_needs_no_person() {
    let rules = Rules {
        recovery: Some(Recovery::Manual),
        ..Rules::default()
    };
    let mut health = DeviceFaults::default();
    let fabric = |is_ready| HealthObservation::Fabric("G".to_owned(), is_ready);
    assert_eq!(health.observe(fabric(false), &rules, at(1)).len(), 1);
    assert!(health.observe(fabric(false), &rules, at(2)).is_empty());
    assert_eq!(grade(&health, "G"), Some(FaultGrade::NoNewWork));
    let probe = look("G", &health);
    for observation in [HealthObservation::Probe(probe), HealthObservation::Recovered(at(9))] {
        assert!(health.observe(observation, &rules, at(10)).is_empty());
    }
    assert_eq!(health.observe(fabric(true), &rules, at(11)).len(), 1);
    assert!(health.faults.is_empty());
}

#[test]
fn a_gpu_that_waits_for_its_fabric_says_so_whatever_else_keeps_new_work_away() {
    let rules = Rules::default();
    let mut health = DeviceFaults::default();
    let mut probe = look("G", &health);
    (probe.remap_failed, probe.recovery_action) = (Some(true), Some(4));
    health.observe(HealthObservation::Probe(probe), &rules, at(1));
    health.observe(HealthObservation::Fabric("G".to_owned(), false), &rules, at(2));
    assert_eq!(health.gravest(&["G"]).unwrap().reason, FaultReason::FabricNotReady);
    let lost = GpuProbe {
        result: ProbeResult::Lost,
        ..look("G", &health)
    };
    health.observe(HealthObservation::Probe(lost), &rules, at(3));
    assert_eq!(health.gravest(&["G"]).unwrap().reason, FaultReason::Lost);
}

#[test]
fn a_cause_is_told_before_the_wish_of_the_driver_that_came_first() {
    let rules = Rules::default();
    let mut health = DeviceFaults::default();
    let mut wish = look("G", &health);
    wish.recovery_action = Some(2);
    health.observe(HealthObservation::Probe(wish), &rules, at(1));
    assert_eq!(health.gravest(&["G"]).unwrap().reason, FaultReason::RecoveryPending);
    health.observe(HealthObservation::Xid("G".to_owned(), 95), &rules, at(2));
    assert_eq!(health.gravest(&["G"]).unwrap().reason, FaultReason::RecoveryPending);
    health.observe(HealthObservation::Xid("G".to_owned(), 79), &rules, at(3));
    assert_eq!(health.gravest(&["G"]).unwrap().xid, Some(79));
}

#[derive(Clone, Debug)]
enum Step {
    Xid(usize, bool, i32),
    Look {
        gpu: usize,
        action: Option<u32>,
        answer: ProbeResult,
        processes: usize,
        pending: bool,
        instance: bool,
    },
    Run(u8, u8),
    Reset(usize),
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (
            0..2usize,
            any::<bool>(),
            prop::sample::select(vec![13, 48, 74, 79, 94, 95, 151, 9999])
        )
            .prop_map(|(gpu, mig, xid)| Step::Xid(gpu, mig, xid)),
        (
            0..2usize,
            prop::option::of(0..3u32),
            prop::sample::select(vec![
                ProbeResult::Responds,
                ProbeResult::Lost,
                ProbeResult::Fails,
                ProbeResult::Hangs,
                ProbeResult::Blocked
            ]),
            0..2usize,
            any::<bool>(),
            any::<bool>(),
        )
            .prop_map(|(gpu, action, answer, processes, pending, instance)| Step::Look {
                gpu,
                action,
                answer,
                processes,
                pending,
                instance
            }),
        (0..2u8, 0..2u8).prop_map(|(boot, driver)| Step::Run(boot, driver)),
        (0..2usize).prop_map(Step::Reset),
    ]
}

const GPUS: [&str; 2] = ["G", "H"];

proptest! {
    #[test]
    fn nothing_is_healthy_again_without_evidence_and_one_gpus_trouble_stays_with_it(
        steps in prop::collection::vec(any_step(), 1..60)
    ) {
        let rules = Rules { watch_xids: vec![94], ..Rules::default() };
        let mut health = DeviceFaults::default();
        let mut now = 0;
        for step in steps {
            // Years pass between two steps: none of that is evidence.
            now += 100_000_000;
            let before = health.clone();
            let (observation, subject) = match &step {
                Step::Xid(gpu, mig, xid) => {
                    let device = if *mig { format!("{}/mig", GPUS[*gpu]) } else { GPUS[*gpu].to_owned() };
                    (HealthObservation::Xid(device, *xid), Some(GPUS[*gpu]))
                }
                Step::Look { gpu, action, answer, processes, pending, instance } => {
                    let mut probe = look(GPUS[*gpu], &health);
                    (probe.recovery_action, probe.result, probe.processes) = (*action, *answer, Some(*processes));
                    probe.remap_pending = Some(*pending);
                    probe.instances[0].answers = *instance;
                    probe.instances[0].processes = Some(*processes);
                    (HealthObservation::Probe(probe), Some(GPUS[*gpu]))
                }
                Step::Run(boot, driver) => (run(&boot.to_string(), &driver.to_string()), None),
                Step::Reset(gpu) => {
                    let devices = vec![GPUS[*gpu].to_owned(), format!("{}/mig", GPUS[*gpu])];
                    (HealthObservation::Reset(devices), Some(GPUS[*gpu]))
                }
            };
            let transitions = health.observe(observation, &rules, at(now));
            for transition in &transitions {
                prop_assert!(subject.is_some_and(|gpu| transition.device.starts_with(gpu)), "{step:?}: {transition:?}");
                if !transition.began && transition.fault.reason == FaultReason::Xid {
                    let Step::Look { action, answer, processes, .. } = &step else {
                        return Err(TestCaseError::fail(format!("{step:?} ended {transition:?}")));
                    };
                    let cured = match transition.fault.resolution() {
                        Resolution::Ignore | Resolution::RestartApp => *processes == 0 || transition.fault.cure >= Cure::Reset,
                        Resolution::CheckLinks | Resolution::ResetGpu => transition.fault.cure >= Cure::Reset,
                        Resolution::RestartVm | Resolution::RebootNode => transition.fault.cure == Cure::Boot,
                    };
                    prop_assert!(*answer == ProbeResult::Responds, "{step:?}");
                    prop_assert!(action.map_or(cured, |action| action == 0), "{step:?}: {transition:?}");
                }
            }
            for (device, faults) in &before.faults {
                let left = health.faults.get(device).map_or(0, Vec::len);
                let told = transitions.iter().filter(|it| &it.device == device);
                let (began, ended): (Vec<_>, Vec<_>) = told.partition(|it| it.began);
                prop_assert_eq!(faults.len() + began.len() - ended.len(), left);
            }
            let written = serde_json::to_string(&health).unwrap();
            prop_assert_eq!(&serde_json::from_str::<DeviceFaults>(&written).unwrap(), &health);
        }
    }
}
