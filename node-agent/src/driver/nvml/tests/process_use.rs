//! Use by processes, read through the simulated library.

use super::*;
use gpunode_gpu::{ListedProcess, NotTold, ProcessesOnGpu, SmSample};
use std::{
    collections::BTreeSet,
    time::{SystemTime, UNIX_EPOCH},
};

/// Reads all GPUs.
fn read_use(driver: &FakeDriver, times: &mut SampleTimes) -> Vec<ProcessesOnGpu> {
    let gpus = driver.read(Path::new("/nowhere")).inventory.gpus;
    let addresses: Vec<_> = gpus.iter().map(GpuAddress::of).collect();
    super::process_use(&driver.library(), &addresses, times, |_| true).unwrap()
}

fn listed(pid: u32, mib: u64) -> ListedProcess {
    ListedProcess {
        pid,
        instance: None,
        memory_bytes: Some(mib << 20),
    }
}

#[test]
fn each_process_has_its_memory_and_what_means_nothing_is_left_out() {
    let driver = FakeDriver::new("{node: n, board: Tesla T4, count: 2, topology: Pcie}");
    driver.state(
        "gpus: {0: {processes: [{pid: 7, memoryMib: 100}, {pid: 8, memoryMib: 50, kind: Mps}], smPercent: {7: 40, 9: 3}}}",
    );
    let mut times = SampleTimes::new();
    let found = read_use(&driver, &mut times);
    assert_eq!(found[0].processes, Ok(vec![listed(7, 100), listed(8, 50)]));
    let samples = |samples: &[(u32, u32)]| {
        Ok(samples
            .iter()
            .map(|(pid, percent)| SmSample {
                pid: *pid,
                percent: *percent,
            })
            .collect())
    };
    assert_eq!(found[0].samples, samples(&[(7, 40), (9, 3)]));
    assert_eq!(
        (&found[1].processes, &found[1].samples),
        (&Ok(Vec::new()), &samples(&[]))
    );
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let last = times[&found[0].gpu];
    assert!(u128::from(last) <= now.as_micros() && last > 1, "{last}");
    // A clock that was set back hides no use.
    times.insert(found[0].gpu.clone(), u64::MAX);
    assert_eq!(read_use(&driver, &mut times)[0].samples, samples(&[(7, 40), (9, 3)]));
}

#[test]
fn a_driver_that_does_not_tell_says_so_for_its_gpu_alone() {
    let driver = FakeDriver::new(
        "{node: n, board: NVIDIA A100-SXM4-80GB, count: 3, topology: NVSwitch, mig: [{gpus: [2], instances: [1g.10gb]}]}",
    );
    driver.state(
        "gpus: {0: {failing: {nvmlDeviceGetProcessUtilization: NO_PERMISSION}, hidesProcessMemory: true, processes: [{pid: 7, memoryMib: 1}]}, \
         1: {failing: {nvmlDeviceGetComputeRunningProcesses: NOT_SUPPORTED}}}",
    );
    let found = read_use(&driver, &mut SampleTimes::new());
    assert_eq!(found[0].processes.as_ref().map(|list| list[0].memory_bytes), Ok(None));
    let reasons = |of: &ProcessesOnGpu| (of.processes.clone().err(), of.samples.clone().err());
    assert!(
        reasons(&found[0])
            .1
            .is_some_and(|NotTold(reason)| reason.contains("permission")),
        "{found:?}"
    );
    let (list, samples) = reasons(&found[1]);
    assert!(
        list.is_some_and(|NotTold(reason)| reason.contains("nvmlDeviceGetComputeRunningProcesses_v3")),
        "{found:?}"
    );
    assert_eq!(samples, None);
    assert!(reasons(&found[2]).1.is_some(), "MIG is on: {found:?}");
    driver.state("gpus: {0: {lost: true}}");
    let found = read_use(&driver, &mut SampleTimes::new());
    assert_eq!(found.len(), 2, "{found:?}");
}

/// Prints the time of a read of a full node. The simulated driver is part of it.
#[test]
#[ignore = "measures"]
fn measure_a_read_of_80_processes_on_8_gpus() {
    let driver = FakeDriver::new("{node: n, board: Tesla V100-SXM2-32GB, count: 8, topology: DGX-1-Volta}");
    let gpu = |gpu: u32| {
        let pids = (0..10).map(|number| 1000 + gpu * 10 + number);
        let processes = pids
            .clone()
            .map(|pid| format!("{{pid: {pid}, memoryMib: 100}}"))
            .collect::<Vec<_>>();
        let busy = pids.map(|pid| format!("{pid}: 5")).collect::<Vec<_>>();
        format!(
            "{gpu}: {{processes: [{}], smPercent: {{{}}}}}",
            processes.join(", "),
            busy.join(", ")
        )
    };
    driver.state(&format!("gpus: {{{}}}", (0..8).map(gpu).collect::<Vec<_>>().join(", ")));
    let gpus = driver.read(Path::new("/nowhere")).inventory.gpus;
    let addresses: Vec<_> = gpus.iter().map(GpuAddress::of).collect();
    let mut times = SampleTimes::new();
    let mut took: Vec<Duration> = (0..20)
        .map(|_| {
            let start = Instant::now();
            let found = super::process_use(&driver.library(), &addresses, &mut times, |_| true).unwrap();
            let pids: BTreeSet<u32> = found
                .iter()
                .flat_map(|of| of.processes.iter().flatten())
                .map(|of| of.pid)
                .collect();
            assert_eq!(pids.len(), 80);
            start.elapsed()
        })
        .collect();
    took.sort();
    println!(
        "a read of 80 processes on 8 GPUs: median {:?}, longest {:?}",
        took[10], took[19]
    );
}
