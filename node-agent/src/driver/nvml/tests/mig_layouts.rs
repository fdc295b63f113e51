//! Reads MIG of a GPU, and brings GPUs to layouts.

use super::*;
use gpunode_gpu::{GpuInstance, GpuLayout, GpuMigState, GpuVirtualization};
use gpunode_mig::{MigGeometry, PlacedInstance, SlicePlacement};
use gpunode_scenario::{GpuProcess, OpenHandle, ProcessKind, ReturnCode, StateFile};
use std::collections::BTreeSet;

const A100: &str = "NVIDIA A100-SXM4-80GB";
const H100: &str = "NVIDIA H100 80GB HBM3";

/// One GPU with the mode and the instances of the scenario.
fn driver(board: &str, mig: &str) -> FakeDriver {
    FakeDriver::new(&format!(
        "{{node: n, board: {board}, count: 1, topology: NVSwitch{mig}}}"
    ))
}

fn with_instances(board: &str, instances: &str) -> FakeDriver {
    driver(board, &format!(", mig: [{{gpus: [0], instances: [{instances}]}}]"))
}

fn faults(driver: &FakeDriver) -> StateFile {
    StateFile::open(driver.folder()).unwrap()
}

fn address(driver: &FakeDriver) -> GpuAddress {
    GpuAddress::of(&driver.read(Path::new("/nowhere")).inventory.gpus[0])
}

fn state(driver: &FakeDriver) -> GpuMigState {
    read_mig_state(&driver.library(), &address(driver)).unwrap().unwrap()
}

/// An instance of a profile of A100 and H100, by its name and first slice.
fn placed(geometry: &MigGeometry, name: &str, start: u32) -> PlacedInstance {
    let profile = geometry.profiles.iter().find(|profile| profile.name == name).unwrap();
    PlacedInstance {
        placement: SlicePlacement {
            start,
            size: profile.placements[0].size,
        },
        profile: profile.id,
    }
}

fn layout(geometry: &MigGeometry, instances: &[(&str, u32)]) -> GpuLayout {
    GpuLayout {
        enabled: true,
        instances: instances
            .iter()
            .map(|(name, start)| placed(geometry, name, *start))
            .collect(),
    }
}

/// Changes the layout; returns the steps.
fn change(driver: &FakeDriver, wanted: &GpuLayout) -> (Vec<String>, Result<ChangeEnd, MigChangeError>) {
    change_until(driver, wanted, usize::MAX)
}

/// Changes the layout as long as there are fewer steps.
fn change_until(
    driver: &FakeDriver,
    wanted: &GpuLayout,
    most: usize,
) -> (Vec<String>, Result<ChangeEnd, MigChangeError>) {
    let mut steps = Vec::new();
    let ended = change_layout(&driver.library(), &address(driver), wanted, |step| {
        if steps.len() == most {
            return ControlFlow::Break(());
        }
        steps.push(step.to_string());
        ControlFlow::Continue(())
    });
    (steps, ended)
}

fn uuid_at(state: &GpuMigState, start: u32) -> String {
    let mut instances = state.instances.iter();
    let found = instances.find(|instance| instance.placed.placement.start == start);
    found.unwrap().compute[0].uuid.clone().unwrap()
}

fn is_whole(state: &GpuMigState) -> bool {
    state.instances.iter().all(GpuInstance::is_whole)
}

#[test]
fn profiles_and_places_are_read_whether_mig_is_on_or_off() {
    let off = state(&driver(A100, ""));
    let on = state(&driver(A100, ", mig: [{gpus: [0]}]"));
    assert_eq!(
        (off.enabled, off.pending, on.enabled, on.pending),
        (false, false, true, true)
    );
    assert_eq!(off.geometry, on.geometry);
    assert_eq!((on.geometry.memory_slices, on.geometry.compute_slices), (8, 7));
    let profiles: Vec<_> = on
        .geometry
        .profiles
        .iter()
        .map(|profile| {
            (
                profile.name.as_str(),
                profile.id,
                profile.max_count,
                profile.placements.len(),
            )
        })
        .collect();
    let expected = [
        ("1g.10gb", 19, 7, 7),
        ("2g.20gb", 14, 3, 3),
        ("3g.40gb", 9, 2, 2),
        ("4g.40gb", 5, 1, 1),
        ("7g.80gb", 0, 1, 1),
        ("1g.20gb", 15, 4, 4),
        ("1g.10gb+me", 20, 1, 7),
    ];
    assert_eq!(profiles, expected);
    assert!(on.mode_needs_reset && !state(&driver(H100, "")).mode_needs_reset);
    let a30 = state(&FakeDriver::new(
        "{node: n, board: NVIDIA A30, count: 1, topology: Pcie}",
    ))
    .geometry;
    assert_eq!((a30.memory_slices, a30.compute_slices), (4, 4));
}

#[test]
fn instances_are_read_with_place_uuid_and_the_part_that_compute_instances_fill() {
    let driver = with_instances(A100, "4g.40gb, 1g.10gb, 1c.2g.20gb");
    let gpu = &driver.gpus_with_mig()[0];
    let state = gpu.mig_state.as_ref().unwrap();
    let found: Vec<_> = state
        .instances
        .iter()
        .map(|instance| (instance.placed, instance.is_whole()))
        .collect();
    let devices: BTreeMap<(u32, u32), &str> = gpu
        .mig_devices
        .iter()
        .map(|mig| {
            (
                (mig.facts.gpu_instance, mig.facts.compute_instance),
                mig.facts.uuid.as_str(),
            )
        })
        .collect();
    for instance in &state.instances {
        for compute in &instance.compute {
            assert_eq!(
                compute.uuid.as_deref(),
                devices.get(&(instance.id, compute.id)).copied()
            );
        }
    }
    assert_eq!(found.len(), devices.len(), "{found:?}");
    let whole: Vec<bool> = found.iter().map(|(_, is_whole)| *is_whole).collect();
    assert_eq!(whole.iter().filter(|is_whole| !**is_whole).count(), 1, "{found:?}");
}

#[test]
fn a_gpu_without_mig_and_a_driver_without_the_call_have_none() {
    let t4 = FakeDriver::new("{node: n, board: Tesla T4, count: 1, topology: Pcie}");
    assert!(read_mig_state(&t4.library(), &address(&t4)).unwrap().is_none());
    let old = driver(A100, "");
    let of_old = address(&old);
    let read = || read_mig_state(&old.library(), &of_old);
    faults(&old)
        .fail(0, "nvmlDeviceGetMigMode", ReturnCode::FunctionNotFound)
        .unwrap();
    assert!(read().unwrap().is_none());
    faults(&old)
        .fail(0, "nvmlDeviceGetMigMode", ReturnCode::Unknown)
        .unwrap();
    let error = read().unwrap_err().to_string();
    let start = format!(
        "read MIG on {}: nvmlDeviceGetMigMode answers UNKNOWN; see the kernel log",
        of_old.uuid
    );
    assert!(error.starts_with(&start), "{error}");
}

#[test]
fn virtual_machines_are_told() {
    for (scenario, virtualization) in [
        ("", GpuVirtualization::None),
        (", virtualization: Passthrough", GpuVirtualization::Passthrough),
        (", virtualization: Vgpu", GpuVirtualization::Virtual),
        (", virtualization: HostVgpu", GpuVirtualization::Virtual),
    ] {
        assert_eq!(
            state(&driver(A100, scenario)).virtualization,
            virtualization,
            "{scenario}"
        );
    }
}

#[test]
fn processes_count_on_their_instance_alone_and_a_list_without_answer_is_no_empty_one() {
    let driver = with_instances(A100, "3g.40gb, 3g.40gb");
    let [first, second] = [0, 1].map(|place: usize| state(&driver).instances[place].id);
    let process = |pid, kind, instance| GpuProcess {
        pid,
        memory_mib: 1,
        kind,
        instance,
    };
    let processes = vec![
        process(7, ProcessKind::Compute, Some((first, 0))),
        process(8, ProcessKind::Mps, Some((second, 0))),
        process(9, ProcessKind::Compute, None),
    ];
    faults(&driver).set_processes(0, processes).unwrap();
    let gpu = address(&driver);
    let pids = |instances: Option<&[u32]>| {
        let instances = instances.map(|ids| ids.iter().copied().collect::<BTreeSet<u32>>());
        pids_on(&driver.library(), &gpu, instances.as_ref())
    };
    assert_eq!(pids(Some(&[first])).unwrap(), [7].into());
    assert_eq!(pids(Some(&[second])).unwrap(), [8].into());
    assert_eq!(pids(None).unwrap(), [7, 8, 9].into());
    faults(&driver)
        .fail(0, "nvmlDeviceGetMPSComputeRunningProcesses", ReturnCode::Unknown)
        .unwrap();
    let error = pids(Some(&[first])).unwrap_err().to_string();
    let start = format!(
        "list the processes on {}: nvmlDeviceGetMPSComputeRunningProcesses_v3 answers UNKNOWN",
        gpu.uuid
    );
    assert!(error.starts_with(&start), "{error}");
}

#[test]
#[ignore = "needs root: make test"]
fn what_stays_keeps_its_uuid_while_the_rest_changes() {
    let driver = with_instances(A100, "4g.40gb, 1g.10gb, 1g.10gb, 1g.10gb");
    let before = state(&driver);
    let wanted = layout(&before.geometry, &[("4g.40gb", 0), ("1g.10gb", 6), ("2g.20gb", 4)]);
    let (steps, ended) = change(&driver, &wanted);
    assert!(matches!(ended, Ok(ChangeEnd::Done)), "{ended:?}");
    let after = state(&driver);
    for start in [0, 6] {
        assert_eq!(uuid_at(&after, start), uuid_at(&before, start));
    }
    assert!(is_whole(&after), "{after:?}");
    assert_eq!(steps.len(), 6, "two instances of two parts go, one comes: {steps:?}");
    assert_eq!(
        change(&driver, &wanted).0,
        Vec::<String>::new(),
        "nothing is left to do"
    );
}

#[test]
#[ignore = "needs root: make test"]
fn a_change_that_ends_between_any_two_steps_goes_on_from_there() {
    let after_steps = |most: usize| {
        let driver = with_instances(A100, "3g.40gb, 2g.20gb, 1c.2g.20gb");
        let wanted = layout(
            &state(&driver).geometry,
            &[("1g.10gb", 6), ("3g.40gb", 0), ("1g.10gb", 4)],
        );
        let (first, ended) = change_until(&driver, &wanted, most);
        let (rest, done) = change(&driver, &wanted);
        assert!(matches!(done, Ok(ChangeEnd::Done)), "{most}: {done:?}");
        let mut instances = wanted.instances;
        instances.sort_unstable();
        assert_eq!(state(&driver).layout().instances, instances, "{most}");
        assert!(is_whole(&state(&driver)), "{most}");
        ([first, rest].concat(), matches!(ended, Ok(ChangeEnd::Done)))
    };
    let (all, _) = after_steps(usize::MAX);
    assert!(all.len() >= 8, "{all:?}");
    for most in 0..=all.len() {
        assert_eq!(after_steps(most), (all.clone(), most == all.len()));
    }
}

#[test]
#[ignore = "needs root: make test"]
fn of_compute_instances_that_fill_an_instance_the_largest_is_created() {
    let driver = driver(A100, ", mig: [{gpus: [0]}]");
    let geometry = state(&driver).geometry;
    for (name, start) in [
        ("1g.10gb", 0),
        ("1g.10gb+me", 1),
        ("1g.20gb", 2),
        ("2g.20gb", 4),
        ("7g.80gb", 0),
    ] {
        let (_, ended) = change(&driver, &layout(&geometry, &[(name, start)]));
        assert!(matches!(ended, Ok(ChangeEnd::Done)), "{name}: {ended:?}");
        let devices = driver.read(Path::new("/nowhere")).inventory.gpus[0].mig_devices.clone();
        let profiles: Vec<_> = devices.iter().map(|mig| mig.facts.profile.as_str()).collect();
        assert_eq!(profiles, [name]);
    }
}

#[test]
#[ignore = "needs root: make test"]
fn of_compute_instances_with_one_slice_the_one_with_most_multiprocessors_fills_an_instance() {
    let driver = with_instances(H100, "1c.1g.20gb");
    let multiprocessors = || {
        let devices = driver.read(Path::new("/nowhere")).inventory.gpus[0].mig_devices.clone();
        devices.iter().map(|mig| mig.facts.multiprocessors).collect::<Vec<_>>()
    };
    assert_eq!(multiprocessors(), [Some(16)]);
    let before = state(&driver);
    assert!(!is_whole(&before), "others may have the rest");
    let (steps, ended) = change(&driver, &layout(&before.geometry, &[("1g.20gb", 0)]));
    assert!(matches!(ended, Ok(ChangeEnd::Done)), "{steps:?}: {ended:?}");
    assert_eq!((multiprocessors(), is_whole(&state(&driver))), (vec![Some(26)], true));
}

#[test]
fn a_mig_device_that_has_just_gone_does_not_keep_the_rest_from_being_read() {
    let driver = with_instances(A100, "1g.10gb, 3g.40gb");
    for call in ["nvmlDeviceGetUUID", "nvmlDeviceGetGpuInstanceId"] {
        for code in [ReturnCode::NotFound, ReturnCode::InvalidArgument] {
            faults(&driver).fail_mig(0, 1, call, code).unwrap();
            let state = read_mig_state(&driver.library(), &address(&driver)).unwrap().unwrap();
            let uuids = state.instances.iter().flat_map(|instance| &instance.compute);
            let told: Vec<bool> = uuids.map(|compute| compute.uuid.is_some()).collect();
            assert_eq!(
                told.iter().filter(|told| **told).count(),
                1,
                "{call} {code:?}: {told:?}"
            );
        }
        faults(&driver).fail_mig(0, 1, call, ReturnCode::Unknown).unwrap();
        assert!(read_mig_state(&driver.library(), &address(&driver)).is_err());
        faults(&driver).clear_mig_failures(0).unwrap();
    }
}

#[test]
fn the_most_instances_of_an_a30_are_those_of_its_board() {
    let driver = FakeDriver::new("{board: NVIDIA A30, count: 1, topology: Pcie}");
    let most = state(&driver).geometry.profiles.into_iter();
    let most: Vec<_> = most.map(|profile| (profile.name, profile.max_count)).collect();
    let expected = [
        ("1g.6gb", 4),
        ("2g.12gb", 2),
        ("4g.24gb", 1),
        ("1g.6gb+me", 1),
        ("2g.12gb+me", 1),
    ];
    assert_eq!(most, expected.map(|(name, count)| (name.to_owned(), count)));
}

#[test]
#[ignore = "needs root: make test"]
fn the_mode_of_each_generation_changes_and_persistence_is_as_before() {
    for (board, keeps_persistence) in [(A100, true), (A100, false), (H100, true)] {
        let driver = driver(board, "");
        let gpu = address(&driver);
        if keeps_persistence {
            restore_persistence(&driver.library(), &gpu).unwrap();
        }
        driver.state("gpus: {0: {minorAfterMode: 20}}");
        let wanted = layout(&state(&driver).geometry, &[("7g.80gb", 0)]);
        let (steps, ended) = change(&driver, &wanted);
        assert!(matches!(ended, Ok(ChangeEnd::Done)), "{board}: {ended:?}");
        assert_eq!(steps[0], "turn MIG on");
        assert_eq!(has_persistence(&driver.library(), &gpu).unwrap(), keeps_persistence);
        let read = driver.read(Path::new("/nowhere")).inventory.gpus[0].clone();
        let is_reset = board == A100;
        assert_eq!(
            read.minor == Some(20),
            is_reset,
            "{board}: its node may have another name"
        );
        let (steps, ended) = change(&driver, &GpuLayout::default());
        assert!(matches!(ended, Ok(ChangeEnd::Done)), "{board}: {ended:?}");
        assert_eq!(steps.last().unwrap(), "turn MIG off");
        assert_eq!(has_persistence(&driver.library(), &gpu).unwrap(), keeps_persistence);
    }
}

#[test]
#[ignore = "needs root: make test"]
fn a_mode_that_is_held_back_is_set_back_and_waits_for_a_boot_only_where_that_helps() {
    let status = |activation: &str| {
        let driver = driver(A100, "");
        let gpu = address(&driver);
        restore_persistence(&driver.library(), &gpu).unwrap();
        driver.state(&format!("gpus: {{0: {activation}}}"));
        let (_, ended) = change(
            &driver,
            &GpuLayout {
                enabled: true,
                ..GpuLayout::default()
            },
        );
        assert!(has_persistence(&driver.library(), &gpu).unwrap(), "{activation}");
        let state = state(&driver);
        assert!(!state.enabled, "{activation}");
        (ended, state.pending)
    };
    let (ended, pending) = status("{openHandles: [{program: dcgm}]}");
    assert!(
        matches!(
            ended,
            Ok(ChangeEnd::ModeInUse {
                status: NvmlError::InUse
            })
        ),
        "{ended:?}"
    );
    assert!(!pending, "the next reset would turn MIG on");
    let (ended, pending) = status("{migActivation: RESET_REQUIRED}");
    let needs_reset = matches!(
        ended,
        Ok(ChangeEnd::ModePending {
            status: NvmlError::ResetRequired
        })
    );
    assert!(needs_reset && pending, "{ended:?}");
    let (ended, pending) = status("{migActivation: UNKNOWN}");
    let error = ended.unwrap_err().to_string();
    assert!(error.contains("nvmlDeviceSetMigMode answers UNKNOWN"), "{error}");
    assert!(!pending);
}

#[test]
#[ignore = "needs root: make test"]
fn an_error_names_step_gpu_call_and_answer_and_what_to_do() {
    for (call, answer, step, advice) in [
        (
            "nvmlDeviceCreateGpuInstanceWithPlacement",
            ReturnCode::InsufficientResources,
            "create a GPU instance of profile 0 at slice 0",
            "INSUFFICIENT_RESOURCES; another program has an instance there",
        ),
        (
            "nvmlGpuInstanceCreateComputeInstance",
            ReturnCode::NotSupported,
            "create the compute instance of GPU instance 0",
            "NOT_SUPPORTED; another program has changed MIG",
        ),
        (
            "nvmlGpuInstanceDestroy",
            ReturnCode::NoPermission,
            "destroy GPU instance",
            "NO_PERMISSION; the agent's container must be privileged",
        ),
        (
            "nvmlComputeInstanceDestroy",
            ReturnCode::Unknown,
            "destroy compute instance 0 of GPU instance",
            "UNKNOWN; see the kernel log",
        ),
        (
            "nvmlGpuInstanceDestroy",
            ReturnCode::InUse,
            "destroy GPU instance",
            "IN_USE",
        ),
    ] {
        let driver = with_instances(A100, "3g.40gb");
        faults(&driver).fail(0, call, answer).unwrap();
        let wanted = layout(&state(&driver).geometry, &[("7g.80gb", 0)]);
        let error = change(&driver, &wanted).1.unwrap_err().to_string();
        assert!(error.starts_with(step), "{error}");
        let rest = format!(" on {}: {call} answers {advice}", address(&driver).uuid);
        assert!(error.contains(&rest), "{error}");
    }
}

#[test]
#[ignore = "needs root: make test"]
fn a_leaked_handle_keeps_an_instance_until_it_is_gone() {
    let driver = with_instances(A100, "3g.40gb, 3g.40gb");
    let before = state(&driver);
    let handle = OpenHandle {
        program: "dcgm".to_owned(),
        gpu_instance: Some(before.instances[0].id),
        compute_instance: None,
    };
    faults(&driver).set_open_handles(0, vec![handle]).unwrap();
    let wanted = layout(&before.geometry, &[("3g.40gb", 4), ("2g.20gb", 0)]);
    let (_, ended) = change(&driver, &wanted);
    let is_in_use = |error: &MigChangeError| {
        matches!(
            error,
            MigChangeError::Call {
                source: NvmlError::InUse,
                ..
            }
        )
    };
    assert!(ended.as_ref().is_err_and(is_in_use), "{ended:?}");
    assert_eq!(uuid_at(&state(&driver), 4), uuid_at(&before, 4));
    faults(&driver).set_open_handles(0, Vec::new()).unwrap();
    let (_, ended) = change(&driver, &wanted);
    assert!(matches!(ended, Ok(ChangeEnd::Done)), "{ended:?}");
    assert_eq!(uuid_at(&state(&driver), 4), uuid_at(&before, 4));
}

#[test]
#[ignore = "needs root: make test"]
fn a_layout_comes_back_after_a_boot_with_the_same_uuids() {
    let driver = with_instances(A100, "");
    let geometry = state(&driver).geometry;
    let wanted = layout(&geometry, &[("2g.20gb", 4), ("1g.10gb", 0), ("1g.10gb", 6)]);
    assert!(matches!(change(&driver, &wanted).1, Ok(ChangeEnd::Done)));
    let before = state(&driver);
    faults(&driver).reboot().unwrap();
    assert_eq!(state(&driver).instances, Vec::new());
    assert!(matches!(change(&driver, &wanted).1, Ok(ChangeEnd::Done)));
    assert_eq!(state(&driver), before);
}
