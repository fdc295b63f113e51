//! Work on one GPU, on the simulated driver of a node.

use super::*;
use crate::{driver::nvml::tests::FakeDriver, mig::record_file::MigRecords};
use gpunode_gpu::MigRecord;
use gpunode_mig::{PlacedInstance, SlicePlacement};
use gpunode_scenario::{GpuProcess, OpenHandle, ProcessKind, ReturnCode, StateFile};
use std::{
    fs,
    os::unix::fs::symlink,
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;
use tokio::sync::watch;

pub const A100: &str = "NVIDIA A100-SXM4-80GB";
pub const H100: &str = "NVIDIA H100 80GB HBM3";
const LIMIT: Duration = Duration::from_secs(20);

/// A node with a driver, in folders of its own.
pub struct TestNode {
    host: TempDir,
    pub driver: FakeDriver,
    pub roots: DriverRoots,
}

impl TestNode {
    /// A node with GPUs of a board, which have these instances unless MIG is off.
    pub fn new(board: &str, count: u32, instances: Option<&str>) -> Self {
        let gpus: Vec<u32> = (0..count).collect();
        let mig = instances.map_or(String::new(), |instances| {
            format!(", mig: [{{gpus: {gpus:?}, instances: [{instances}]}}]")
        });
        Self::of_scenario(&format!(
            "{{node: n, board: {board}, count: {count}, topology: NVSwitch{mig}}}"
        ))
    }

    fn of_scenario(scenario: &str) -> Self {
        let host = tempfile::tempdir().unwrap();
        let usr = host.path().join("driver/usr");
        fs::create_dir_all(&usr).unwrap();
        let driver = FakeDriver::within(&usr, scenario);
        // As the driver's root sees it.
        symlink(
            Path::new("/usr").join(driver.folder().file_name().unwrap()),
            usr.join("lib64"),
        )
        .unwrap();
        fs::create_dir(host.path().join("state")).unwrap();
        let roots = DriverRoots {
            driver_roots: vec!["/driver".into()],
            ..DriverRoots::of_host(host.path())
        };
        let node = Self { host, driver, roots };
        node.write_capabilities();
        node
    }

    /// Writes the kernel's table of capabilities: each GPU instance has the nodes 10 * (its id + 1) and the one after it.
    fn write_capabilities(&self) {
        let folder = self.host.path().join("proc/driver/nvidia-caps");
        fs::create_dir_all(&folder).unwrap();
        let lines = self.gpus().into_iter().filter_map(|gpu| gpu.minor).flat_map(|gpu| {
            (0..20).map(move |id| {
                let minor = 10 * (id + 1);
                format!(
                    "gpu{gpu}/gi{id}/access {minor}\ngpu{gpu}/gi{id}/ci0/access {}\n",
                    minor + 1
                )
            })
        });
        fs::write(folder.join("mig-minors"), lines.collect::<String>()).unwrap();
    }

    /// Adds a process of the host that has a file open.
    pub fn add_process(&self, pid: u32, name: &str, open: &str) {
        let folder = self.host.path().join("proc").join(pid.to_string());
        fs::create_dir_all(folder.join("fd")).unwrap();
        fs::write(folder.join("comm"), format!("{name}\n")).unwrap();
        symlink(open, folder.join("fd/3")).unwrap();
    }

    pub fn gpus(&self) -> Vec<Gpu> {
        self.driver.gpus_with_mig()
    }

    pub fn state_of(&self, gpu: usize) -> GpuMigState {
        self.gpus()[gpu].mig_state.clone().unwrap()
    }

    fn state(&self) -> GpuMigState {
        self.state_of(0)
    }

    /// Numbers of GPU instances and of compute instances after the first change of MIG. A session beside that of a change may find
    /// a handle gone.
    pub fn parts(&self) -> Option<(usize, usize)> {
        let driver = self.faults().driver().unwrap();
        let instances = &driver.mig.get(&0)?.instances;
        let compute = instances.iter().map(|instance| instance.compute_instances.len());
        Some((instances.len(), compute.sum()))
    }

    pub fn faults(&self) -> StateFile {
        StateFile::open(self.driver.folder()).unwrap()
    }

    pub fn is_persistent(&self) -> bool {
        self.faults().driver().unwrap().gpu(0).persistence
    }

    pub fn state_dir(&self) -> PathBuf {
        self.host.path().join("state")
    }

    pub fn records(&self) -> RecordFile {
        RecordFile::load(&self.state_dir(), watch::Sender::default(), Arc::default()).unwrap()
    }

    fn record(&self) -> MigRecord {
        let records: MigRecords = self.records().records().clone();
        records.get(&self.gpus()[0].uuid).cloned().unwrap_or_default()
    }

    pub fn work(&self, gpu: usize, kind: MigWorkKind, layout: &GpuLayout) -> MigWork {
        MigWork {
            gpu: self.gpus()[gpu].uuid.clone(),
            hash: "hash".to_owned(),
            layout: layout.clone(),
            kind,
            gives_up: None,
        }
    }

    fn job(&self, kind: MigWorkKind, layout: &GpuLayout) -> MigJob {
        MigJob {
            roots: self.roots.clone(),
            work: self.work(0, kind, layout),
            gpu: self.gpus().remove(0),
            mps: BTreeSet::new(),
            run: run(),
            stop: Arc::default(),
        }
    }

    fn check(&self, layout: &GpuLayout) -> AttemptResult {
        let call = self.roots.calls.begin().unwrap();
        self.job(MigWorkKind::Check, layout).check(&call)
    }

    fn change(&self, kind: MigWorkKind, layout: &GpuLayout) -> AttemptResult {
        self.carry_out(&self.job(kind, layout))
    }

    fn carry_out(&self, job: &MigJob) -> AttemptResult {
        let call = self.roots.calls.begin().unwrap();
        job.change(&mut self.records(), &call)
    }
}

pub fn run() -> RunId {
    RunId {
        boot: "boot".to_owned(),
        driver: "driver".to_owned(),
    }
}

/// A layout of instances of an A100 or H100 with 80 GB: by profile id, first slice and slices.
pub fn layout(instances: &[(u32, u32, u32)]) -> GpuLayout {
    let placed = |(profile, start, size): &(u32, u32, u32)| PlacedInstance {
        placement: SlicePlacement {
            start: *start,
            size: *size,
        },
        profile: *profile,
    };
    GpuLayout {
        enabled: true,
        instances: instances.iter().map(placed).collect(),
    }
}

pub const ONE_AT_6: (u32, u32, u32) = (19, 6, 1);
pub const TWO_AT_4: (u32, u32, u32) = (14, 4, 2);
pub const FOUR: (u32, u32, u32) = (5, 0, 4);

fn blocked_for(result: &AttemptResult, reason: MigReason) -> &str {
    match result {
        AttemptResult::Blocked { reason: found, message } if *found == reason => message,
        other => panic!("{other:?}"),
    }
}

fn failed_with(result: AttemptResult) -> String {
    match result {
        AttemptResult::Failed { message } => message,
        other => panic!("{other:?}"),
    }
}

fn process(pid: u32, instance: Option<(u32, u32)>) -> GpuProcess {
    GpuProcess {
        pid,
        memory_mib: 1,
        kind: ProcessKind::Compute,
        instance,
    }
}

/// The first instance of a GPU with two of 3g.40gb; the wanted layout keeps the other one.
fn with_two_halves(board: &str) -> (TestNode, GpuInstance, GpuLayout) {
    let node = TestNode::new(board, 1, Some("3g.40gb, 3g.40gb"));
    let first = node.state().instances[0].clone();
    (node, first, layout(&[(9, 4, 4), (14, 0, 2)]))
}

#[test]
fn a_process_on_what_goes_blocks_and_one_on_what_stays_does_not() {
    let (node, first, wanted) = with_two_halves(A100);
    let stays = node.state().instances[1].id;
    node.faults()
        .set_processes(0, vec![process(7, Some((stays, 0)))])
        .unwrap();
    assert_eq!(node.check(&wanted), AttemptResult::Clear);
    node.add_process(8, "python3", "/dev/nvidia0");
    node.faults()
        .set_processes(0, vec![process(8, Some((first.id, 0)))])
        .unwrap();
    let result = node.check(&wanted);
    let message = blocked_for(&result, MigReason::InUse);
    assert!(message.contains("used by python3 (process 8); end it"), "{message}");
    // A mode change takes the whole GPU.
    node.faults()
        .set_processes(0, vec![process(7, Some((stays, 0)))])
        .unwrap();
    assert_eq!(node.check(&wanted), AttemptResult::Clear);
    blocked_for(&node.check(&GpuLayout::default()), MigReason::InUse);
}

#[test]
fn an_open_capability_node_of_what_goes_blocks_and_that_of_what_stays_does_not() {
    let (node, first, wanted) = with_two_halves(A100);
    let stays = node.state().instances[1].id;
    let cap = |id: u32| format!("/dev/nvidia-caps/nvidia-cap{}", 10 * (id + 1));
    node.add_process(20, "train", &cap(stays));
    node.add_process(21, "gpunode-agent", &cap(first.id));
    assert_eq!(node.check(&wanted), AttemptResult::Clear);
    node.add_process(22, "nv-hostengine", &cap(first.id));
    let result = node.check(&wanted);
    let message = blocked_for(&result, MigReason::InUse);
    assert!(
        message.contains("nv-hostengine (process 22)") && !message.contains("gpunode"),
        "{message}"
    );
}

#[test]
fn an_open_node_of_the_gpu_keeps_only_a_board_from_its_mode_that_is_reset_for_it() {
    for (board, is_blocked) in [(A100, true), (H100, false)] {
        let node = TestNode::new(board, 1, None);
        let minor = node.gpus()[0].minor.unwrap();
        node.add_process(22, "nv-hostengine", &format!("/dev/nvidia{minor}"));
        let result = node.check(&layout(&[]));
        assert_eq!(result != AttemptResult::Clear, is_blocked, "{board}: {result:?}");
    }
}

#[test]
fn an_mps_daemon_on_what_goes_blocks() {
    let (node, first, wanted) = with_two_halves(A100);
    let check = |device: String| {
        let job = MigJob {
            mps: [device].into(),
            ..node.job(MigWorkKind::Check, &wanted)
        };
        job.check(&node.roots.calls.begin().unwrap())
    };
    let uuid = |instance: &GpuInstance| instance.compute[0].uuid.clone().unwrap();
    assert_eq!(check(uuid(&node.state().instances[1])), AttemptResult::Clear);
    assert_eq!(check(node.gpus()[0].uuid.clone()), AttemptResult::Clear);
    let result = check(uuid(&first));
    let message = blocked_for(&result, MigReason::MpsDaemon);
    assert!(message.contains(&uuid(&first)), "{message}");
}

#[test]
fn a_check_that_the_driver_does_not_answer_is_neither_clear_nor_an_attempt() {
    let (node, _, wanted) = with_two_halves(A100);
    node.faults()
        .fail(0, "nvmlDeviceGetComputeRunningProcesses", ReturnCode::Unknown)
        .unwrap();
    let message = failed_with(node.check(&wanted));
    assert!(message.contains("nvmlDeviceGetComputeRunningProcesses"), "{message}");
    let job = node.job(MigWorkKind::Apply, &wanted);
    node.faults().lose(0).unwrap();
    let message = failed_with(job.change(&mut node.records(), &node.roots.calls.begin().unwrap()));
    assert!(message.contains("GPU_IS_LOST"), "{message}");
    node.faults().restore(0).unwrap();
    assert_eq!(node.record(), MigRecord::default());
}

#[test]
#[ignore = "needs root: make test"]
fn a_change_is_on_disk_before_the_first_call_and_over_after_the_last() {
    let (node, _, wanted) = with_two_halves(A100);
    let before = node.state().layout();
    node.faults().delay(0, "nvmlComputeInstanceDestroy", 1500).unwrap();
    let path = node.state_dir().join("mig.json");
    let result = thread::scope(|scope| {
        let changing = scope.spawn(|| node.change(MigWorkKind::Apply, &wanted));
        let start = Instant::now();
        while !path.exists() {
            assert!(start.elapsed() < LIMIT, "nothing is saved");
            thread::yield_now();
        }
        let now = node.faults().driver().unwrap();
        assert_eq!(now.mig.get(&0), None, "the driver has changed nothing yet");
        let change = node.record().change.unwrap();
        assert_eq!(
            (change.before, &change.wanted, change.rolls_back),
            (before, &wanted, false)
        );
        assert_eq!(change.hash, "hash");
        changing.join().unwrap()
    });
    assert_eq!(result, AttemptResult::Done);
    let record = node.record();
    assert_eq!((record.applied, record.change, record.run), (Some(wanted), None, run()));
}

#[test]
#[ignore = "needs root: make test"]
fn a_change_that_cannot_be_saved_calls_nothing() {
    let (node, _, wanted) = with_two_halves(A100);
    let before = node.state();
    let mut file = node.records();
    fs::remove_dir(node.state_dir()).unwrap();
    let job = node.job(MigWorkKind::Apply, &wanted);
    let message = failed_with(job.change(&mut file, &node.roots.calls.begin().unwrap()));
    assert!(message.starts_with("save the MIG record of GPU-"), "{message}");
    assert_eq!(node.state(), before);
}

#[test]
#[ignore = "needs root: make test"]
fn errors_count_until_the_layout_from_before_is_back() {
    let (node, _, wanted) = with_two_halves(A100);
    let before = node.state().layout();
    node.faults()
        .fail(0, "nvmlDeviceCreateGpuInstanceWithPlacement", ReturnCode::Unknown)
        .unwrap();
    for attempts in 1..=3 {
        let message = failed_with(node.change(MigWorkKind::Apply, &wanted));
        let failure = node.record().failure.unwrap();
        assert_eq!((failure.attempts, failure.message), (attempts, message));
        assert_eq!(
            node.record().change.unwrap().before,
            before,
            "not the half of it that is left"
        );
    }
    node.faults()
        .clear_failure(0, "nvmlDeviceCreateGpuInstanceWithPlacement")
        .unwrap();
    assert_eq!(node.change(MigWorkKind::RollBack, &before), AttemptResult::Done);
    assert_eq!(node.state().layout(), before);
    let record = node.record();
    assert_eq!((record.applied, record.change), (Some(before), None));
    let failure = record.failure.unwrap();
    assert!(failure.rolled_back && failure.attempts == 3, "{failure:?}");
}

#[test]
#[ignore = "needs root: make test"]
fn an_error_before_anything_has_changed_leaves_no_change_behind() {
    let (node, _, wanted) = with_two_halves(A100);
    node.faults()
        .fail(0, "nvmlComputeInstanceDestroy", ReturnCode::Unknown)
        .unwrap();
    failed_with(node.change(MigWorkKind::Apply, &wanted));
    let record = node.record();
    assert_eq!(
        (record.change, record.failure.map(|failure| failure.attempts)),
        (None, Some(1))
    );
}

#[test]
#[ignore = "needs root: make test"]
fn a_handle_that_no_list_has_blocks_the_change_until_it_is_gone() {
    let (node, first, wanted) = with_two_halves(A100);
    let handle = OpenHandle {
        program: "dcgm".to_owned(),
        gpu_instance: Some(first.id),
        compute_instance: None,
    };
    node.faults().set_open_handles(0, vec![handle]).unwrap();
    assert_eq!(node.check(&wanted), AttemptResult::Clear, "nobody can see it");
    let result = node.change(MigWorkKind::Apply, &wanted);
    let message = blocked_for(&result, MigReason::InUse);
    assert!(
        message.contains("nvmlGpuInstanceDestroy answers IN_USE; gpunode finds no process"),
        "{message}"
    );
    let record = node.record();
    assert!(record.change.is_some() && record.failure.is_none(), "{record:?}");
    let cap = format!("/dev/nvidia-caps/nvidia-cap{}", 10 * (first.id + 1) + 1);
    node.add_process(22, "nv-hostengine", &cap);
    let result = node.change(MigWorkKind::Apply, &wanted);
    let message = blocked_for(&result, MigReason::InUse);
    assert!(
        message.ends_with("used by nv-hostengine (process 22); end it"),
        "{message}"
    );
    node.faults().set_open_handles(0, Vec::new()).unwrap();
    assert_eq!(node.change(MigWorkKind::Apply, &wanted), AttemptResult::Done);
    assert_eq!(node.record().change, None);
}

#[test]
#[ignore = "needs root: make test"]
fn a_virtual_machine_keeps_its_instances_until_the_boot_that_turns_mig_off() {
    let machine = || {
        TestNode::of_scenario(&format!(
            "{{node: n, board: {A100}, count: 1, topology: NVSwitch, virtualization: Passthrough, \
             mig: [{{gpus: [0], instances: [3g.40gb, 3g.40gb]}}]}}"
        ))
    };
    let node = machine();
    let before = node.state();
    let result = node.change(MigWorkKind::Apply, &GpuLayout::default());
    assert!(matches!(result, AttemptResult::RebootRequired { .. }), "{result:?}");
    let state = node.state();
    assert_eq!((state.instances, state.pending), (before.instances, false));
    assert_eq!(node.record().change, None, "nothing has begun");
    node.faults().reboot().unwrap();
    assert!(!node.state().enabled);

    // A driver that lets the mode go only without instances.
    let node = machine();
    node.faults()
        .update_gpu(0, |gpu| gpu.mig_activation = Some(ReturnCode::InUse))
        .unwrap();
    blocked_for(
        &node.change(MigWorkKind::Apply, &GpuLayout::default()),
        MigReason::ModePending,
    );
    assert!(node.state().instances.is_empty());

    // One that says so and does not.
    let node = machine();
    node.faults().update_gpu(0, |gpu| gpu.mig_mode_stays = true).unwrap();
    failed_with(node.change(MigWorkKind::Apply, &GpuLayout::default()));
    assert_eq!(node.state().instances.len(), 2);
}

#[test]
#[ignore = "needs root: make test"]
fn a_change_that_a_handle_keeps_from_its_end_goes_back_and_says_why() {
    let (node, first, wanted) = with_two_halves(A100);
    let before = node.state().layout();
    let handle = OpenHandle {
        program: "dcgm".to_owned(),
        gpu_instance: Some(first.id),
        compute_instance: None,
    };
    node.faults().set_open_handles(0, vec![handle]).unwrap();
    blocked_for(&node.change(MigWorkKind::Apply, &wanted), MigReason::InUse);
    assert!(!node.state().instances[0].is_whole(), "it is half done");
    let mut job = node.job(MigWorkKind::RollBack, &before);
    job.work.gives_up = Some("a handle of dcgm".to_owned());
    assert_eq!(node.carry_out(&job), AttemptResult::Done);
    assert_eq!(node.state().layout(), before);
    let record = node.record();
    assert_eq!((record.applied, record.change), (Some(before), None));
    let failure = record.failure.unwrap();
    assert_eq!(
        (failure.rolled_back, failure.attempts, failure.message.as_str()),
        (true, 1, "a handle of dcgm")
    );
}

#[test]
#[ignore = "needs root: make test"]
fn a_mode_held_back_changes_nothing_and_one_that_a_boot_brings_says_so() {
    let node = TestNode::new(A100, 1, None);
    node.faults()
        .update_gpu(0, |gpu| gpu.mig_activation = Some(ReturnCode::InUse))
        .unwrap();
    let result = node.change(MigWorkKind::Apply, &layout(&[FOUR]));
    let message = blocked_for(&result, MigReason::ModePending);
    assert!(message.contains("IN_USE") && message.contains("DCGM"), "{message}");
    assert_eq!((node.record().change, node.state().pending), (None, false));
    node.faults()
        .update_gpu(0, |gpu| gpu.mig_activation = Some(ReturnCode::ResetRequired))
        .unwrap();
    let result = node.change(MigWorkKind::Apply, &layout(&[FOUR]));
    let AttemptResult::RebootRequired { message } = result else {
        panic!("{result:?}")
    };
    assert!(
        message.contains("RESET_REQUIRED") && message.ends_with("reboot the node"),
        "{message}"
    );
    assert!(node.state().pending);
    node.faults().update_gpu(0, |gpu| gpu.mig_activation = None).unwrap();
    node.faults().reboot().unwrap();
    assert!(node.state().enabled);
    assert_eq!(node.change(MigWorkKind::Apply, &layout(&[FOUR])), AttemptResult::Done);
}

#[test]
#[ignore = "needs root: make test"]
fn persistence_mode_is_restored_after_a_kill_in_the_middle_of_a_mode_change() {
    let node = TestNode::new(A100, 1, None);
    let gpu = GpuAddress::of(&node.gpus()[0]);
    let library = node.roots.find().unwrap().library;
    restore_persistence(&library, &gpu).unwrap();
    assert_eq!(node.change(MigWorkKind::Apply, &layout(&[])), AttemptResult::Done);
    assert!(node.is_persistent() && !node.records().is_persistent(&gpu.uuid));
    // As the kill leaves it.
    node.faults().reboot().unwrap();
    assert!(!node.is_persistent());
    node.records().set_persistent(&gpu.uuid, true).unwrap();
    assert_eq!(node.change(MigWorkKind::Apply, &layout(&[FOUR])), AttemptResult::Done);
    assert!(node.is_persistent() && !node.records().is_persistent(&gpu.uuid));
}

#[test]
#[ignore = "needs root: make test"]
fn a_layout_is_made_again_after_a_boot_with_the_same_uuids() {
    for board in [A100, H100] {
        let node = TestNode::new(board, 1, None);
        let wanted = layout(&[TWO_AT_4, FOUR, ONE_AT_6]);
        assert_eq!(node.change(MigWorkKind::Apply, &wanted), AttemptResult::Done);
        let before = node.state();
        node.faults().reboot().unwrap();
        assert_eq!(node.state().enabled, board == A100);
        let applied = node.record().applied.unwrap();
        assert_eq!(applied, wanted, "in the order in which they were created");
        assert_eq!(node.change(MigWorkKind::Restore, &applied), AttemptResult::Done);
        assert_eq!(node.state(), before);
    }
}

#[test]
#[ignore = "needs root: make test"]
fn a_layout_that_does_not_come_back_is_not_forgotten() {
    let node = TestNode::new(H100, 1, None);
    let wanted = layout(&[TWO_AT_4, FOUR]);
    assert_eq!(node.change(MigWorkKind::Apply, &wanted), AttemptResult::Done);
    let refused = MigFailure {
        hash: "hash".to_owned(),
        attempts: 3,
        rolled_back: true,
        ..MigFailure::default()
    };
    let uuid = node.gpus()[0].uuid.clone();
    node.records()
        .update(&uuid, |record| record.failure = Some(refused.clone()))
        .unwrap();
    node.faults().reboot().unwrap();
    let create = "nvmlDeviceCreateGpuInstanceWithPlacement";
    node.faults().fail(0, create, ReturnCode::Unknown).unwrap();
    for attempts in 1..=4 {
        failed_with(node.change(MigWorkKind::Restore, &wanted));
        let record = node.record();
        let change = record.change.unwrap();
        assert!(change.restores && change.before == wanted, "{change:?}");
        assert_eq!(record.restore_failure.unwrap().attempts, attempts);
        assert_eq!(record.failure, Some(refused.clone()), "of another layout");
    }
    node.faults().clear_failure(0, create).unwrap();
    assert_eq!(node.change(MigWorkKind::Restore, &wanted), AttemptResult::Done);
    let record = node.record();
    assert_eq!((record.applied, record.change), (Some(wanted), None));
    assert_eq!((record.restore_failure, record.failure), (None, Some(refused)));
}

#[test]
#[ignore = "needs root: make test"]
fn nvidia_persistenced_lets_the_gpu_go_for_a_mode_change() {
    for root in ["", "driver/"] {
        let node = TestNode::new(A100, 1, None);
        // Where the agent's image has a link to.
        let socket = node.state_dir().join("nvidia-persistenced/socket");
        node.faults()
            .update_gpu(0, |gpu| gpu.persistenced = Some(socket))
            .unwrap();
        let minor = node.gpus()[0].minor.unwrap();
        node.add_process(9, "nvidia-persiste", &format!("/dev/nvidia{minor}"));
        let wanted = layout(&[FOUR]);
        let result = node.change(MigWorkKind::Apply, &wanted);
        let message = blocked_for(&result, MigReason::ModePending);
        assert!(
            message.ends_with("used by nvidia-persistenced (process 9); end it"),
            "{message}"
        );
        let folder = node.host.path().join(root).join("run/nvidia-persistenced");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("socket"), "").unwrap();
        assert_eq!(node.change(MigWorkKind::Apply, &wanted), AttemptResult::Done);
        let modes = node.faults().driver().unwrap().gpu(0);
        assert!(!modes.let_go && !modes.persistence, "as before: {modes:?}");
    }
}

#[test]
#[ignore = "needs root: make test"]
fn a_mode_that_does_not_change_is_set_once() {
    let node = TestNode::new(A100, 1, None);
    node.faults().update_gpu(0, |gpu| gpu.mig_mode_stays = true).unwrap();
    let message = failed_with(node.change(MigWorkKind::Apply, &layout(&[FOUR])));
    assert!(
        message.contains("answers SUCCESS, and the mode is as before"),
        "{message}"
    );
    let record = node.record();
    assert_eq!(
        (record.change, record.failure.map(|failure| failure.attempts)),
        (None, Some(1))
    );
}

#[test]
#[ignore = "needs root: make test"]
fn the_driver_of_a_display_and_another_agent_are_named_where_no_gpu_can_be_reset() {
    let node = TestNode::new(A100, 1, None);
    let handle = OpenHandle {
        program: "somebody".to_owned(),
        gpu_instance: None,
        compute_instance: None,
    };
    node.faults().set_open_handles(0, vec![handle]).unwrap();
    let refused = || match node.change(MigWorkKind::Apply, &layout(&[FOUR])) {
        AttemptResult::Blocked { message, .. } => message,
        other => panic!("{other:?}"),
    };
    let module = node.host.path().join("sys/module/nvidia_drm");
    fs::create_dir_all(module.join("parameters")).unwrap();
    fs::write(module.join("parameters/modeset"), "N\n").unwrap();
    fs::write(module.join("refcnt"), "0\n").unwrap();
    assert!(refused().contains("DCGM"));
    fs::write(module.join("refcnt"), "2\n").unwrap();
    assert!(refused().contains("kernel module nvidia_drm"), "{}", refused());
    let minor = node.gpus()[0].minor.unwrap();
    node.add_process(8, "gpunode-agent", &format!("/dev/nvidia{minor}"));
    assert!(
        refused().ends_with("used by gpunode-agent (process 8); end it"),
        "{}",
        refused()
    );
}

#[test]
#[ignore = "needs root: make test"]
fn an_old_driver_turns_mig_on_before_it_tells_profiles() {
    let node = TestNode::of_scenario(&format!(
        "{{node: n, board: {A100}, count: 1, topology: NVSwitch, driverVersion: 535.183.06}}"
    ));
    assert!(node.state().geometry.profiles.is_empty());
    let wanted = layout(&[FOUR, ONE_AT_6]);
    assert_eq!(node.change(MigWorkKind::Apply, &layout(&[])), AttemptResult::Done);
    assert_eq!(node.state().geometry.profiles.len(), 7);
    assert_eq!(node.change(MigWorkKind::Apply, &wanted), AttemptResult::Done);
    node.faults().reboot().unwrap();
    assert_eq!(node.change(MigWorkKind::Restore, &wanted), AttemptResult::Done);
}

#[test]
#[ignore = "needs root: make test"]
fn a_job_that_is_stopped_goes_on_in_another_agent() {
    let (node, _, wanted) = with_two_halves(A100);
    let before = node.state().layout();
    node.faults().delay(0, "nvmlGpuInstanceDestroy", 300).unwrap();
    let job = node.job(MigWorkKind::Apply, &wanted);
    let result = thread::scope(|scope| {
        let changing = scope.spawn(|| job.change(&mut node.records(), &node.roots.calls.begin().unwrap()));
        let start = Instant::now();
        while node.parts().is_none_or(|(_, compute)| compute == 2) {
            assert!(start.elapsed() < LIMIT);
            thread::yield_now();
        }
        job.stop.store(true, Ordering::Relaxed);
        changing.join().unwrap()
    });
    failed_with(result);
    let half = node.state();
    let is_new = |instance: &GpuInstance| instance.placed == wanted.instances[1];
    assert!(!half.instances.iter().any(is_new), "{half:?}");
    let record = node.record();
    assert_eq!((record.change.unwrap().before, record.failure), (before, None));
    assert_eq!(node.change(MigWorkKind::Apply, &wanted), AttemptResult::Done);
    assert_eq!(node.record().applied, Some(wanted));
}

#[test]
fn a_layout_is_remembered_without_the_driver() {
    let node = TestNode::new(A100, 1, Some("7g.80gb"));
    let seen = node.state().layout();
    let job = node.job(MigWorkKind::Remember, &seen);
    node.roots.calls.close();
    assert_eq!(job.remember(&mut node.records()), AttemptResult::Done);
    assert_eq!(node.record().applied, Some(seen));
}
