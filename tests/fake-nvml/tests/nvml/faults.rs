//! Faults and state, changed while the library is loaded.

use std::{
    fs::{self, File},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use gpunode_scenario::{GpuProcess, ProcessKind, ReturnCode, SCENARIO_FILE, STATE_FILE, Topology};
use nvml_wrapper::{
    enum_wrappers::device::P2pCapabilitiesIndex, enums::device::UsedGpuMemory, error::NvmlError,
    struct_wrappers::device::ProcessUtilizationSample,
};

use crate::node::{TestNode, load};

fn t4() -> TestNode {
    TestNode::new("Tesla T4", 2, Topology::Pcie)
}

#[test]
fn a_call_fails_on_one_gpu_until_it_is_cleared() {
    let node = t4();
    let (first, second) = (node.device(0), node.device(1));
    let state = node.state();
    state
        .fail(0, "nvmlDeviceGetMemoryInfo_v2", ReturnCode::Unknown)
        .unwrap();
    assert!(matches!(first.memory_info(), Err(NvmlError::Unknown)));
    assert!(first.name().is_ok());
    assert!(second.memory_info().is_ok());
    // Not simulated, but it can fail.
    state
        .fail(1, "nvmlDeviceGetFanSpeed_v2", ReturnCode::NoPermission)
        .unwrap();
    assert!(matches!(second.fan_speed(0), Err(NvmlError::NoPermission)));

    state.clear_failure(0, "nvmlDeviceGetMemoryInfo_v2").unwrap();
    assert!(first.memory_info().is_ok());
}

#[test]
fn a_lost_gpu_answers_nothing_and_comes_back() {
    let node = t4();
    let (lost, other) = (node.device(0), node.device(1));
    let uuid = lost.uuid().unwrap();
    node.state().lose(0).unwrap();
    assert!(matches!(lost.name(), Err(NvmlError::GpuLost)));
    assert!(matches!(lost.memory_info(), Err(NvmlError::GpuLost)));
    assert!(matches!(lost.fan_speed(0), Err(NvmlError::GpuLost)));
    let status = other.p2p_status(&lost, P2pCapabilitiesIndex::Read);
    assert!(matches!(status, Err(NvmlError::GpuLost)));
    assert!(matches!(node.nvml().device_by_index(0), Err(NvmlError::GpuLost)));
    assert!(matches!(
        node.nvml().device_by_uuid(uuid.as_str()),
        Err(NvmlError::GpuLost)
    ));
    assert_eq!(node.nvml().device_count().unwrap(), 2);
    assert!(other.name().is_ok());
    // A look-up by UUID answers so for every GPU, those by address and index for their own.
    let uuid_of_other = other.uuid().unwrap();
    let by_uuid = || node.nvml().device_by_uuid(uuid_of_other.as_str());
    assert!(matches!(by_uuid(), Err(NvmlError::GpuLost)));
    let address = other.pci_info().unwrap().bus_id;
    assert!(node.nvml().device_by_pci_bus_id(address.as_str()).is_ok());
    assert!(node.nvml().device_by_index(1).is_ok());
    node.state()
        .update_gpu(0, |gpu| gpu.lost_code = Some(ReturnCode::Unknown))
        .unwrap();
    assert!(matches!(lost.name(), Err(NvmlError::Unknown)));
    assert!(matches!(by_uuid(), Err(NvmlError::Unknown)));

    node.state().restore(0).unwrap();
    assert_eq!(lost.uuid().unwrap(), uuid);
}

#[test]
fn the_first_session_of_a_process_says_which_gpus_there_are() {
    let node = TestNode::dgx1();
    let uuids: Vec<_> = (0..8).map(|index| node.device(index).uuid().unwrap()).collect();
    let bus_id = node.device(2).pci_info().unwrap().bus_id;
    node.state()
        .update_gpu(2, |gpu| (gpu.lost, gpu.unlisted) = (true, true))
        .unwrap();
    let same = load(node.dir()).unwrap();
    assert_eq!(same.device_count().unwrap(), 8);
    assert!(matches!(same.device_by_index(2), Err(NvmlError::GpuLost)));
    drop(same);

    let dir = node.close();
    let next = load(dir.path()).unwrap();
    assert_eq!(next.device_count().unwrap(), 7);
    let third = next.device_by_index(2).unwrap();
    assert_eq!((third.uuid().unwrap(), third.index().unwrap()), (uuids[3].clone(), 2));
    assert_eq!(third.minor_number().unwrap(), 3);
    assert!(matches!(next.device_by_index(7), Err(NvmlError::InvalidArg)));
    let by_address = next.device_by_pci_bus_id(bus_id.as_str());
    assert!(matches!(by_address, Err(NvmlError::NotFound)));
    assert!(
        next.device_by_uuid(uuids[7].as_str()).is_ok(),
        "a GPU that is not listed is not looked at"
    );
}

#[test]
fn a_failing_lookup_hides_one_gpu() {
    let node = t4();
    node.state()
        .fail(1, "nvmlDeviceGetHandleByIndex", ReturnCode::NoPermission)
        .unwrap();
    assert!(matches!(node.nvml().device_by_index(1), Err(NvmlError::NoPermission)));
    assert!(node.nvml().device_by_index(0).is_ok());
}

#[test]
fn processes_use_memory() {
    let node = t4();
    let process = |pid, memory_mib, kind| GpuProcess {
        pid,
        memory_mib,
        kind,
        instance: None,
    };
    let list = vec![process(7, 1000, ProcessKind::Compute), process(8, 24, ProcessKind::Mps)];
    node.state().set_processes(0, list).unwrap();

    let device = node.device(0);
    let running = device.running_compute_processes().unwrap();
    assert_eq!(running.len(), 1);
    assert_eq!(running[0].pid, 7);
    assert_eq!(running[0].used_gpu_memory, UsedGpuMemory::Used(1000 << 20));
    assert!(device.running_graphics_processes().unwrap().is_empty());
    let memory = device.memory_info().unwrap();
    assert_eq!(memory.used, 1024 << 20);
    assert_eq!(memory.used + memory.free + memory.reserved, memory.total);
    assert!(node.device(1).running_compute_processes().unwrap().is_empty());
}

#[test]
fn a_driver_may_hide_the_memory_of_processes() {
    let node = t4();
    let process = GpuProcess {
        pid: 7,
        memory_mib: 1000,
        kind: ProcessKind::Compute,
        instance: None,
    };
    node.state().set_processes(0, vec![process]).unwrap();
    node.state()
        .update_gpu(0, |state| state.hides_process_memory = true)
        .unwrap();
    let running = node.device(0).running_compute_processes().unwrap();
    assert_eq!(running[0].used_gpu_memory, UsedGpuMemory::Unavailable);
    assert_eq!(node.device(0).memory_info().unwrap().used, 1000 << 20);
}

#[test]
fn busy_processes_have_a_sample_each_beside_some_that_mean_nothing() {
    let node = t4();
    let device = node.device(0);
    let samples = |since: u64| device.process_utilization_stats(since);
    assert!(matches!(samples(0), Err(NvmlError::NotFound)));
    for (pid, percent) in [(7, 40), (8, 0), (9, 300)] {
        node.state().set_sm_percent(0, pid, percent).unwrap();
    }
    let found = samples(0).unwrap();
    let plain = |of: &&ProcessUtilizationSample| of.timestamp > 1 && of.sm_util <= 100;
    let told = found.iter().filter(plain).map(|of| (of.pid, of.sm_util));
    assert_eq!(told.collect::<Vec<_>>(), [(7, 40), (9, 100)]);
    assert_eq!(found.len(), 5, "{found:?}");
    assert!(found[1].timestamp < found[0].timestamp);
    // Nothing is told twice, and the end of a process is no end of its samples.
    assert!(matches!(samples(u64::MAX), Err(NvmlError::NotFound)));
    assert!(device.running_compute_processes().unwrap().is_empty());
    assert!(matches!(
        node.device(1).process_utilization_stats(0),
        Err(NvmlError::NotFound)
    ));
}

#[test]
fn a_state_that_cannot_be_read_is_no_healthy_gpu() {
    let node = t4();
    fs::write(node.dir().join(STATE_FILE), "gpus: {0: {lots: true}}").unwrap();
    assert!(matches!(node.nvml().device_by_index(0), Err(NvmlError::Unknown)));
    fs::remove_file(node.dir().join(STATE_FILE)).unwrap();
    assert!(node.nvml().device_by_index(0).is_ok());
}

/// Changes follow each other faster than the clock that dates files moves on.
#[test]
fn no_change_is_missed() {
    let node = t4();
    let device = node.device(0);
    let state = node.state();
    for _ in 0..200 {
        state.lose(0).unwrap();
        assert!(matches!(device.name(), Err(NvmlError::GpuLost)));
        state.restore(0).unwrap();
        assert!(device.name().is_ok());
    }
}

#[test]
fn a_call_that_hangs_makes_every_other_one_wait_until_the_hang_is_over() {
    let node = t4();
    node.state().update_gpu(0, |gpu| gpu.hangs = true).unwrap();
    thread::scope(|scope| {
        let call = |index| {
            let (sender, answer) = mpsc::channel();
            let nvml = node.nvml();
            let memory = move || nvml.device_by_index(index)?.memory_info();
            scope.spawn(move || sender.send(memory().is_ok()));
            answer
        };
        let before = call(1).recv();
        let hanging = call(0);
        // The call takes the lock a moment later, and keeps it.
        let scenario = File::open(node.dir().join(SCENARIO_FILE)).unwrap();
        let is_free = || scenario.try_lock_shared().is_ok() && scenario.unlock().is_ok();
        let is_taken = (0..1000).any(|_| {
            thread::sleep(Duration::from_millis(10));
            !is_free()
        });
        let waiting = call(1);
        let waits = waiting.recv_timeout(Duration::from_millis(200)).is_err();
        let hangs = hanging.try_recv().is_err();
        let from_memory = node.nvml().device_by_index(1).and_then(|gpu| gpu.uuid());
        node.state().update_gpu(0, |gpu| gpu.hangs = false).unwrap();
        assert_eq!(before, Ok(true), "nobody had called the GPU that hangs");
        assert!(is_taken && waits && hangs);
        assert!(from_memory.is_ok());
        assert_eq!((hanging.recv(), waiting.recv()), (Ok(true), Ok(true)));
    });
}

#[test]
fn the_first_call_on_a_gpu_takes_its_time_unless_persistence_mode_is_on() {
    const TIME: Duration = Duration::from_secs(2);
    let node = t4();
    let took = |index| {
        let start = Instant::now();
        node.device(index);
        start.elapsed()
    };
    for gpu in [0, 1] {
        node.state().update_gpu(gpu, |state| state.init_ms = 2000).unwrap();
    }
    assert!(took(0) >= TIME);
    assert!(took(0) < TIME, "it is initialised");
    gpunode_scenario::DriverState::update_gpu(node.dir(), 1, |modes| modes.persistence = true).unwrap();
    assert!(took(1) < TIME);
}
