//! Jobs on GPUs of the simulated driver.

use super::*;
use crate::driver::nvml::tests::FakeDriver;
use gpunode_mig::{MigLayout, PresentInstance, solve};
use gpunode_scenario::{GpuProcess, OpenHandle, ProcessKind, ReturnCode, StateFile};
use std::{fs, os::unix::fs::symlink, path::Path};
use tempfile::TempDir;
use tokio::sync::watch;

const A100: &str = "{node: n, board: NVIDIA A100-SXM4-80GB, count: 1, topology: NVSwitch, mig: [{gpus: [0]}]}";
const H100: &str = "{node: n, board: NVIDIA H100 80GB HBM3, count: 1, topology: NVSwitch}";
const WHOLE_A100: &str = "{node: n, board: NVIDIA A100-SXM4-80GB, count: 1, topology: NVSwitch}";

/// A host whose driver is simulated.
struct Host {
    root: TempDir,
    driver: FakeDriver,
}

impl Host {
    fn new(scenario: &str) -> Self {
        let root = tempfile::tempdir().unwrap();
        let usr = root.path().join("driver/usr");
        fs::create_dir_all(&usr).unwrap();
        let driver = FakeDriver::within(&usr, scenario);
        // As the driver's root sees it.
        let target = Path::new("/usr").join(driver.folder().file_name().unwrap());
        symlink(target, usr.join("lib64")).unwrap();
        Self { root, driver }
    }

    fn faults(&self) -> StateFile {
        StateFile::open(self.driver.folder()).unwrap()
    }

    fn gpu(&self) -> Gpu {
        let roots = self.roots();
        let library = roots.find().unwrap().library;
        let read = |_: &str| crate::driver::pci::PciFunction::default();
        let reading = crate::driver::nvml::read(&library, self.root.path(), &[], false, read, |_| ()).unwrap();
        let mut gpu = reading.inventory.gpus[0].clone();
        gpu.mig_state = read_mig_state(&library, &GpuAddress::of(&gpu)).unwrap();
        gpu
    }

    fn roots(&self) -> DriverRoots {
        DriverRoots {
            driver_roots: vec!["/driver".into()],
            ..DriverRoots::of_host(self.root.path())
        }
    }

    /// Layout with these instances beside those that are there, or MIG off.
    fn layout(&self, text: &str) -> GpuLayout {
        if text == "off" {
            return GpuLayout::default();
        }
        let state = self.gpu().mig_state.unwrap();
        let wanted = MigLayout::parse(text, &state.geometry).unwrap();
        let present: Vec<PresentInstance> = Vec::new();
        let placed = solve(&state.geometry, &wanted, &present).unwrap();
        GpuLayout {
            enabled: true,
            instances: placed.instances(),
        }
    }

    fn job(&self, kind: WorkKind, layout: &GpuLayout) -> MigJob {
        let gpu = self.gpu();
        MigJob {
            roots: self.roots(),
            work: MigWork {
                gpu: gpu.uuid.clone(),
                hash: "h".to_owned(),
                layout: layout.clone(),
                kind,
            },
            gpu,
            mps: BTreeSet::new(),
            run: RunId {
                boot: "b".to_owned(),
                driver: "d".to_owned(),
            },
            stop: Arc::default(),
        }
    }

    fn check(&self, layout: &GpuLayout) -> AttemptResult {
        let job = self.job(WorkKind::Check, layout);
        job.check(&job.roots.calls.begin().unwrap())
    }

    fn change(&self, kind: WorkKind, layout: &GpuLayout) -> AttemptResult {
        let job = self.job(kind, layout);
        let mut file = RecordFile::load(self.root.path(), watch::Sender::default());
        job.change(&mut file, &job.roots.calls.begin().unwrap())
    }

    fn record(&self) -> gpunode_gpu::MigRecord {
        let records = RecordFile::load(self.root.path(), watch::Sender::default());
        records.records().values().next().cloned().unwrap_or_default()
    }

    fn names(&self) -> Vec<String> {
        self.gpu()
            .mig_devices
            .into_iter()
            .map(|mig| mig.facts.profile)
            .collect()
    }
}

fn blocked(result: AttemptResult) -> (MigReason, String) {
    match result {
        AttemptResult::Blocked { reason, message } => (reason, message),
        other => panic!("{other:?}"),
    }
}

#[test]
fn geometry_of_the_driver_is_that_of_the_boards_table() {
    for (scenario, board) in [(A100, "A100-80GB"), (H100, "H100-80GB")] {
        let state = Host::new(scenario).gpu().mig_state.unwrap();
        let of_board = gpunode_mig::MigBoard::named(board).unwrap().geometry;
        let sorted = |geometry: &gpunode_mig::MigGeometry| {
            let mut profiles = geometry.profiles.clone();
            profiles.sort_by_key(|profile| profile.id);
            (geometry.memory_slices, geometry.compute_slices, profiles)
        };
        assert_eq!(sorted(&state.geometry), sorted(&of_board), "{board}");
        assert_eq!(state.mode_needs_reset, scenario == A100);
    }
}

#[test]
fn gpu_gets_its_layout_and_what_stays_keeps_its_uuid() {
    let host = Host::new(A100);
    let first = host.layout("1g.10gb:3,4g.40gb:1");
    assert_eq!(host.change(WorkKind::Apply, &first), AttemptResult::Done);
    let uuid_of = |profile: &str, gpu: &Gpu| {
        let of_profile = gpu.mig_devices.iter().filter(|mig| mig.facts.profile == profile);
        of_profile.map(|mig| mig.facts.uuid.clone()).collect::<BTreeSet<_>>()
    };
    let before = host.gpu();
    assert_eq!(before.mig_devices.len(), 4);
    let record = host.record();
    assert_eq!((record.applied.as_ref(), record.change), (Some(&first), None));

    // Keeps the 4g and one 1g, and puts a 2g beside them.
    let state = before.mig_state.clone().unwrap();
    let wanted = MigLayout::parse("1g.10gb:1,2g.20gb:1,4g.40gb:1", &state.geometry).unwrap();
    let stays = |placed: &&gpunode_mig::PlacedInstance| placed.profile == 5 || placed.placement.start == 6;
    let kept: Vec<_> = first.instances.iter().filter(stays).copied().collect();
    let present: Vec<_> = kept
        .iter()
        .map(|&instance| PresentInstance { instance, in_use: true })
        .collect();
    let placed = solve(&state.geometry, &wanted, &present).unwrap();
    let second = GpuLayout {
        enabled: true,
        instances: placed.instances(),
    };
    assert_eq!(host.change(WorkKind::Apply, &second), AttemptResult::Done);
    let after = host.gpu();
    assert_eq!(uuid_of("4g.40gb", &after), uuid_of("4g.40gb", &before));
    assert!(uuid_of("1g.10gb", &after).is_subset(&uuid_of("1g.10gb", &before)));
    let mut names = host.names();
    names.sort_unstable();
    assert_eq!(names, ["1g.10gb", "2g.20gb", "4g.40gb"]);
}

#[test]
fn mode_is_switched_with_persistence_mode_off_meanwhile() {
    for scenario in [WHOLE_A100, H100] {
        let host = Host::new(scenario);
        let layout = host.layout("all-balanced");
        assert_eq!(host.change(WorkKind::Apply, &layout), AttemptResult::Done, "{scenario}");
        assert_eq!(host.names().len(), 4);
        assert_eq!(
            host.change(WorkKind::Apply, &GpuLayout::default()),
            AttemptResult::Done,
            "{scenario}"
        );
        let state = host.gpu().mig_state.unwrap();
        assert!(!state.enabled && !state.pending && state.instances.is_empty());
    }
}

#[test]
fn mode_that_something_holds_back_is_set_back_and_changes_nothing() {
    let host = Host::new(WHOLE_A100);
    let handle = OpenHandle {
        program: "dcgm".to_owned(),
        gpu_instance: None,
        compute_instance: None,
    };
    host.faults().set_open_handles(0, vec![handle]).unwrap();
    let layout = host.layout("1g.10gb:2");
    let (reason, message) = blocked(host.change(WorkKind::Apply, &layout));
    assert_eq!(reason, MigReason::ModePending);
    assert!(message.contains("a monitor may have a handle open"), "{message}");
    let state = host.gpu().mig_state.unwrap();
    assert!(!state.enabled && !state.pending, "{state:?}");
    assert_eq!(host.record().change, None, "nothing has begun");
    host.faults().set_open_handles(0, Vec::new()).unwrap();
    assert_eq!(host.change(WorkKind::Apply, &layout), AttemptResult::Done);
}

#[test]
fn process_and_daemon_on_what_has_to_go_are_named() {
    let host = Host::new(A100);
    let layout = host.layout("2g.20gb:1,3g.40gb:1");
    assert_eq!(host.change(WorkKind::Apply, &layout), AttemptResult::Done);
    let gpu = host.gpu();
    let of_profile = |profile: &str| gpu.mig_devices.iter().find(|mig| mig.facts.profile == profile).unwrap();
    let small = of_profile("2g.20gb");
    let process = GpuProcess {
        pid: std::process::id(),
        memory_mib: 100,
        kind: ProcessKind::default(),
        instance: Some((small.facts.gpu_instance, 0)),
    };
    host.faults().set_processes(0, vec![process]).unwrap();
    let empty = host.layout("{}");
    let (reason, message) = blocked(host.check(&empty));
    assert_eq!(reason, MigReason::InUse);
    assert!(
        message.contains(&format!("process {}", std::process::id())),
        "{message}"
    );
    // Nothing is on the other one.
    let without_large = GpuLayout {
        enabled: true,
        instances: layout
            .instances
            .iter()
            .filter(|placed| placed.profile == 14)
            .copied()
            .collect(),
    };
    assert_eq!(host.check(&without_large), AttemptResult::Clear);
    host.faults().set_processes(0, Vec::new()).unwrap();

    let mut job = host.job(WorkKind::Check, &empty);
    job.mps.insert(small.facts.uuid.clone());
    let (reason, message) = blocked(job.check(&job.roots.calls.begin().unwrap()));
    assert_eq!(reason, MigReason::MpsDaemon);
    assert!(message.contains(&small.facts.uuid), "{message}");
}

#[test]
fn handle_that_nobody_sees_blocks_until_it_goes() {
    let host = Host::new(A100);
    assert_eq!(
        host.change(WorkKind::Apply, &host.layout("7g.80gb:1")),
        AttemptResult::Done
    );
    let id = host.gpu().mig_devices[0].facts.gpu_instance;
    let handle = OpenHandle {
        program: "dcgm".to_owned(),
        gpu_instance: Some(id),
        compute_instance: None,
    };
    host.faults().set_open_handles(0, vec![handle]).unwrap();
    let empty = host.layout("{}");
    assert_eq!(host.check(&empty), AttemptResult::Clear);
    let (reason, _) = blocked(host.change(WorkKind::Apply, &empty));
    assert_eq!(reason, MigReason::InUse);
    host.faults().set_open_handles(0, Vec::new()).unwrap();
    assert_eq!(host.change(WorkKind::Apply, &empty), AttemptResult::Done);
    assert!(host.names().is_empty());
}

#[test]
fn change_that_fails_in_the_middle_goes_on_or_goes_back() {
    let host = Host::new(A100);
    assert_eq!(
        host.change(WorkKind::Apply, &host.layout("7g.80gb:1")),
        AttemptResult::Done
    );
    let before = host.record().applied.unwrap();
    let wanted = host.layout("1g.10gb:3");
    let create = "nvmlDeviceCreateGpuInstanceWithPlacement";
    host.faults().fail_at(0, 2, create, ReturnCode::Unknown).unwrap();
    for attempts in [1, 2] {
        let AttemptResult::Failed { message } = host.change(WorkKind::Apply, &wanted) else {
            panic!("it has to fail")
        };
        assert!(message.contains(create), "{message}");
        let record = host.record();
        assert_eq!(record.failure.unwrap().attempts, attempts);
        let change = record.change.unwrap();
        assert_eq!((&change.before, &change.wanted), (&before, &wanted));
    }
    let mut job = host.job(WorkKind::RollBack, &before);
    job.work.hash = "h".to_owned();
    let mut file = RecordFile::load(host.root.path(), watch::Sender::default());
    assert_eq!(
        job.change(&mut file, &job.roots.calls.begin().unwrap()),
        AttemptResult::Done
    );
    assert_eq!(host.names(), ["7g.80gb"]);
    let record = host.record();
    assert!(record.change.is_none() && record.failure.unwrap().rolled_back);

    host.faults().repair(0).unwrap();
    assert_eq!(host.change(WorkKind::Apply, &wanted), AttemptResult::Done);
    assert_eq!(host.record().failure, None);
    assert_eq!(host.names(), ["1g.10gb"; 3]);
}

#[test]
fn job_that_is_stopped_between_two_calls_is_finished_by_the_next() {
    let host = Host::new(A100);
    let wanted = host.layout("1g.10gb:2,3g.40gb:1");
    let job = host.job(WorkKind::Apply, &wanted);
    job.stop.store(true, Ordering::Relaxed);
    let mut file = RecordFile::load(host.root.path(), watch::Sender::default());
    let result = job.change(&mut file, &job.roots.calls.begin().unwrap());
    assert!(matches!(result, AttemptResult::Failed { .. }), "{result:?}");
    assert_eq!(host.record().failure, None, "an end of the agent is no failure");
    assert_eq!(host.change(WorkKind::Apply, &wanted), AttemptResult::Done);
    assert_eq!(host.names().len(), 3);
}

#[test]
fn same_instances_come_back_after_a_reboot() {
    let host = Host::new(A100);
    let layout = host.layout("1g.10gb:2,4g.40gb:1");
    assert_eq!(host.change(WorkKind::Apply, &layout), AttemptResult::Done);
    let before: Vec<_> = host.gpu().mig_devices.into_iter().map(|mig| mig.facts).collect();
    host.faults().reboot().unwrap();
    assert!(host.names().is_empty());
    assert_eq!(host.change(WorkKind::Restore, &layout), AttemptResult::Done);
    let after: Vec<_> = host.gpu().mig_devices.into_iter().map(|mig| mig.facts).collect();
    assert_eq!(after, before, "UUIDs of this board follow from the places");
}
