//! MIG devices that the node does not list: a GPU is not given out as a whole beside a part of it.

use super::*;

/// The node while its driver does not say that GPU 2 is divided.
fn undivided() -> DesiredDevices {
    let mut node = node();
    for gpu in &mut node.gpus {
        gpu.mig_mode = None;
        gpu.mig_devices.clear();
    }
    desired_devices(&node, &load("").unwrap()).unwrap()
}

fn observation(
    test: &mut AllocatorTest,
    holders: &[ContainerShares],
    checkpoint: &[(&str, &str)],
) -> KubeletObservation {
    test.now += Duration::from_secs(1);
    KubeletObservation {
        started: test.now,
        holders: holders.to_vec(),
        allocatable: test.healthy(),
        checkpoint: checkpoint
            .iter()
            .map(|(name, id)| ((*name).to_owned(), (*id).to_owned()))
            .collect(),
    }
}

fn undivided_test(allocator: Allocator) -> AllocatorTest {
    let mut test = AllocatorTest {
        allocator,
        now: Instant::now(),
    };
    test.set_desired(undivided());
    test
}

#[test]
fn no_gpu_is_offered_whole_while_a_mig_device_that_nobody_knows_is_held() {
    let resource = "nvidia.com/mig-1g.4gb";
    let mut test = undivided_test(Allocator::default());
    for (holders, checkpoint) in [
        (vec![holding("train", resource, &["MIG-2-0"])], vec![]),
        (vec![], vec![(resource, "MIG-2-0")]),
        (vec![holding("train", "a.b/mem", &["MIG-2-0-_-1"])], vec![]),
    ] {
        let observation = observation(&mut test, &holders, &checkpoint);
        test.allocator.observe(observation);
        assert_eq!(test.count("nvidia.com/gpu"), Some((0, 0)));
        assert_eq!(test.allocator.pending_changes().len(), 3);
        assert_eq!(test.allocator.waits_for_checkpoint(), holders.is_empty());
    }
    test.observe(&[]);
    assert_eq!(test.count("nvidia.com/gpu"), Some((3, 3)));
}

#[test]
fn gpus_in_service_stay_so_when_a_mig_device_that_nobody_knows_is_held() {
    let resource = "nvidia.com/mig-1g.4gb";
    let mut test = undivided_test(Allocator::default());
    test.observe(&[]);
    for (holders, checkpoint) in [
        (vec![holding("train", resource, &["MIG-9-9"])], vec![]),
        (vec![], vec![(resource, "MIG-9-9")]),
    ] {
        let observation = observation(&mut test, &holders, &checkpoint);
        test.allocator.observe(observation);
        assert_eq!(test.count("nvidia.com/gpu"), Some((3, 3)));
        assert!(test.allocator.pending_changes().is_empty());
    }
    test.allocate("nvidia.com/gpu", &["GPU-0"]).unwrap();
}

#[test]
fn a_saved_mig_device_that_has_left_keeps_back_its_own_gpu_alone() {
    let saved = r#"{"resource":"a.b/part","sharing":{"strategy":"Whole"},"gpuUuid":"GPU-2"}"#;
    let held = [holding("train", "a.b/part", &["MIG-2-0"])];
    let mut test = undivided_test(Allocator::restore(
        [("MIG-2-0".to_owned(), serde_json::from_str(saved).unwrap())].into(),
        BTreeMap::new(),
    ));
    for _ in 0..10 {
        test.observe(&held);
    }
    assert_eq!(test.count("nvidia.com/gpu"), Some((2, 2)));
    test.observe(&[]);
    assert_eq!(test.count("nvidia.com/gpu"), Some((3, 3)));
}
