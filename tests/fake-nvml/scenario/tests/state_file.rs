//! Changes to the state file.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{fs, thread};

use gpunode_scenario::{
    ComputeMode, DriverState, GpuProcess, GpuState, MigGroup, MigState, OpenHandle, ProcessKind, RecoveryAction,
    ReturnCode, STATE_FILE, Scenario, State, StateError, StateFile, Topology,
};

fn node() -> (tempfile::TempDir, StateFile) {
    let dir = tempfile::tempdir().unwrap();
    Scenario::new("n", "Tesla T4", 2, Topology::Pcie)
        .save(dir.path())
        .unwrap();
    let state = StateFile::open(dir.path()).unwrap();
    (dir, state)
}

#[test]
fn concurrent_changes_are_all_kept() {
    let (_dir, state) = node();
    thread::scope(|scope| {
        for gpu in 0..2 {
            for _ in 0..4 {
                let state = &state;
                scope.spawn(move || {
                    for xid in 0..10 {
                        state.inject_xid(gpu, xid).unwrap();
                    }
                });
            }
        }
    });
    let now = state.read().unwrap();
    assert_eq!(now.last_event, 80);
    assert_eq!(now.gpu(0).xids.len(), 40);
    assert_eq!(now.gpu(1).xids.len(), 40);
    assert!(now.gpu(0).xids.windows(2).all(|pair| pair[0].id < pair[1].id));
}

#[test]
fn faults_come_and_go() {
    let (_dir, state) = node();
    assert_eq!(state.read().unwrap(), State::default());
    state.fail(1, "nvmlDeviceGetMemoryInfo", ReturnCode::Unknown).unwrap();
    state.lose(0).unwrap();
    let now = state.read().unwrap();
    assert!(now.gpu(0).lost);
    assert_eq!(
        now.gpu(1).failure("nvmlDeviceGetMemoryInfo_v2"),
        Some(ReturnCode::Unknown)
    );
    state.clear_failure(1, "nvmlDeviceGetMemoryInfo").unwrap();
    state.restore(0).unwrap();
    let now = state.read().unwrap();
    assert!(!now.gpu(0).lost);
    assert!(now.gpu(1).failing.is_empty());
}

#[test]
fn repaired_gpu_keeps_its_work_and_its_xids_alone() {
    let (_dir, state) = node();
    let work = GpuProcess {
        pid: 7,
        memory_mib: 900,
        kind: ProcessKind::Compute,
        instance: None,
    };
    state.set_processes(0, vec![work.clone()]).unwrap();
    let event = state
        .inject_xid_with_recovery(0, 79, RecoveryAction::NodeReboot)
        .unwrap();
    state.lose(0).unwrap();
    state.fail(0, "nvmlDeviceGetMemoryInfo", ReturnCode::Unknown).unwrap();
    state
        .update_gpu(0, |gpu| (gpu.links_down, gpu.row_remap.pending) = (vec![0], true))
        .unwrap();

    state.repair(0).unwrap();
    let gpu = state.read().unwrap().gpu(0);
    assert_eq!(gpu.xids.iter().map(|xid| xid.id).collect::<Vec<_>>(), [event]);
    let expected = GpuState {
        xids: gpu.xids.clone(),
        processes: vec![work],
        ..GpuState::default()
    };
    assert_eq!(gpu, expected);
}

#[test]
fn mistakes_are_refused() {
    let (dir, state) = node();
    let unknown = state.fail(0, "nvmlDeviceGetMemory", ReturnCode::Unknown);
    assert!(matches!(unknown, Err(StateError::UnknownFunction(name)) if name == "nvmlDeviceGetMemory"));
    assert!(matches!(
        state.lose(2),
        Err(StateError::UnknownGpu { index: 2, count: 2 })
    ));

    fs::write(dir.path().join(STATE_FILE), "gpus: {0: {lots: true}}").unwrap();
    let Err(StateError::Parse { source, .. }) = state.read() else {
        panic!("an unknown field is no state");
    };
    assert!(source.to_string().contains("unknown field `lots`"), "{source}");
}

#[test]
fn return_codes_are_names_or_numbers() {
    let (dir, state) = node();
    fs::write(
        dir.path().join(STATE_FILE),
        "gpus: {0: {failing: {nvmlDeviceGetName: NVML_ERROR_TIMEOUT, nvmlDeviceGetUUID: IN_USE, \
         nvmlDeviceGetIndex: 31}}}",
    )
    .unwrap();
    let gpu = state.read().unwrap().gpu(0);
    assert_eq!(gpu.failure("nvmlDeviceGetName"), Some(ReturnCode::Timeout));
    assert_eq!(gpu.failure("nvmlDeviceGetUUID"), Some(ReturnCode::InUse));
    assert_eq!(gpu.failure("nvmlDeviceGetIndex"), Some(ReturnCode::Other(31)));
}

#[test]
fn what_programs_set_lasts_until_a_reboot() {
    let (dir, state) = node();
    state.lose(1).unwrap();
    DriverState::update_gpu(dir.path(), 1, |modes| modes.compute_mode = ComputeMode::Prohibited).unwrap();
    DriverState::update_gpu(dir.path(), 0, |modes| modes.persistence = true).unwrap();
    let driver = state.driver().unwrap();
    assert_eq!(
        (driver.gpu(1).compute_mode, driver.gpu(0).persistence),
        (ComputeMode::Prohibited, true)
    );
    state.reboot().unwrap();
    assert_eq!(state.driver().unwrap(), DriverState::default());
    assert!(state.read().unwrap().gpu(1).lost, "a broken GPU is not mended by it");
}

fn divided(board: &str) -> (tempfile::TempDir, StateFile, Scenario) {
    let dir = tempfile::tempdir().unwrap();
    let mut scenario = Scenario::new("n", board, 2, Topology::NvSwitch);
    scenario.mig = vec![MigGroup {
        gpus: vec![0, 1],
        instances: vec!["1g.10gb".to_owned()],
    }];
    scenario.save(dir.path()).unwrap();
    let state = StateFile::open(dir.path()).unwrap();
    (dir, state, scenario)
}

/// For each GPU the number of its MIG devices; none with the mode off.
fn devices(state: &StateFile, scenario: &Scenario) -> Vec<Option<usize>> {
    let driver = state.driver().unwrap();
    let gpus = scenario.gpus().unwrap().into_iter();
    gpus.map(|gpu| driver.divided(&gpu))
        .map(|gpu| gpu.mig.as_ref().map(|_| gpu.mig_devices().count()))
        .collect()
}

#[test]
fn a_boot_leaves_no_instance_that_a_program_created_and_the_mode_before_hopper_alone() {
    for (board, after) in [("NVIDIA A100-SXM4-80GB", Some(0)), ("NVIDIA H100 80GB HBM3", None)] {
        let (dir, state, scenario) = divided(board);
        let gpu = scenario.gpus().unwrap().remove(1);
        let profile = gpu.board.mig_profiles().remove(0);
        let create = |mig: &mut MigState| mig.create_instance(gpu.board, &profile, None);
        DriverState::update_mig(dir.path(), &gpu, create).unwrap().unwrap();
        state.reboot().unwrap();
        assert_eq!(devices(&state, &scenario), [Some(1), after], "{board}");
        state.reboot().unwrap();
        assert_eq!(devices(&state, &scenario), [Some(1), after], "{board}");
    }
}

#[test]
fn the_instances_of_the_scenario_outlive_a_boot_unless_it_says_otherwise() {
    let (dir, state, mut scenario) = divided("NVIDIA A100-SXM4-80GB");
    state.reboot().unwrap();
    assert_eq!(devices(&state, &scenario), [Some(1), Some(1)]);
    scenario.divided_at_boot = false;
    scenario.save(dir.path()).unwrap();
    assert_eq!(devices(&state, &scenario), [Some(1), Some(1)]);
    state.reboot().unwrap();
    assert_eq!(devices(&state, &scenario), [Some(0), Some(0)]);
}

#[test]
fn a_reset_ends_instances_and_their_users_and_no_others() {
    let (_dir, state, scenario) = divided("NVIDIA H100 80GB HBM3");
    let monitor = || OpenHandle {
        program: "dcgm".to_owned(),
        gpu_instance: Some(13),
        compute_instance: None,
    };
    for gpu in [0, 1] {
        state.set_open_handles(gpu, vec![monitor()]).unwrap();
    }
    state.reset_gpu(0).unwrap();
    assert_eq!(devices(&state, &scenario), [Some(0), Some(1)]);
    let now = state.read().unwrap();
    assert!(now.gpu(0).open_handles.is_empty());
    assert_eq!(now.gpu(1).open_handles, [monitor()]);
    assert!(now.gpu(1).uses_instance(13, None) && !now.gpu(1).uses_instance(13, Some(0)));
    assert!(matches!(
        state.reset_gpu(2),
        Err(StateError::UnknownGpu { index: 2, count: 2 })
    ));
    state.reboot().unwrap();
    assert!(state.read().unwrap().gpu(1).open_handles.is_empty());
}

#[test]
fn a_change_that_fails_leaves_the_gpu_as_the_scenario_has_it() {
    let (dir, state, scenario) = divided("NVIDIA A100-SXM4-80GB");
    let gpu = scenario.gpus().unwrap().remove(0);
    let refused = DriverState::update_mig(dir.path(), &gpu, |mig| {
        mig.set_mode(false);
        Err::<(), _>(ReturnCode::InUse)
    });
    assert_eq!(refused.unwrap(), Err(ReturnCode::InUse));
    assert_eq!(state.driver().unwrap(), DriverState::default());
}
