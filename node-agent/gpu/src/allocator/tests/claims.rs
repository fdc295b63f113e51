//! Pods with devices of NVIDIA's DRA driver: they hold GPUs like any other.

use super::*;

fn claiming(pod: &str, devices: &[&str]) -> ContainerShares {
    holding(pod, "gpu.nvidia.com", devices)
}

/// The node with minor numbers that are not the indices.
fn with_minors(config: &str) -> DesiredDevices {
    let mut node = node();
    for (gpu, minor) in node.gpus.iter_mut().zip([1, 0, 3]) {
        gpu.minor = Some(minor);
    }
    desired_devices(&node, &load(config).unwrap()).unwrap()
}

fn test(holders: &[ContainerShares]) -> AllocatorTest {
    let mut test = AllocatorTest::of(with_minors(""), &[]);
    test.observe(holders);
    test
}

fn healthy_ids(test: &AllocatorTest) -> Vec<String> {
    let whole = |(name, id): (String, String)| (name == "nvidia.com/gpu").then_some(id);
    test.healthy().into_iter().filter_map(whole).collect()
}

#[test]
fn claimed_gpu_is_given_to_nobody_else_until_the_claim_ends() {
    let mut test = test(&[claiming("dra", &["gpu-1"])]);
    let claimed = test.allocator.holders();
    assert_eq!(claimed.len(), 1, "{claimed:?}");
    let (holder, uuid) = (&claimed[0], claimed[0].device.clone());
    assert_eq!(
        (holder.pod.as_str(), holder.resource.as_str(), holder.count),
        ("dra", "gpu.nvidia.com", 1)
    );
    let free = healthy_ids(&test);
    assert!(!free.contains(&uuid) && !free.is_empty(), "{free:?}");
    assert!(matches!(
        test.allocate("nvidia.com/gpu", &[&uuid]),
        Err(AllocationRefusal::Unavailable { .. })
    ));
    let pending = test.allocator.pending_changes();
    assert_eq!(pending.len(), 1, "{pending:?}");
    assert_eq!(pending[0].pods, ["team/dra"]);
    assert!(
        pending[0].message.contains("held by a pod of another plugin"),
        "{}",
        pending[0].message
    );
    test.observe(&[]);
    assert!(healthy_ids(&test).contains(&uuid));
}

#[test]
fn claim_of_a_mig_device_holds_its_gpu() {
    let whole = test(&[claiming("dra", &["gpu-1"])]).allocator.holders();
    let part = test(&[claiming("dra", &["gpu-1-mig-1g5gb-19-4"])]).allocator.holders();
    assert_eq!(whole, part);
}

#[test]
fn claim_that_does_not_tell_its_gpu_holds_every_gpu() {
    for name in ["gpu-vfio-0", "gpu-9", "gpu-", "later"] {
        let test = test(&[claiming("dra", &[name])]);
        assert_eq!(healthy_ids(&test), [""; 0], "{name}");
        assert_eq!(test.allocator.holders().len(), 3, "{name}");
    }
}

#[test]
fn sharing_of_a_claimed_gpu_changes_when_the_claim_has_ended() {
    let claim = [claiming("dra", &["gpu-0", "gpu-1", "gpu-3"])];
    let mut test = test(&claim);
    let before = test.allocator.assigned().clone();
    test.set_desired(with_minors(SHARED));
    for _ in 0..3 {
        test.observe(&claim);
    }
    assert_eq!(*test.allocator.assigned(), before);
    test.observe(&[]);
    assert_ne!(*test.allocator.assigned(), before);
}

/// The kubelet answers before it has the agent's first list and before the claim, and the agent hears it after its change.
#[test]
fn claim_that_came_after_a_slow_observation_began_keeps_its_gpu() {
    let mut test = test(&[]);
    test.now += Duration::from_secs(1);
    let slow = nothing_held(test.now);
    test.now += Duration::from_millis(1);
    let before = test.allocator.assigned().clone();
    test.set_desired(with_minors(SHARED));
    test.allocator.observe(slow);
    assert_eq!(*test.allocator.assigned(), before);
    test.observe(&[claiming("dra", &["gpu-0", "gpu-1", "gpu-3"])]);
    assert_eq!(*test.allocator.assigned(), before);
    test.observe(&[]);
    assert_ne!(*test.allocator.assigned(), before);
}

#[test]
fn claim_that_is_observed_before_the_devices_counts_too() {
    let mut test = AllocatorTest {
        allocator: Allocator::default(),
        now: Instant::now(),
    };
    test.observe(&[claiming("dra", &["gpu-1"])]);
    test.set_desired(with_minors(""));
    let claimed = test.allocator.holders().remove(0).device;
    assert!(!healthy_ids(&test).contains(&claimed));
    assert!(!test.allocator.assigned().contains_key(&claimed));
}
