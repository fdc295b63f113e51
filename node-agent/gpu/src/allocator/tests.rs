//! The allocator step by step; [`model`] plays a kubelet against it.

mod allocations;
mod choices;
mod claims;
mod companions;
mod divided;
mod figures;
mod fuzz;
mod kubelet;
mod model;
mod slices;

use super::*;
use crate::{AdvertisedShare, Gpu, Inventory, MigDevice, MigInstance, MigMode, desired_devices};
use gpunode_config::load;
use std::time::Duration;

/// GPUs of 4, 4 and 8 GiB; the last has two MIG devices.
fn node() -> Inventory {
    let mig = |index: u32| MigInstance {
        index,
        facts: MigDevice {
            uuid: format!("MIG-2-{index}"),
            profile: "1g.4gb".to_owned(),
            memory_mib: 4096,
            ..MigDevice::default()
        },
        ..MigInstance::default()
    };
    let gpu = |index: u32| Gpu {
        index,
        uuid: format!("GPU-{index}"),
        memory_mib: if index == 2 { 8192 } else { 4096 },
        compute_capability: Some((8, 0)),
        numa_node: Some(index % 2),
        mig_mode: (index == 2).then_some(MigMode::Enabled),
        mig_devices: if index == 2 { vec![mig(0), mig(1)] } else { Vec::new() },
        ..Gpu::default()
    };
    Inventory {
        gpus: (0..3).map(gpu).collect(),
        ..Inventory::default()
    }
}

fn wants(config: &str) -> DesiredDevices {
    desired_devices(&node(), &load(config).unwrap()).unwrap()
}

const MEMORY: &str = "resources: [{name: a.b/mem, sharing: {strategy: Memory}}]";
const SHARED: &str = "resources: [{name: nvidia.com/gpu, sharing: {strategy: TimeSlicing, replicas: 2}}]";

fn strings(ids: &[&str]) -> Vec<String> {
    ids.iter().map(|id| (*id).to_owned()).collect()
}

fn holding(pod: &str, resource: &str, ids: &[&str]) -> ContainerShares {
    ContainerShares {
        namespace: "team".to_owned(),
        pod: pod.to_owned(),
        container: "main".to_owned(),
        resource: resource.to_owned(),
        ids: strings(ids),
    }
}

/// An observation without holders, allocatable devices and checkpoint.
fn nothing_held(started: Instant) -> KubeletObservation {
    KubeletObservation {
        started,
        holders: Vec::new(),
        allocatable: BTreeSet::new(),
        checkpoint: BTreeSet::new(),
    }
}

/// An allocator with a clock and a kubelet that has taken every list.
struct AllocatorTest {
    allocator: Allocator,
    now: Instant,
}

impl AllocatorTest {
    fn new(config: &str, holders: &[ContainerShares]) -> Self {
        Self::of(wants(config), holders)
    }

    fn of(desired: DesiredDevices, holders: &[ContainerShares]) -> Self {
        let mut test = Self {
            allocator: Allocator::default(),
            now: Instant::now(),
        };
        test.set_desired(desired);
        test.observe(holders);
        test
    }

    fn set_desired(&mut self, desired: DesiredDevices) {
        self.allocator.set_desired(desired, self.now);
    }

    /// An observation in which the kubelet has taken the lists of now.
    fn observe(&mut self, holders: &[ContainerShares]) {
        let allocatable = self.healthy();
        self.now += Duration::from_secs(1);
        self.allocator.observe(KubeletObservation {
            started: self.now,
            holders: holders.to_vec(),
            allocatable,
            checkpoint: BTreeSet::new(),
        });
    }

    fn healthy(&self) -> BTreeSet<(String, String)> {
        let lists = self.allocator.advertised();
        let shares = lists
            .iter()
            .flat_map(|list| list.shares.iter().map(|share| (list.name.clone(), share)));
        shares
            .filter(|(_, share)| share.healthy)
            .map(|(name, share)| (name, share.id.clone()))
            .collect()
    }

    fn allocate(&mut self, resource: &str, ids: &[&str]) -> Result<AllocatedDevices, AllocationRefusal> {
        self.allocator
            .allocate(resource, &strings(ids), self.now, self.now, None)
    }

    /// Healthy and all shares of a resource.
    fn count(&self, resource: &str) -> Option<(usize, usize)> {
        let lists = self.allocator.advertised();
        let list = lists.iter().find(|list| list.name == resource)?;
        Some((
            list.shares.iter().filter(|share| share.healthy).count(),
            list.shares.iter().filter(|share| !share.surplus).count(),
        ))
    }
}

#[test]
fn nothing_is_offered_before_the_holders_are_known() {
    let mut allocator = Allocator::default();
    allocator.set_desired(wants(""), Instant::now());
    assert!(!allocator.is_observed() && allocator.advertised().is_empty() && allocator.pending_changes().is_empty());
    let restored = Allocator::restore(
        [("GPU-0".to_owned(), wants("").devices[0].assignment.clone())].into(),
        BTreeMap::new(),
    );
    assert!(restored.advertised().is_empty());
}

#[test]
fn a_list_begins_with_one_share_of_each_device_and_says_where_it_is() {
    let test = AllocatorTest::new(SHARED, &[]);
    let lists = test.allocator.advertised();
    let ids: Vec<&str> = lists[0].shares.iter().map(|share| share.id.as_str()).collect();
    assert_eq!(
        ids,
        ["GPU-0::0", "GPU-1::0", "GPU-2::0", "GPU-0::1", "GPU-1::1", "GPU-2::1"]
    );
    assert_eq!(
        lists[0].shares[1],
        AdvertisedShare {
            id: "GPU-1::0".to_owned(),
            healthy: true,
            numa_node: Some(1),
            surplus: false,
        }
    );
}

#[test]
fn a_held_device_stays_as_it_is_until_its_last_holder_is_gone_and_others_change_at_once() {
    let mut test = AllocatorTest::new("", &[holding("train", "nvidia.com/gpu", &["GPU-1"])]);
    test.set_desired(wants(SHARED));
    assert_eq!(
        test.count("nvidia.com/gpu"),
        Some((1, 3)),
        "only the held one is healthy"
    );
    test.observe(&[holding("train", "nvidia.com/gpu", &["GPU-1"])]);
    let ids: Vec<String> = test.allocator.advertised()[0]
        .shares
        .iter()
        .map(|share| share.id.clone())
        .collect();
    assert_eq!(ids, ["GPU-0::0", "GPU-1", "GPU-2::0", "GPU-0::1", "GPU-2::1"]);
    let [waiting] = test.allocator.pending_changes().try_into().unwrap();
    assert_eq!(
        (waiting.device.as_str(), waiting.pods),
        ("GPU-1", strings(&["team/train"]))
    );
    assert_eq!(
        waiting.message,
        "GPU 1 stays nvidia.com/gpu until the last pod that holds it ends, then it becomes nvidia.com/gpu (2 replicas)"
    );
    test.observe(&[]);
    assert_eq!(
        test.count("nvidia.com/gpu"),
        Some((4, 5)),
        "the kubelet took the id of the holder for healthy until now"
    );
    test.observe(&[]);
    assert_eq!(test.count("nvidia.com/gpu"), Some((6, 6)));
    assert!(test.allocator.pending_changes().is_empty() && !test.allocator.needs_observation());
}

#[test]
fn while_pods_are_evicted_for_a_change_no_share_of_their_device_is_healthy() {
    let held = [holding("a", "nvidia.com/gpu", &["GPU-0"])];
    let mut test = AllocatorTest::new("", &held);
    test.set_desired(wants(SHARED));
    test.observe(&held);
    let switching = test.allocator.pending_changes().remove(0);
    assert_eq!((switching.device.as_str(), switching.switches), ("GPU-0", true));
    let whole = |test: &AllocatorTest| test.healthy().iter().any(|(_, id)| id == "GPU-0");
    let shared = |test: &AllocatorTest| test.healthy().iter().filter(|(_, id)| id.starts_with("GPU-1")).count();
    assert_eq!((whole(&test), shared(&test)), (true, 2));

    assert!(test.allocator.withdraw_switching(true) && !test.allocator.withdraw_switching(true));
    assert_eq!((whole(&test), shared(&test)), (false, 2), "GPU-1 has changed already");
    assert!(test.allocator.withdraw_switching(false));
    assert!(whole(&test), "the eviction was given up");

    test.allocator.withdraw_switching(true);
    test.observe(&[]);
    test.observe(&[]);
    assert!(test.allocator.pending_changes().is_empty());
    assert!(
        test.healthy().iter().any(|(_, id)| id.starts_with("GPU-0")),
        "it has its new shares"
    );
}

#[test]
fn device_that_comes_while_pods_of_another_plugin_hold_it_does_not_switch() {
    let held = [holding("theirs", "nvidia.com/gpu", &["GPU-0"])];
    let elsewhere = "resources: [{name: a.b/gpu, sharing: {strategy: TimeSlicing, replicas: 2}}]";
    let test = AllocatorTest::new(elsewhere, &held);
    let pending = test.allocator.pending_changes();
    assert_eq!(pending.len(), 1, "{pending:?}");
    assert_eq!(pending[0].pods, ["team/theirs"]);
    assert!(!pending[0].switches, "nobody may evict them: {pending:?}");
}

#[test]
fn gpu_that_left_the_node_switches_to_nothing() {
    let held = [holding("a", "nvidia.com/gpu", &["GPU-0"])];
    let mut test = AllocatorTest::new("", &held);
    let mut fewer = node();
    fewer.gpus.remove(0);
    test.set_desired(desired_devices(&fewer, &load("").unwrap()).unwrap());
    test.observe(&held);
    let pending = test.allocator.pending_changes();
    assert!(pending.iter().all(|of| !of.switches), "{pending:?}");
}

#[test]
fn an_allocation_of_an_old_id_delays_the_change_and_one_after_it_is_refused() {
    let mut test = AllocatorTest::new("", &[]);
    test.set_desired(wants(SHARED));
    assert!(
        test.allocate("nvidia.com/gpu", &["GPU-1"]).is_ok(),
        "the kubelet had picked it before"
    );
    test.observe(&[]);
    assert!(test.allocate("nvidia.com/gpu", &["GPU-1"]).is_ok());
    let refused = test.allocate("nvidia.com/gpu", &["GPU-0"]).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "allocate nvidia.com/gpu: the current device list does not have GPU-0"
    );
    let waiting = test.allocator.pending_changes();
    assert!(
        waiting[0]
            .message
            .contains("until the kubelet shows whether a container got"),
        "{waiting:?}"
    );
}

#[test]
fn an_allocation_counts_until_it_is_seen_held_or_five_seconds_have_passed() {
    let mut test = AllocatorTest::new("", &[]);
    test.allocate("nvidia.com/gpu", &["GPU-1"]).unwrap();
    assert!(test.allocator.needs_observation());
    test.set_desired(wants(SHARED));
    for _ in 0..4 {
        test.observe(&[]);
        assert_eq!(test.allocator.pending_changes().len(), 1);
    }
    test.observe(&[]);
    assert!(test.allocator.needs_observation(), "its id was still healthy");
    test.observe(&[]);
    assert!(!test.allocator.needs_observation());
}

#[test]
fn an_observation_from_before_an_allocation_says_nothing_about_it() {
    let mut test = AllocatorTest::new("", &[]);
    let before = nothing_held(test.now);
    test.now += Duration::from_mins(1);
    test.allocate("nvidia.com/gpu", &["GPU-1"]).unwrap();
    test.allocator.set_desired(wants(SHARED), before.started);
    test.allocator.observe(before);
    let waiting: Vec<String> = test
        .allocator
        .pending_changes()
        .into_iter()
        .map(|waiting| waiting.device)
        .collect();
    assert_eq!(waiting, ["GPU-1"]);
}

#[test]
fn an_observation_that_comes_late_is_ignored() {
    let held = [holding("train", "nvidia.com/gpu", &["GPU-1"])];
    let mut test = AllocatorTest::new("", &held);
    let late = test.now.checked_sub(Duration::from_millis(1)).unwrap();
    test.allocator.observe(nothing_held(late));
    assert_eq!(test.allocator.holders().len(), 1);
}

#[test]
fn after_a_restart_what_was_given_out_shortly_before_is_not_given_again() {
    let before = AllocatorTest::new("", &[]);
    let mut test = AllocatorTest {
        allocator: Allocator::restore(before.allocator.assigned().clone(), BTreeMap::new()),
        now: before.now,
    };
    test.set_desired(wants(SHARED));
    test.observe(&[]);
    assert_eq!(
        test.allocator.pending_changes().len(),
        3,
        "the kubelet may not have written down its last allocation"
    );
    test.observe(&[holding("late", "nvidia.com/gpu", &["GPU-0"])]);
    for _ in 0..5 {
        test.observe(&[holding("late", "nvidia.com/gpu", &["GPU-0"])]);
    }
    assert_eq!(test.count("nvidia.com/gpu"), Some((5, 5)));
}

#[test]
fn a_device_that_somebody_else_gave_out_is_not_offered() {
    let others = [
        holding("other", "nvidia.com/gpu", &["GPU-0"]),
        holding("part", "x.y/mig", &["MIG-2-0"]),
    ];
    let mut test = AllocatorTest::new("resources: [{name: a.b/c}]", &others);
    assert_eq!(test.count("a.b/c"), Some((1, 1)));
    assert_eq!(test.allocator.holders().len(), 2, "both hold devices of this node");
    let waiting = test.allocator.pending_changes();
    assert_eq!(
        waiting[1].message,
        "GPU 2 has no resource until the last pod that holds it ends, then it becomes a.b/c"
    );
    test.observe(&[]);
    assert_eq!(test.count("a.b/c"), Some((3, 3)));
    // What is held under the wanted name is no obstacle: the state on disk was lost.
    let test = AllocatorTest::new("", &others[..1]);
    assert_eq!(test.count("nvidia.com/gpu"), Some((3, 3)));
}

#[test]
fn a_gpu_and_its_mig_devices_are_never_offered_together() {
    let held = [holding("whole", "nvidia.com/gpu", &["GPU-2"])];
    let mut test = AllocatorTest::new("", &held);
    test.set_desired(wants("mig: {strategy: Mixed}"));
    test.observe(&held);
    assert_eq!(
        test.count("nvidia.com/mig-1g.4gb"),
        Some((0, 0)),
        "the resource is there, and nothing of it"
    );
    test.observe(&[]);
    test.observe(&[]);
    assert_eq!(test.count("nvidia.com/mig-1g.4gb"), Some((2, 2)));
    assert_eq!(test.count("nvidia.com/gpu"), Some((2, 2)));
}

#[test]
fn a_resource_that_is_no_longer_configured_ends_with_its_last_holder() {
    let held = [holding("train", "nvidia.com/gpu", &["GPU-0"])];
    let mut test = AllocatorTest::new("", &held);
    test.set_desired(DesiredDevices::nothing(&node()));
    test.observe(&held);
    assert_eq!(test.count("nvidia.com/gpu"), Some((1, 1)));
    test.observe(&[]);
    test.observe(&[]);
    assert!(test.allocator.advertised().is_empty() && test.allocator.assigned().is_empty());
}

#[test]
fn a_gpu_that_is_gone_or_held_back_is_unhealthy_also_where_it_is_held() {
    let held = [holding("train", "nvidia.com/gpu", &["GPU-0"])];
    let mut test = AllocatorTest::new("", &held);
    let mut less = node();
    less.gpus.remove(0);
    test.set_desired(desired_devices(&less, &load("").unwrap()).unwrap());
    test.observe(&held);
    assert_eq!(test.count("nvidia.com/gpu"), Some((2, 3)));
    let refused = test.allocate("nvidia.com/gpu", &["GPU-0"]).unwrap_err().to_string();
    assert!(
        refused.ends_with("GPU-0 is unavailable: the driver no longer lists it"),
        "{refused}"
    );
    test.set_desired(wants(""));
    assert_eq!(test.count("nvidia.com/gpu"), Some((3, 3)));
    test.allocator
        .set_unavailable([("GPU-1".to_owned(), "its MPS daemon does not answer".to_owned())].into());
    assert_eq!(test.count("nvidia.com/gpu"), Some((2, 3)));
    assert!(matches!(
        test.allocate("nvidia.com/gpu", &["GPU-1"]),
        Err(AllocationRefusal::Unavailable { .. })
    ));
}

#[test]
fn before_the_driver_answers_held_shares_are_healthy_and_no_container_gets_another() {
    let held = [holding("train", "nvidia.com/gpu", &["GPU-0"])];
    let before = AllocatorTest::new("", &held);
    let mut test = AllocatorTest {
        allocator: Allocator::restore(before.allocator.assigned().clone(), BTreeMap::new()),
        now: before.now,
    };
    test.observe(&held);
    let healthy = |test: &AllocatorTest| test.healthy().into_iter().map(|(_, id)| id).collect::<Vec<_>>();
    assert_eq!(healthy(&test), ["GPU-0"]);
    assert_eq!(test.count("nvidia.com/gpu").map(|(_, all)| all), Some(3));
    let refused = test.allocate("nvidia.com/gpu", &["GPU-1"]).unwrap_err().to_string();
    assert!(
        refused.ends_with("GPU-1 is unavailable: the agent does not know the devices of the node yet"),
        "{refused}"
    );
    // A fault that an earlier agent saved counts meanwhile.
    test.allocator
        .set_unavailable([("GPU-0".to_owned(), "XID 79".to_owned())].into());
    assert_eq!(healthy(&test), [""; 0]);
    test.allocator.set_unavailable(BTreeMap::new());
    test.set_desired(wants(""));
    assert_eq!(test.count("nvidia.com/gpu"), Some((3, 3)));
}

#[test]
fn of_a_paused_gpu_containers_keep_their_shares_and_get_no_other_ones() {
    let held = [holding("train", "nvidia.com/gpu", &["GPU-0::1"])];
    let mut test = AllocatorTest::new(SHARED, &held);
    let pause = |gpus: &[&str]| {
        gpus.iter()
            .map(|gpu| ((*gpu).to_owned(), "it waits".to_owned()))
            .collect()
    };
    test.allocator.set_paused(pause(&["GPU-0", "GPU-1"]));
    let healthy = test.healthy();
    let of = |gpu: &str| healthy.iter().filter(|(_, id)| device_of(id) == gpu).count();
    assert_eq!((of("GPU-0"), of("GPU-1"), of("GPU-2")), (1, 0, 2));
    let refused = test.allocate("nvidia.com/gpu", &["GPU-0::0"]).unwrap_err().to_string();
    assert!(refused.ends_with("GPU-0 is unavailable: it waits"), "{refused}");
    assert!(test.allocate("nvidia.com/gpu", &["GPU-2::0"]).is_ok());
    test.allocator.set_paused(pause(&[]));
    assert!(test.allocate("nvidia.com/gpu", &["GPU-0::0"]).is_ok());
}

#[test]
fn a_gpu_that_changes_its_index_keeps_its_shares() {
    let held = [holding("train", "a.b/mem", &["GPU-0-_-3"])];
    let mut test = AllocatorTest::new(MEMORY, &held);
    let mut swapped = node();
    swapped.gpus[0].index = 1;
    swapped.gpus[1].index = 0;
    test.set_desired(desired_devices(&swapped, &load(MEMORY).unwrap()).unwrap());
    assert!(test.allocator.pending_changes().is_empty());
    let granted = test.allocate("a.b/mem", &["GPU-0-_-0", "GPU-0-_-1"]).unwrap();
    assert_eq!((granted.devices[0].0.gpu, granted.devices[0].1), (1, 2));
}

#[test]
fn holders_are_counted_per_container_and_device() {
    let held = [
        holding("b", "nvidia.com/gpu", &["GPU-1::0", "GPU-0::1", "GPU-1::1"]),
        holding("a", "nvidia.com/gpu", &["GPU-0::0"]),
        holding("nic", "rdma/hca", &["mlx5_0"]),
    ];
    let holders = AllocatorTest::new(SHARED, &held).allocator.holders();
    let counts: Vec<(&str, &str, u32)> = holders.iter().map(|of| (&*of.pod, &*of.device, of.count)).collect();
    assert_eq!(counts, [("a", "GPU-0", 1), ("b", "GPU-0", 1), ("b", "GPU-1", 2)]);
}

#[test]
fn devices_under_mps_are_those_in_force() {
    let mut test = AllocatorTest::new("", &[holding("train", "nvidia.com/gpu", &["GPU-0"])]);
    test.set_desired(wants(
        "resources: [{name: nvidia.com/gpu, sharing: {strategy: Mps, replicas: 10}}]",
    ));
    test.observe(&[holding("train", "nvidia.com/gpu", &["GPU-0"])]);
    assert_eq!(test.allocator.mps_devices(), ["GPU-1", "GPU-2"]);
}
