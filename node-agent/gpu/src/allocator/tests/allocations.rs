//! Allocations: given, refused and withheld.

use super::*;

#[test]
fn units_of_several_gpus_are_refused_with_what_fits() {
    let held = [holding(
        "one",
        "a.b/mem",
        &["GPU-2-_-0", "GPU-2-_-1", "GPU-2-_-2", "GPU-2-_-3", "GPU-2-_-4"],
    )];
    let mut test = AllocatorTest::new(MEMORY, &held);
    test.allocate("a.b/mem", &["GPU-0-_-0", "GPU-0-_-1", "GPU-0-_-2"])
        .unwrap();
    test.allocate("a.b/mem", &["GPU-1-_-0", "GPU-1-_-1"]).unwrap();
    let refused = test.allocate(
        "a.b/mem",
        &["GPU-0-_-3", "GPU-1-_-2", "GPU-1-_-3", "GPU-2-_-5", "GPU-2-_-6"],
    );
    assert_eq!(
        refused.unwrap_err().to_string(),
        "allocate a.b/mem: 5 units do not fit on one GPU: 6 units are free on this node, at most 3 on one GPU (GPU 2); \
         request at most 3, or wait until units are free"
    );
    let misplaced = test
        .allocate("a.b/mem", &["GPU-1-_-2", "GPU-2-_-5"])
        .unwrap_err()
        .to_string();
    assert!(
        misplaced.contains("the kubelet picked units of several GPUs for 2 units, though GPU 2 has 3 free"),
        "{misplaced}"
    );
}

#[test]
fn withholding_leaves_what_is_held_and_the_free_units_of_one_gpu_until_something_is_freed() {
    let mut test = AllocatorTest::new(MEMORY, &[holding("one", "a.b/mem", &["GPU-2-_-0", "GPU-2-_-1"])]);
    assert_eq!(test.allocator.withhold("a.b/mem"), 2 + 6);
    assert_eq!(test.count("a.b/mem"), Some((8, 16)));
    assert!(test.allocator.needs_observation());
    test.allocate("a.b/mem", &["GPU-2-_-2", "GPU-2-_-3", "GPU-2-_-4"])
        .unwrap();
    assert_eq!(test.count("a.b/mem"), Some((5 + 4, 16)), "now GPU 0 has most");
    let two = ["GPU-2-_-2", "GPU-2-_-3", "GPU-2-_-4"];
    let both = [
        holding("one", "a.b/mem", &["GPU-2-_-0", "GPU-2-_-1"]),
        holding("two", "a.b/mem", &two),
    ];
    test.observe(&both);
    assert_eq!(test.count("a.b/mem"), Some((9, 16)));
    test.observe(&both[1..]);
    assert_eq!(test.count("a.b/mem"), Some((16, 16)));
    assert!(!test.allocator.needs_observation());
    let mut test = AllocatorTest::new(SHARED, &[]);
    assert_eq!(
        test.allocator.withhold("nvidia.com/gpu"),
        6,
        "replicas of one container can come from several GPUs"
    );
    assert!(!test.allocator.needs_observation());
}

#[test]
fn more_than_one_replica_is_refused_where_the_resource_says_so() {
    let strict = SHARED.replace("replicas: 2", "replicas: 2, failRequestsGreaterThanOne: true");
    let mut test = AllocatorTest::new(&strict, &[]);
    let refused = test.allocate("nvidia.com/gpu", &["GPU-0::0", "GPU-1::0"]).unwrap_err();
    assert_eq!(
        refused,
        AllocationRefusal::MoreThanOne {
            resource: "nvidia.com/gpu".to_owned(),
            asked: 2
        }
    );
    assert!(test.allocate("nvidia.com/gpu", &[]).is_err());
    test.set_desired(wants(SHARED));
    let granted = test
        .allocate("nvidia.com/gpu", &["GPU-1::0", "GPU-0::0", "GPU-0::1"])
        .unwrap();
    let devices: Vec<(&str, u32)> = granted
        .devices
        .iter()
        .map(|(device, count)| (&*device.uuid, *count))
        .collect();
    assert_eq!(
        devices,
        [("GPU-0", 2), ("GPU-1", 1)],
        "rules of a resource change at once"
    );
}
