//! Use by containers on GPUs that they hold in different ways.

use super::*;
use crate::{ContainerShares, DeviceHolder, Gpu, MigDevice, MigInstance};
use gpunode_config::MemoryMiB;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const SLICED: DeviceSharing = DeviceSharing::TimeSlicing { replicas: 4 };
const MPS: DeviceSharing = DeviceSharing::Mps { replicas: 4 };

fn gpu() -> Gpu {
    Gpu {
        uuid: "GPU-0".to_owned(),
        memory_mib: 16_000,
        ..Gpu::default()
    }
}

fn holder(pod: &str, container: &str, device: &str) -> UsageHolder {
    UsageHolder {
        holder: DeviceHolder {
            namespace: "ml".to_owned(),
            pod: pod.to_owned(),
            container: container.to_owned(),
            resource: "a.b/c".to_owned(),
            device: device.to_owned(),
            count: 1,
        },
        pod_uid: Some(format!("uid-{pod}")),
    }
}

fn process(pid: u32, mib: u64) -> ListedProcess {
    ListedProcess {
        pid,
        instance: None,
        memory_bytes: Some(mib * MIB),
    }
}

fn owner(pod: &str) -> ProcessOwner {
    ProcessOwner {
        pod_uid: Some(format!("uid-{pod}")),
        ..ProcessOwner::default()
    }
}

/// A node with one GPU that pods `a` and `b` hold.
struct Bench {
    holders: Vec<UsageHolder>,
    devices: Vec<Device>,
    sharing: DeviceSharing,
    gpu: ProcessesOnGpu,
    owners: BTreeMap<u32, ProcessOwner>,
    clocks: IdleClocks,
    start: Instant,
}

impl Bench {
    fn new(processes: Vec<ListedProcess>, samples: &[(u32, u32)], owners: &[(u32, ProcessOwner)]) -> Self {
        let samples = samples.iter().map(|(pid, percent)| SmSample {
            pid: *pid,
            percent: *percent,
        });
        Self {
            holders: vec![holder("a", "main", "GPU-0"), holder("b", "main", "GPU-0")],
            devices: vec![Device::full(&gpu())],
            sharing: SLICED,
            gpu: ProcessesOnGpu {
                gpu: "GPU-0".to_owned(),
                processes: Ok(processes),
                samples: Ok(samples.collect()),
            },
            owners: owners.iter().cloned().collect(),
            clocks: IdleClocks::default(),
            start: Instant::now(),
        }
    }

    fn usage(&mut self, seconds: u64) -> Vec<ContainerUsage> {
        let assignment = Assignment {
            resource: "a.b/c".to_owned(),
            sharing: self.sharing,
            gpu_uuid: None,
        };
        let assigned = self
            .devices
            .iter()
            .map(|device| (device.uuid.clone(), assignment.clone()));
        let inputs = UsageInputs {
            holders: &self.holders,
            devices: &self.devices,
            assigned: &assigned.collect(),
            gpus: std::slice::from_ref(&self.gpu),
            owners: &self.owners,
        };
        let (usage, omitted) = container_usage(inputs, &mut self.clocks, self.start + Duration::from_secs(seconds));
        assert_eq!(omitted, 0);
        usage
    }

    /// Returns memory in MiB, SM use in percent and idle seconds of each container.
    fn figures(&mut self, seconds: u64) -> Vec<(Option<u64>, Option<u64>, Option<u64>)> {
        let usage = self.usage(seconds).into_iter();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "between 0 and 100"
        )]
        let percent = |ratio: f64| (ratio * 100.0).round() as u64;
        usage
            .map(|of| {
                (
                    of.memory_used_bytes.map(|bytes| bytes / MIB),
                    of.sm_used_ratio.map(percent),
                    of.idle_seconds,
                )
            })
            .collect()
    }
}

#[test]
fn processes_count_for_the_pod_of_their_cgroup_and_for_nobody_else() {
    let processes = vec![
        process(1, 100),
        process(2, 200),
        process(3, 50),
        process(4, 999),
        process(1, 100),
    ];
    let owners = [
        (1, owner("a")),
        (2, owner("b")),
        (3, owner("a")),
        (4, ProcessOwner::default()),
        (9, owner("x")),
    ];
    let mut bench = Bench::new(processes, &[(1, 30), (3, 20), (4, 7), (9, 5)], &owners);
    assert_eq!(
        bench.figures(0),
        [(Some(150), Some(50), Some(0)), (Some(200), Some(0), Some(0))]
    );
    let usage = bench.usage(60);
    let idle: Vec<_> = usage
        .iter()
        .map(|of| (of.pod.as_str(), of.processes, of.idle_seconds))
        .collect();
    assert_eq!(idle, [("a", Some(2), Some(0)), ("b", Some(1), Some(60))]);
    assert_eq!(usage[1].memory_given_bytes, Some(16_000 * MIB));
    assert_eq!(usage[1].sm_given_ratio, Some(0.25));
}

#[test]
fn a_holder_without_processes_is_idle_and_a_process_on_no_list_keeps_one_busy() {
    let mut bench = Bench::new(Vec::new(), &[(5, 10)], &[(5, owner("a"))]);
    bench.figures(0);
    assert_eq!(
        bench.figures(90),
        [(Some(0), Some(10), Some(0)), (Some(0), Some(0), Some(90))]
    );
}

#[test]
fn a_process_that_has_ended_may_have_been_of_any_holder() {
    let mut bench = Bench::new(vec![process(5, 10)], &[(5, 10)], &[]);
    bench.figures(0);
    assert_eq!(bench.figures(90), [(Some(0), Some(0), Some(0)); 2]);
}

#[test]
fn containers_of_one_pod_are_told_apart_by_name_or_not_at_all() {
    let mut bench = Bench::new(vec![process(1, 10), process(2, 20)], &[(2, 40)], &[]);
    bench.holders = vec![
        holder("a", "one", "GPU-0"),
        holder("a", "two", "GPU-0"),
        holder("b", "main", "GPU-0"),
    ];
    let named = |name: Option<&str>| ProcessOwner {
        container: name.map(str::to_owned),
        ..owner("a")
    };
    bench.owners = [(1, named(Some("one"))), (2, named(Some("two")))].into();
    bench.figures(0);
    assert_eq!(
        bench.figures(10),
        [
            (Some(10), Some(0), Some(10)),
            (Some(20), Some(40), Some(0)),
            (Some(0), Some(0), Some(10))
        ]
    );
    bench.owners.insert(2, named(None));
    assert_eq!(
        bench.figures(20),
        [(None, None, None), (None, None, None), (Some(0), Some(0), Some(20))]
    );
    let problem = bench.usage(30)[0].problem.clone();
    assert!(problem.is_some_and(|text| text.contains("which container of the pod")));
}

#[test]
fn work_that_counts_for_an_mps_server_is_of_any_client() {
    let server = ProcessOwner {
        is_mps_server: true,
        ..owner("mps")
    };
    let mut bench = Bench::new(
        vec![process(1, 10), process(7, 5)],
        &[(7, 40)],
        &[(1, owner("a")), (7, server)],
    );
    bench.sharing = MPS;
    bench.figures(0);
    assert_eq!(bench.figures(10), [(Some(10), None, Some(0)), (Some(0), None, Some(0))]);
    // A server on a GPU that it does not share is a process of another pod.
    bench.sharing = SLICED;
    assert_eq!(
        bench.figures(20),
        [(Some(10), Some(0), Some(10)), (Some(0), Some(0), Some(10))]
    );
}

#[test]
fn figures_that_the_driver_does_not_tell_are_missing_with_a_reason() {
    let owners = [(1, owner("a"))];
    let mut bench = Bench::new(vec![process(1, 10)], &[], &owners);
    bench.gpu.samples = Err(NotTold("Not Supported".to_owned()));
    bench.figures(0);
    assert_eq!(
        bench.figures(60),
        [(Some(10), None, Some(0)), (Some(0), None, Some(60))],
        "a process is use"
    );
    let told = |bench: &mut Bench| bench.usage(90)[0].problem.clone().unwrap_or_default();
    assert_eq!(
        told(&mut bench),
        "the driver does not tell the SM use of processes: Not Supported"
    );
    bench.gpu.samples = Ok(Vec::new());
    bench.gpu.processes = Ok(vec![ListedProcess {
        memory_bytes: None,
        ..process(1, 0)
    }]);
    assert_eq!(bench.figures(90)[0].0, None);
    assert_eq!(told(&mut bench), "the driver does not tell the memory of processes");
    bench.gpu.processes = Err(NotTold("Not Supported".to_owned()));
    assert_eq!(bench.figures(90), [(None, None, None); 2]);
    assert_eq!(told(&mut bench), "the driver does not list processes: Not Supported");
    bench.gpu.gpu = "GPU-1".to_owned();
    assert_eq!(told(&mut bench), "the GPU does not answer");
    bench.holders[0].pod_uid = None;
    assert_eq!(told(&mut bench), "the kubelet's checkpoint does not have its pod");
}

#[test]
fn a_mig_device_has_the_processes_of_its_instance() {
    let mig = |number: u32| MigInstance {
        facts: MigDevice {
            uuid: format!("MIG-{number}"),
            gpu_instance: number,
            memory_mib: 9728,
            ..MigDevice::default()
        },
        ..MigInstance::default()
    };
    let inside = |pid: u32, number: u32| ListedProcess {
        instance: Some((number, 0)),
        ..process(pid, 10)
    };
    let processes = vec![inside(1, 7), inside(2, 8)];
    let mut bench = Bench::new(processes, &[(1, 50)], &[(1, owner("a")), (2, owner("a"))]);
    bench.devices = [7, 8, 9].map(|number| Device::mig(&gpu(), &mig(number))).into();
    bench.holders = vec![holder("a", "main", "MIG-7"), holder("b", "main", "MIG-9")];
    bench.sharing = DeviceSharing::Whole;
    bench.figures(0);
    assert_eq!(
        bench.figures(60),
        [(Some(10), None, Some(0)), (Some(0), None, Some(60))]
    );
    let usage = bench.usage(60);
    assert_eq!(
        (usage[0].gpu.as_str(), usage[0].memory_given_bytes),
        ("0:0", Some(9728 * MIB))
    );
}

#[test]
fn devices_of_others_are_left_out_and_entries_are_bounded() {
    let mut bench = Bench::new(Vec::new(), &[], &[]);
    bench.holders = vec![holder("a", "main", "/dev/infiniband/0"), holder("b", "main", "GPU-9")];
    assert!(bench.usage(0).is_empty());
    let holders: Vec<_> = (0..600)
        .map(|number| holder(&format!("p{number:03}"), "main", "GPU-0"))
        .collect();
    let inputs = UsageInputs {
        holders: &holders,
        devices: &bench.devices,
        assigned: &BTreeMap::new(),
        gpus: &[],
        owners: &BTreeMap::new(),
    };
    let (usage, omitted) = container_usage(inputs, &mut IdleClocks::default(), Instant::now());
    assert_eq!((usage.len(), omitted), (MAX_USAGE_ENTRIES, 600 - MAX_USAGE_ENTRIES));
    assert_eq!(usage.last().map(|of| of.pod.as_str()), Some("p511"));
    // Without an assignment a device counts as whole.
    assert_eq!(usage[0].memory_given_bytes, Some(MemoryMiB(16_000).0 * MIB));
}

#[test]
fn holders_are_joined_with_the_pods_of_their_shares() {
    let shares = |pod: &str, ids: &[&str]| ContainerShares {
        namespace: "ml".to_owned(),
        pod: pod.to_owned(),
        container: "main".to_owned(),
        resource: "a.b/c".to_owned(),
        ids: ids.iter().map(|id| (*id).to_owned()).collect(),
    };
    let observed = [
        shares("a", &["GPU-0::0", "GPU-1::2", "GPU-0::3"]),
        shares("b", &["GPU-0::1"]),
    ];
    let pods = [("GPU-0::3", "uid-a"), ("GPU-1::2", "uid-a")];
    let pods = pods.map(|(id, uid)| (("a.b/c".to_owned(), id.to_owned()), uid.to_owned()));
    let holders = usage_holders(&observed, &pods.into());
    let told: Vec<_> = holders
        .iter()
        .map(|of| {
            (
                of.holder.pod.as_str(),
                of.holder.device.as_str(),
                of.holder.count,
                of.pod_uid.as_deref(),
            )
        })
        .collect();
    assert_eq!(
        told,
        [
            ("a", "GPU-0", 2, Some("uid-a")),
            ("a", "GPU-1", 1, Some("uid-a")),
            ("b", "GPU-0", 1, None)
        ]
    );
}
