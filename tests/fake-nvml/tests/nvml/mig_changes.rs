//! MIG modes and instances that programs change.

use std::time::{Duration, Instant};

use gpunode_scenario::{
    GpuProcess, MigGroup, MigUuids, OpenHandle, ProcessKind, ReturnCode, Scenario, Topology, Virtualization,
};
use nvml_wrapper::{Device, Nvml, error::NvmlError};

use crate::{
    modes::another_process,
    node::TestNode,
    raw::{Answer, RawEventSet},
    raw_mig,
    thread::as_nobody,
};

const A100: &str = "NVIDIA A100-SXM4-80GB";
const H100: &str = "NVIDIA H100 80GB HBM3";
/// Ids of GPU instance profiles of A100 and H100.
const ONE: u32 = 19;
const TWO: u32 = 14;
const THREE: u32 = 9;
const FOUR: u32 = 5;
/// Ids of compute instance profiles.
const ONE_SLICE: u32 = 0;
const TWO_SLICES: u32 = 1;
const THREE_SLICES: u32 = 2;

const IN_USE: Result<(), u32> = Err(19);
const INSUFFICIENT_RESOURCES: u32 = 23;
const INVALID_ARGUMENT: u32 = 2;
const NOT_SUPPORTED: u32 = 3;

fn scenario(board: &str, instances: &[&str]) -> Scenario {
    let mut scenario = Scenario::new("test", board, 2, Topology::NvSwitch);
    scenario.mig = vec![MigGroup {
        gpus: vec![0],
        instances: instances.iter().map(|name| (*name).to_owned()).collect(),
    }];
    scenario
}

/// Two GPUs, of which the first has MIG on and these instances.
fn node(board: &str, instances: &[&str]) -> TestNode {
    TestNode::with(&scenario(board, instances))
}

/// Creates a GPU instance with one compute instance of a profile; returns the id.
fn create(nvml: &Nvml, gpu: &Device, profile: u32, compute: u32) -> Answer<u32> {
    let instance = raw_mig::create(nvml, gpu, profile, None)?;
    raw_mig::create_compute(nvml, instance, compute, None)?;
    let found = (0..7).filter_map(|index| gpu.mig_device_by_index(index).ok());
    let mut ids = found.filter_map(|device| Some(raw_mig::instance_ids(nvml, &device).ok()?.0));
    let handle = |id: &u32| raw_mig::gpu_instance_handle(nvml, gpu, *id) == Ok(instance);
    Ok(ids.find(handle).unwrap())
}

/// Destroys a GPU instance with one compute instance.
fn destroy(nvml: &Nvml, gpu: &Device, id: u32) -> Answer<()> {
    let instance = raw_mig::gpu_instance_handle(nvml, gpu, id)?;
    raw_mig::destroy_compute(nvml, raw_mig::compute_instance_handle(nvml, gpu, id, 0)?)?;
    raw_mig::destroy(nvml, instance)
}

/// Names of the profiles of the MIG devices.
fn devices(gpu: &Device) -> Vec<String> {
    let devices = (0..7).map_while(|index| gpu.mig_device_by_index(index).ok());
    devices
        .map(|device| device.name().unwrap().rsplit(' ').next().unwrap().to_owned())
        .collect()
}

/// Current and pending mode.
fn mode(gpu: &Device) -> (u32, u32) {
    let mode = gpu.mig_mode().unwrap();
    (mode.current, mode.pending)
}

fn monitor(gpu_instance: Option<u32>, compute_instance: Option<u32>) -> OpenHandle {
    OpenHandle {
        program: "dcgm".to_owned(),
        gpu_instance,
        compute_instance,
    }
}

#[test]
#[ignore = "needs root: make test"]
fn instances_are_shared_and_outlive_the_process_that_creates_them() {
    let node = node(A100, &[]);
    let gpu = node.device(0);
    let other = another_process(&node);
    let gpu_there = other.device_by_index(0).unwrap();
    let instance = raw_mig::create(&other, &gpu_there, THREE, Some((0, 4))).unwrap();
    assert!(devices(&gpu).is_empty(), "a GPU instance alone is no MIG device");
    assert_eq!(raw_mig::gpu_instance(node.nvml(), &gpu, 1).unwrap(), (1, THREE, 0, 4));
    raw_mig::create_compute(&other, instance, THREE_SLICES, None).unwrap();
    let uuid = gpu_there.mig_device_by_index(0).unwrap().uuid().unwrap();
    drop(other);

    assert_eq!(devices(&gpu), ["3g.40gb"]);
    let device = node.nvml().device_by_uuid(uuid.as_str()).unwrap();
    assert_eq!(raw_mig::instance_ids(node.nvml(), &device), Ok((1, 0)));
    assert_eq!(device.attributes().unwrap().multiprocessor_count, 42);
    let driver = node.state().driver().unwrap();
    assert_eq!(driver.mig[&0].instances[0].compute_instances[0].uuid, uuid);
    assert_eq!(mode(&node.device(1)), (0, 0));
}

#[test]
#[ignore = "needs root: make test"]
fn an_instance_takes_a_free_place_of_its_own() {
    let node = node(A100, &["3g.40gb"]);
    let (nvml, gpu) = (node.nvml(), node.device(0));
    let create = |profile, place| raw_mig::create(nvml, &gpu, profile, place).map(drop);
    assert_eq!(raw_mig::gpu_instances(nvml, &gpu, THREE), Ok(vec![(1, THREE, 0, 4)]));
    assert_eq!(
        [ONE, TWO, THREE, FOUR].map(|id| raw_mig::remaining(nvml, &gpu, id)),
        [Ok(3), Ok(1), Ok(1), Ok(0)]
    );
    assert_eq!(create(FOUR, None), Err(INSUFFICIENT_RESOURCES));
    assert_eq!(create(TWO, Some((2, 2))), Err(INSUFFICIENT_RESOURCES));
    assert_eq!(create(TWO, Some((5, 2))), Err(INVALID_ARGUMENT));
    assert_eq!(create(TWO, Some((4, 1))), Err(INVALID_ARGUMENT));
    assert_eq!(create(4, None), Err(INVALID_ARGUMENT), "4 is a kind, and no profile id");
    assert_eq!(create(TWO, Some((4, 2))), Ok(()));
    // Beside the running 3g, which keeps its UUID and handle.
    assert_eq!(raw_mig::gpu_instance(nvml, &gpu, 5), Ok((5, TWO, 4, 2)));
    let second = raw_mig::gpu_instance_handle(nvml, &gpu, 5).unwrap();
    assert_eq!(raw_mig::remaining_compute(nvml, second, ONE_SLICE), Ok(2));
    raw_mig::create_compute(nvml, second, ONE_SLICE, Some((1, 1))).unwrap();
    assert_eq!(raw_mig::remaining_compute(nvml, second, ONE_SLICE), Ok(1));
    let whole = raw_mig::create_compute(nvml, second, TWO_SLICES, None);
    assert_eq!(whole, Err(INSUFFICIENT_RESOURCES));
    assert_eq!(devices(&gpu), ["3g.40gb", "1c.2g.20gb"]);
}

#[test]
#[ignore = "needs root: make test"]
fn ids_are_used_again_and_old_handles_name_nothing() {
    let node = node(A100, &[]);
    let (nvml, gpu) = (node.nvml(), node.device(0));
    let id = create(nvml, &gpu, TWO, TWO_SLICES).unwrap();
    let instance = raw_mig::gpu_instance_handle(nvml, &gpu, id).unwrap();
    let device = gpu.mig_device_by_index(0).unwrap();
    let uuid = device.uuid().unwrap();
    assert_eq!(raw_mig::destroy(nvml, instance), IN_USE, "it has a compute instance");
    destroy(nvml, &gpu, id).unwrap();
    assert!(matches!(device.uuid(), Err(NvmlError::InvalidArg)));
    assert!(matches!(nvml.device_by_uuid(uuid.as_str()), Err(NvmlError::NotFound)));

    assert_eq!(create(nvml, &gpu, TWO, TWO_SLICES), Ok(id));
    assert!(matches!(device.uuid(), Err(NvmlError::InvalidArg)));
    assert_eq!(raw_mig::destroy(nvml, instance), Err(INVALID_ARGUMENT));
    assert_eq!(gpu.mig_device_by_index(0).unwrap().uuid().unwrap(), uuid);
}

#[test]
#[ignore = "needs root: make test"]
fn boards_whose_uuids_do_not_come_back_give_new_ones() {
    let mut scenario = scenario(H100, &["1g.10gb"]);
    scenario.mig_uuids = MigUuids::New;
    let node = TestNode::with(&scenario);
    let (nvml, gpu) = (node.nvml(), node.device(0));
    let uuid = || gpu.mig_device_by_index(0).unwrap().uuid().unwrap();
    let mut seen = vec![uuid()];
    for _ in 0..3 {
        let (id, _) = raw_mig::instance_ids(nvml, &gpu.mig_device_by_index(0).unwrap()).unwrap();
        destroy(nvml, &gpu, id).unwrap();
        create(nvml, &gpu, ONE, ONE_SLICE).unwrap();
        assert!(!seen.contains(&uuid()), "{seen:?}");
        seen.push(uuid());
    }
}

#[test]
#[ignore = "needs root: make test"]
fn an_instance_in_use_stays() {
    let node = node(A100, &["1g.10gb", "2g.20gb", "3g.40gb"]);
    let (nvml, gpu, state) = (node.nvml(), node.device(0), node.state());
    let [large, middle, small] = [0, 1, 2].map(|index| {
        let device = gpu.mig_device_by_index(index).unwrap();
        raw_mig::instance_ids(nvml, &device).unwrap().0
    });
    let work = GpuProcess {
        pid: 4711,
        memory_mib: 900,
        kind: ProcessKind::Compute,
        instance: Some((small, 0)),
    };
    state.set_processes(0, vec![work]).unwrap();
    // A handle of the GPU instance alone, which lets its compute instance go.
    state.set_open_handles(0, vec![monitor(Some(middle), None)]).unwrap();
    assert_eq!(destroy(nvml, &gpu, small), IN_USE);
    assert_eq!(destroy(nvml, &gpu, middle), IN_USE);
    destroy(nvml, &gpu, large).unwrap();
    assert_eq!(devices(&gpu), ["1g.10gb"]);

    // The process ends; the monitor has leaked its handle, until it is restarted.
    state.set_processes(0, Vec::new()).unwrap();
    destroy(nvml, &gpu, small).unwrap();
    let instance = raw_mig::gpu_instance_handle(nvml, &gpu, middle).unwrap();
    assert_eq!(raw_mig::destroy(nvml, instance), IN_USE);
    state.set_open_handles(0, Vec::new()).unwrap();
    assert_eq!(raw_mig::destroy(nvml, instance), Ok(()));
}

#[test]
fn processes_are_told_with_their_instance_and_by_their_mig_device() {
    let node = node(A100, &["1g.10gb", "2g.20gb"]);
    let gpu = node.device(0);
    let [first, second] = [0, 1].map(|index| gpu.mig_device_by_index(index).unwrap());
    let (id, _) = raw_mig::instance_ids(node.nvml(), &second).unwrap();
    let work = GpuProcess {
        pid: 4711,
        memory_mib: 900,
        kind: ProcessKind::Compute,
        instance: Some((id, 0)),
    };
    node.state().set_processes(0, vec![work]).unwrap();
    for device in [&gpu, &second] {
        let found = device.running_compute_processes().unwrap();
        let found = found.iter().map(|process| (process.pid, process.gpu_instance_id));
        assert_eq!(found.collect::<Vec<_>>(), [(4711, Some(id))]);
    }
    assert!(first.running_compute_processes().unwrap().is_empty());
    node.state().set_sm_percent(0, 4711, 50).unwrap();
    for device in [&gpu, &second] {
        let samples = device.process_utilization_stats(0);
        assert!(
            matches!(samples, Err(NvmlError::NotSupported | NvmlError::InvalidArg)),
            "{samples:?}"
        );
    }
    let mut host = scenario(A100, &["1g.10gb"]);
    host.virtualization = Virtualization::HostVgpu;
    let host = TestNode::with(&host);
    let part = host
        .device(0)
        .mig_device_by_index(0)
        .unwrap()
        .running_compute_processes();
    assert!(
        matches!(part, Err(NvmlError::NotSupported)),
        "nvml.h says so of hosts of vGPUs"
    );
    assert_eq!(first.memory_info().unwrap().used, 0);
    assert_eq!(second.memory_info().unwrap().used, 900 << 20);
}

#[test]
#[ignore = "needs root: make test"]
fn before_hopper_the_mode_changes_by_a_reset_that_others_prevent() {
    let node = node(A100, &[]);
    let gpu = node.device(1);
    let in_use = ReturnCode::InUse.code();
    let other = another_process(&node);
    assert_eq!(
        gpu.set_mig_mode(true).unwrap(),
        0,
        "the other process has not opened the GPU"
    );
    assert_eq!(mode(&gpu), (1, 1));
    other.device_by_index(1).unwrap();
    assert_eq!(gpu.set_mig_mode(false).unwrap(), in_use);
    assert_eq!(mode(&gpu), (1, 0));
    // Set back, it stays as it is.
    assert_eq!(gpu.set_mig_mode(true).unwrap(), 0);
    assert_eq!(mode(&gpu), (1, 1));
    drop(other);

    let set = RawEventSet::new(node.nvml());
    set.register(&gpu, 8).unwrap();
    assert_eq!(gpu.set_mig_mode(false).unwrap(), in_use, "events of its own");
    set.free_twice().0.unwrap();
    node.device(1).set_persistent(true).unwrap();
    assert_eq!(
        gpu.set_mig_mode(false).unwrap(),
        in_use,
        "the driver keeps it initialised"
    );
    node.device(1).set_persistent(false).unwrap();
    node.state().set_open_handles(1, vec![monitor(None, None)]).unwrap();
    assert_eq!(gpu.set_mig_mode(false).unwrap(), in_use);
    assert_eq!(mode(&gpu), (1, 0));
    // A reset brings what is pending.
    node.state().reset_gpu(1).unwrap();
    assert_eq!(mode(&gpu), (0, 0));
}

#[test]
#[ignore = "needs root: make test"]
fn nvidia_persistenced_lets_a_gpu_go_only_for_those_who_find_its_socket() {
    let node = node(A100, &[]);
    let gpu = node.device(1);
    let socket = node.dir().join("socket");
    node.state()
        .update_gpu(1, |gpu| gpu.persistenced = Some(socket.clone()))
        .unwrap();
    let in_use = ReturnCode::InUse.code();
    assert!(!gpu.is_in_persistent_mode().unwrap(), "NVML does not see it");
    node.device(1).set_persistent(false).unwrap();
    assert_eq!(gpu.set_mig_mode(true).unwrap(), in_use);
    std::fs::write(&socket, "").unwrap();
    assert!(gpu.is_in_persistent_mode().unwrap());
    assert_eq!(gpu.set_mig_mode(true).unwrap(), in_use);
    node.device(1).set_persistent(false).unwrap();
    assert!(!gpu.is_in_persistent_mode().unwrap());
    assert_eq!(gpu.set_mig_mode(true).unwrap(), 0);
    node.state().reboot().unwrap();
    assert!(gpu.is_in_persistent_mode().unwrap(), "it starts anew");
}

#[test]
#[ignore = "needs root: make test"]
fn a_mode_can_stay_although_its_change_succeeds() {
    let node = node(A100, &[]);
    node.state().update_gpu(1, |gpu| gpu.mig_mode_stays = true).unwrap();
    let gpu = node.device(1);
    assert_eq!(gpu.set_mig_mode(true).unwrap(), 0);
    assert_eq!(mode(&gpu), (0, 0));
}

#[test]
#[ignore = "needs root: make test"]
fn a_reset_for_the_mode_can_give_a_gpu_another_minor_number_until_a_boot() {
    for (board, minor) in [(A100, 7), (H100, 1)] {
        let node = node(board, &[]);
        let gpu = node.device(1);
        let state = node.state();
        state.update_gpu(1, |gpu| gpu.minor_after_mode = Some(7)).unwrap();
        assert_eq!(gpu.minor_number().unwrap(), 1);
        assert_eq!(gpu.set_mig_mode(true).unwrap(), 0);
        assert_eq!(gpu.minor_number().unwrap(), minor, "{board}");
        state.reboot().unwrap();
        assert_eq!(gpu.minor_number().unwrap(), 1, "{board}");
    }
}

#[test]
#[ignore = "needs root: make test"]
fn from_hopper_on_the_mode_changes_at_once_where_no_instance_is() {
    let node = node(H100, &["1g.10gb"]);
    let (nvml, gpu) = (node.nvml(), node.device(0));
    let other = another_process(&node);
    other.device_by_index(0).unwrap();
    assert_eq!(gpu.set_mig_mode(false).unwrap(), ReturnCode::InUse.code());
    assert_eq!(mode(&gpu), (1, 1), "nothing is left pending");
    let (id, _) = raw_mig::instance_ids(nvml, &gpu.mig_device_by_index(0).unwrap()).unwrap();
    destroy(nvml, &gpu, id).unwrap();
    assert_eq!(gpu.set_mig_mode(false).unwrap(), 0);
    assert_eq!(mode(&gpu), (0, 0));
    assert_eq!(raw_mig::create(nvml, &gpu, ONE, None), Err(NOT_SUPPORTED));
}

#[test]
#[ignore = "needs root: make test"]
fn a_virtual_machine_resets_no_gpu_and_divides_no_part_of_one() {
    let with = |board, virtualization| {
        let mut scenario = scenario(board, &[]);
        scenario.virtualization = virtualization;
        TestNode::with(&scenario)
    };
    let node = with(A100, Virtualization::Passthrough);
    let gpu = node.device(1);
    assert_eq!(raw_mig::virtualization(node.nvml(), &gpu), Ok(1));
    assert_eq!(gpu.set_mig_mode(true).unwrap(), ReturnCode::ResetRequired.code());
    assert_eq!(mode(&gpu), (0, 1));
    node.state().reboot().unwrap();
    assert_eq!(mode(&gpu), (1, 1));

    let hopper = with(H100, Virtualization::Passthrough);
    assert_eq!(hopper.device(1).set_mig_mode(true).unwrap(), 0);
    let part = with(A100, Virtualization::Vgpu);
    assert!(matches!(
        part.device(1).set_mig_mode(true),
        Err(NvmlError::NotSupported)
    ));
    let created = raw_mig::create(part.nvml(), &part.device(0), ONE, None).map(drop);
    assert_eq!(created, Err(NOT_SUPPORTED));
}

#[test]
#[ignore = "needs root: make test"]
fn a_boot_leaves_the_mode_before_hopper_and_no_instance() {
    for (board, after) in [(A100, (1, 1)), (H100, (0, 0))] {
        let node = node(board, &[]);
        let (nvml, gpu) = (node.nvml(), node.device(0));
        let id = create(nvml, &gpu, THREE, THREE_SLICES).unwrap();
        let uuid = gpu.mig_device_by_index(0).unwrap().uuid().unwrap();
        node.state().reboot().unwrap();
        assert_eq!(mode(&gpu), after, "{board}");
        assert!(devices(&gpu).is_empty());
        if after.0 == 0 {
            assert_eq!(gpu.set_mig_mode(true).unwrap(), 0);
        }
        // The same place gives the same id and the same UUID.
        assert_eq!(create(nvml, &gpu, THREE, THREE_SLICES), Ok(id));
        assert_eq!(gpu.mig_device_by_index(0).unwrap().uuid().unwrap(), uuid);

        node.state().reset_gpu(0).unwrap();
        assert_eq!(mode(&gpu), (1, 1), "the driver was not loaded anew");
        assert!(devices(&gpu).is_empty());
    }
}

#[test]
#[ignore = "needs root: make test"]
fn calls_fail_in_the_midst_and_take_their_time() {
    let node = node(A100, &[]);
    let (nvml, gpu, state) = (node.nvml(), node.device(0), node.state());
    state
        .fail_at(0, 2, "nvmlDeviceCreateGpuInstance", ReturnCode::Unknown)
        .unwrap();
    for expected in [Ok(()), Ok(()), Err(ReturnCode::Unknown.code())] {
        let created = raw_mig::create(nvml, &gpu, ONE, None).map(drop);
        assert_eq!(created, expected);
    }
    assert_eq!(raw_mig::remaining(nvml, &gpu, ONE), Ok(5));
    state
        .fail(0, "nvmlGpuInstanceDestroy", ReturnCode::NoPermission)
        .unwrap();
    let instance = raw_mig::gpu_instance_handle(nvml, &gpu, 13).unwrap();
    assert_eq!(raw_mig::destroy(nvml, instance), Err(ReturnCode::NoPermission.code()));
    state.clear_failure(0, "nvmlGpuInstanceDestroy").unwrap();

    state.delay(0, "nvmlGpuInstanceDestroy", 200).unwrap();
    let start = Instant::now();
    assert_eq!(raw_mig::destroy(nvml, instance), Ok(()));
    assert!(start.elapsed() >= Duration::from_millis(200));

    state
        .update_gpu(0, |gpu| gpu.mig_activation = Some(ReturnCode::ResetRequired))
        .unwrap();
    assert_eq!(gpu.set_mig_mode(false).unwrap(), ReturnCode::ResetRequired.code());
    assert_eq!(mode(&gpu), (1, 0));
}

#[test]
#[ignore = "needs root: make test"]
fn ordinary_users_divide_nothing() {
    let node = node(A100, &[]);
    as_nobody(|| {
        let (nvml, gpu) = (node.nvml(), node.device(0));
        let refused = Err(ReturnCode::NoPermission.code());
        assert_eq!(raw_mig::create(nvml, &gpu, ONE, None).map(drop), refused);
        assert!(matches!(gpu.set_mig_mode(false), Err(NvmlError::NoPermission)));
    });
    assert_eq!(raw_mig::remaining(node.nvml(), &node.device(0), ONE), Ok(7));
}

#[test]
fn a_board_or_a_mode_without_mig_has_no_instances_to_create() {
    let node = node(A100, &[]);
    let created = raw_mig::create(node.nvml(), &node.device(1), ONE, None);
    assert_eq!(created, Err(NOT_SUPPORTED));
    assert_eq!(
        raw_mig::remaining(node.nvml(), &node.device(1), ONE),
        Err(NOT_SUPPORTED)
    );
    let of_unknown = raw_mig::gpu_instances(node.nvml(), &node.device(0), 4);
    assert_eq!(of_unknown, Err(INVALID_ARGUMENT), "4 is a kind, and no profile id");
    let t4 = TestNode::new("Tesla T4", 1, Topology::Pcie);
    assert!(matches!(t4.device(0).set_mig_mode(true), Err(NvmlError::NotSupported)));
    assert_eq!(raw_mig::virtualization(t4.nvml(), &t4.device(0)), Ok(0));
}
