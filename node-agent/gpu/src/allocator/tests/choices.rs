//! Preferred shares.

use super::*;

fn free(test: &AllocatorTest) -> Vec<String> {
    test.healthy().into_iter().map(|(_, id)| id).collect()
}

fn preferred(test: &AllocatorTest, resource: &str, available: &[String], must: &[&str], size: usize) -> Vec<String> {
    let chosen = test
        .allocator
        .preferred(resource, available, &strings(must), size, &BTreeMap::new())
        .ids;
    let reversed: Vec<String> = available.iter().rev().cloned().collect();
    assert_eq!(
        chosen,
        test.allocator
            .preferred(resource, &reversed, &strings(must), size, &BTreeMap::new())
            .ids
    );
    chosen
}

fn has_tie(test: &AllocatorTest, resource: &str, available: &[String], size: usize) -> bool {
    test.allocator
        .preferred(resource, available, &[], size, &BTreeMap::new())
        .is_tied
}

fn without(available: &[String], taken: &[&str]) -> Vec<String> {
    available
        .iter()
        .filter(|id| !taken.contains(&id.as_str()))
        .cloned()
        .collect()
}

#[test]
fn whole_gpus_come_from_one_numa_node_and_in_the_order_of_their_index() {
    let test = AllocatorTest::new("", &[]);
    let available = strings(&["GPU-2", "GPU-1", "GPU-0"]);
    assert_eq!(preferred(&test, "nvidia.com/gpu", &available, &[], 1), ["GPU-0"]);
    assert_eq!(
        preferred(&test, "nvidia.com/gpu", &available, &[], 2),
        ["GPU-0", "GPU-2"]
    );
    assert_eq!(
        preferred(&test, "nvidia.com/gpu", &available, &["GPU-2"], 2),
        ["GPU-2", "GPU-0"]
    );
    assert_eq!(
        preferred(&test, "nvidia.com/gpu", &available, &["GPU-1"], 2),
        ["GPU-1", "GPU-0"]
    );
    assert!(!has_tie(&test, "nvidia.com/gpu", &available, 1));
}

#[test]
fn replicas_of_one_request_are_spread_and_a_new_one_goes_where_least_is_held() {
    let test = AllocatorTest::new(SHARED, &[]);
    let all = free(&test);
    assert_eq!(
        preferred(&test, "nvidia.com/gpu", &all, &[], 4),
        ["GPU-0::0", "GPU-1::0", "GPU-2::0", "GPU-0::1"]
    );
    let some = without(&all, &["GPU-0::0", "GPU-2::1"]);
    assert_eq!(preferred(&test, "nvidia.com/gpu", &some, &[], 1), ["GPU-1::0"]);
    assert_eq!(
        preferred(&test, "nvidia.com/gpu", &some, &[], 2),
        ["GPU-0::1", "GPU-2::0"],
        "one NUMA node"
    );
    assert_eq!(
        preferred(&test, "nvidia.com/gpu", &all, &["GPU-0::1"], 2),
        ["GPU-0::1", "GPU-2::0"]
    );
}

#[test]
fn utilisation_decides_between_gpus_of_which_equally_much_is_held() {
    let test = AllocatorTest::new(SHARED, &[]);
    let all = free(&test);
    let busy = [(0, 90), (1, 5), (2, 40)].into();
    let with = |resource: &str, available: &[String], size| {
        test.allocator.preferred(resource, available, &[], size, &busy).ids
    };
    assert_eq!(with("nvidia.com/gpu", &all, 1), ["GPU-1::0"]);
    assert!(has_tie(&test, "nvidia.com/gpu", &all, 1));
    assert!(!has_tie(&test, "nvidia.com/gpu", &all, 2), "two are on one NUMA node");
    assert!(!has_tie(&test, "nvidia.com/gpu", &all, 3), "all of them are picked");
    assert_eq!(
        with("nvidia.com/gpu", &all, 4),
        ["GPU-0::0", "GPU-1::0", "GPU-2::0", "GPU-1::1"]
    );
    let one_left = without(&all, &["GPU-0::0", "GPU-2::0"]);
    assert!(!has_tie(&test, "nvidia.com/gpu", &one_left, 1));
    let shares = "resources: [{name: a.b/mps, sharing: {strategy: Mps, replicas: 2}}]";
    let test = AllocatorTest::new(shares, &[]);
    assert_eq!(
        test.allocator.preferred("a.b/mps", &free(&test), &[], 2, &busy).ids,
        ["GPU-1::0", "GPU-1::1"]
    );
    assert!(has_tie(&test, "a.b/mps", &free(&test), 2));
    let used = without(&free(&test), &["GPU-1::0"]);
    assert_eq!(
        test.allocator.preferred("a.b/mps", &used, &[], 1, &busy).ids,
        ["GPU-2::0"]
    );
    let test = AllocatorTest::new(&shares.replace("a.b/mps,", "a.b/mps, allocation: Packed,"), &[]);
    assert_eq!(
        test.allocator.preferred("a.b/mps", &used, &[], 1, &busy).ids,
        ["GPU-1::1"],
        "the fullest"
    );
}

#[test]
fn units_come_from_the_fullest_or_the_emptiest_gpu_on_which_they_fit() {
    for (placement, gpu) in [("Packed", "GPU-1"), ("Spread", "GPU-2")] {
        let config = MEMORY.replace("Memory", &format!("Memory, placement: {placement}"));
        let test = AllocatorTest::new(&config, &[]);
        let available = without(&free(&test), &["GPU-1-_-0"]);
        let chosen = preferred(&test, "a.b/mem", &available, &[], 2);
        assert!(chosen.iter().all(|id| device_of(id) == gpu), "{placement}: {chosen:?}");
        let large = preferred(&test, "a.b/mem", &available, &[], 5);
        assert!(large.iter().all(|id| device_of(id) == "GPU-2"), "{large:?}");
        let begun = preferred(&test, "a.b/mem", &available, &["GPU-0-_-2"], 3);
        assert!(begun.iter().all(|id| device_of(id) == "GPU-0"), "{begun:?}");
        assert_eq!(begun.len(), 3);
        assert_eq!(
            preferred(&test, "a.b/mem", &available, &[], 10).len(),
            10,
            "it fits nowhere: best effort"
        );
    }
}

#[test]
fn shares_of_a_device_that_waits_come_last() {
    let held = [holding("one", "a.b/mem", &["GPU-0-_-0"])];
    let mut test = AllocatorTest::new(MEMORY, &held);
    let before = without(&free(&test), &["GPU-0-_-0"]);
    test.set_desired(wants(
        "resources: [{name: x.y/z, devices: {indices: [0]}}, {name: a.b/mem, sharing: {strategy: Memory}}]",
    ));
    let chosen = preferred(&test, "a.b/mem", &before, &[], 2);
    assert!(
        chosen.iter().all(|id| device_of(id) == "GPU-1"),
        "GPU 0 is fuller, and is to change: {chosen:?}"
    );
}

#[test]
fn shares_that_the_kubelet_said_to_be_held_are_taken_last() {
    let test = AllocatorTest::new("", &[holding("train", "nvidia.com/gpu", &["GPU-0"])]);
    let all = strings(&["GPU-0", "GPU-1", "GPU-2"]);
    assert_eq!(preferred(&test, "nvidia.com/gpu", &all, &[], 2), ["GPU-1", "GPU-2"]);
    assert_eq!(
        preferred(&test, "nvidia.com/gpu", &all, &[], 3).len(),
        3,
        "it may be free by now"
    );

    let test = AllocatorTest::new(SHARED, &[holding("train", "nvidia.com/gpu", &["GPU-0::0"])]);
    let some = strings(&["GPU-0::0", "GPU-0::1", "GPU-1::1"]);
    assert_eq!(
        preferred(&test, "nvidia.com/gpu", &some, &[], 2),
        ["GPU-0::1", "GPU-1::1"]
    );

    // A pod on GPU 0 is gone, which the kubelet knows already.
    let held = [
        holding("train", "nvidia.com/gpu", &["GPU-0::0"]),
        holding("more", "nvidia.com/gpu", &["GPU-1::1"]),
        holding("others", "nvidia.com/gpu", &["GPU-2::1"]),
    ];
    let test = AllocatorTest::new(SHARED, &held);
    let free = strings(&["GPU-0::0", "GPU-0::1", "GPU-1::0", "GPU-2::0"]);
    assert_eq!(
        preferred(&test, "nvidia.com/gpu", &free, &[], 1),
        ["GPU-0::1"],
        "the least loaded"
    );
    assert!(!has_tie(&test, "nvidia.com/gpu", &free, 1));

    let held = holding("train", "a.b/mem", &["GPU-0-_-0", "GPU-0-_-1", "GPU-0-_-2"]);
    let test = AllocatorTest::new(MEMORY, &[held]);
    let all: Vec<String> = test.allocator.advertised()[0]
        .shares
        .iter()
        .map(|share| share.id.clone())
        .collect();
    assert_eq!(preferred(&test, "a.b/mem", &all, &[], 1), ["GPU-0-_-3"]);
    let two = preferred(&test, "a.b/mem", &all, &[], 2);
    assert!(
        two.iter().all(|id| device_of(id) == "GPU-1"),
        "GPU 0 is fuller, with too little that is surely free: {two:?}"
    );
    let full = without(
        &all,
        &[
            "GPU-1-_-0",
            "GPU-2-_-0",
            "GPU-2-_-1",
            "GPU-2-_-2",
            "GPU-2-_-3",
            "GPU-2-_-4",
        ],
    );
    let chosen = preferred(&test, "a.b/mem", &full, &[], 4);
    assert!(
        chosen.iter().all(|id| device_of(id) == "GPU-0"),
        "better one that may be free than a split: {chosen:?}"
    );
}

#[test]
fn ids_of_an_earlier_list_are_taken_last_and_too_few_give_what_there_is() {
    let test = AllocatorTest::new("", &[]);
    let some = strings(&["GPU-9", "GPU-1", "GPU-0::1"]);
    assert_eq!(preferred(&test, "nvidia.com/gpu", &some, &[], 2), ["GPU-1", "GPU-0::1"]);
    assert_eq!(preferred(&test, "nvidia.com/gpu", &some, &[], 7).len(), 3);
    assert_eq!(preferred(&test, "no.such/thing", &some, &[], 1), ["GPU-0::1"]);
}

#[test]
fn replicas_of_one_request_come_from_one_gpu_where_they_are_to_be_packed() {
    let test = AllocatorTest::new(&SHARED.replace("gpu,", "gpu, allocation: Packed,"), &[]);
    let all = free(&test);
    assert_eq!(
        preferred(&test, "nvidia.com/gpu", &all, &[], 2),
        ["GPU-0::0", "GPU-0::1"]
    );
    let used = without(&all, &["GPU-1::0"]);
    assert_eq!(
        preferred(&test, "nvidia.com/gpu", &used, &[], 1),
        ["GPU-1::1"],
        "the fullest, and the others stay whole"
    );
}

#[test]
fn mig_devices_come_from_a_gpu_in_use_whatever_holds_its_other_parts() {
    let mut inventory = node();
    let template = inventory.gpus[2].clone();
    for index in [0, 1] {
        let mig_devices = template.mig_devices.iter().cloned();
        let mig = |mut mig: MigInstance| {
            mig.facts.uuid = format!("MIG-{index}-{}", mig.index);
            mig.facts.profile = if mig.index == 0 { "1g.4gb" } else { "2g.4gb" }.to_owned();
            mig
        };
        inventory.gpus[index].mig_devices = mig_devices.map(mig).collect();
        inventory.gpus[index].mig_mode = Some(MigMode::Enabled);
    }
    let test = |allocation: &str, holders: &[ContainerShares]| {
        let config = format!(
            "mig: {{strategy: Mixed}}\nresources: [{{name: a.b/small, allocation: {allocation}, devices: {{migProfiles: [1g.4gb]}}}}]"
        );
        AllocatorTest::of(desired_devices(&inventory, &load(&config).unwrap()).unwrap(), holders)
    };
    let small = strings(&["MIG-0-0", "MIG-1-0", "MIG-2-0", "MIG-2-1"]);
    let held = [holding("large", "nvidia.com/mig-2g.4gb", &["MIG-1-1"])];
    for (allocation, one) in [("Topology", "MIG-1-0"), ("Packed", "MIG-1-0"), ("Spread", "MIG-0-0")] {
        assert_eq!(
            preferred(&test(allocation, &held), "a.b/small", &small, &[], 1),
            [one],
            "{allocation}"
        );
    }
    let two = preferred(&test("Topology", &[]), "a.b/small", &small, &[], 2);
    assert_eq!(two, ["MIG-2-0", "MIG-2-1"], "as few GPUs as possible");
}

#[test]
fn another_allocation_changes_no_id_and_holds_for_the_next_container() {
    let mut test = AllocatorTest::new(SHARED, &[holding("train", "nvidia.com/gpu", &["GPU-0::0"])]);
    let (lists, saved) = (test.allocator.advertised(), test.allocator.assigned().clone());
    let available = without(&free(&test), &["GPU-0::0"]);
    assert_eq!(preferred(&test, "nvidia.com/gpu", &available, &[], 1), ["GPU-1::0"]);
    for (allocation, one) in [("Packed", "GPU-0::1"), ("Spread", "GPU-1::0"), ("Topology", "GPU-1::0")] {
        test.set_desired(wants(
            &SHARED.replace("gpu,", &format!("gpu, allocation: {allocation},")),
        ));
        assert_eq!(
            (test.allocator.advertised(), test.allocator.assigned()),
            (lists.clone(), &saved),
            "{allocation}"
        );
        assert!(test.allocator.pending_changes().is_empty() && !test.allocator.needs_observation());
        assert_eq!(
            preferred(&test, "nvidia.com/gpu", &available, &[], 1),
            [one],
            "{allocation}"
        );
    }
}
