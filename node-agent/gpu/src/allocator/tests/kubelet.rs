//! Gaps in the answers of the kubelet, and choices of its topology manager.

use super::*;

#[test]
fn a_device_that_only_the_checkpoint_names_a_holder_of_does_not_change() {
    let mut test = AllocatorTest::new("", &[]);
    test.set_desired(wants(SHARED));
    let checkpoint: BTreeSet<(String, String)> = [("nvidia.com/gpu".to_owned(), "GPU-1".to_owned())].into();
    for _ in 0..10 {
        test.now += Duration::from_secs(1);
        let allocatable = test.healthy();
        let checkpoint = checkpoint.clone();
        test.allocator.observe(KubeletObservation {
            started: test.now,
            holders: Vec::new(),
            allocatable,
            checkpoint,
        });
    }
    assert_eq!(test.allocator.pending_changes().len(), 1);
    assert!(
        test.allocator.pending_changes()[0]
            .message
            .contains("such as an init container"),
        "{:?}",
        test.allocator.pending_changes()
    );
    assert!(test.allocator.waits_for_checkpoint());
    assert_eq!(
        test.count("nvidia.com/gpu"),
        Some((4, 5)),
        "the id that may be held is not given out again"
    );
    test.observe(&[]);
    assert!(test.allocator.pending_changes().is_empty() && !test.allocator.waits_for_checkpoint());
    assert_eq!(test.count("nvidia.com/gpu"), Some((6, 6)));
}

#[test]
fn units_of_gpus_on_several_numa_nodes_carry_none() {
    let nodes = |config: &str| -> BTreeSet<Option<u32>> {
        let lists = AllocatorTest::new(config, &[]).allocator.advertised();
        lists
            .iter()
            .flat_map(|list| list.shares.iter().map(|share| share.numa_node))
            .collect()
    };
    assert_eq!(nodes(MEMORY), [None].into());
    assert_eq!(nodes(SHARED), [Some(0), Some(1)].into());
    let one = "resources: [{name: a.b/mem, devices: {indices: [1]}, sharing: {strategy: Memory}}]";
    assert_eq!(nodes(one), [Some(1)].into());
}

#[test]
fn a_share_that_the_kubelet_picks_again_while_a_pod_holds_it_is_refused() {
    let mut test = AllocatorTest::new("", &[]);
    test.allocate("nvidia.com/gpu", &["GPU-0"]).unwrap();
    let ids = strings(&["GPU-0"]);
    assert!(test.allocator.is_doubtful("nvidia.com/gpu", &ids));
    test.allocate("nvidia.com/gpu", &["GPU-0"])
        .expect("an init container hands it on");
    test.observe(&[holding("train", "nvidia.com/gpu", &["GPU-0"])]);
    let refused = test.allocate("nvidia.com/gpu", &["GPU-0"]).unwrap_err().to_string();
    assert!(
        refused.starts_with("allocate nvidia.com/gpu: pod team/train holds GPU-0"),
        "{refused}"
    );
    test.observe(&[]);
    assert!(!test.allocator.is_doubtful("nvidia.com/gpu", &ids));
    test.allocate("nvidia.com/gpu", &["GPU-0"]).unwrap();
}

#[test]
fn a_share_that_was_given_out_comes_again_within_one_admission_or_on_proof() {
    let mut test = AllocatorTest::new("", &[]);
    let start = test.now;
    test.allocate("nvidia.com/gpu", &["GPU-0"]).unwrap();
    let after = |millis, unseen| {
        let requested = start + Duration::from_millis(millis);
        // The kubelet does not answer while the request waits.
        let now = requested + Duration::from_secs(3);
        // Each try on a copy: one that succeeds is another allocation.
        test.allocator
            .clone()
            .allocate("nvidia.com/gpu", &strings(&["GPU-0"]), requested, now, unseen)
    };
    after(900, Some("no socket")).expect("an init container hands it on");
    let refused = after(1100, Some("no socket")).unwrap_err().to_string();
    assert_eq!(
        refused,
        "allocate nvidia.com/gpu: GPU-0 was allocated 1.1s ago and a container may hold it, so another container cannot \
         get it (the kubelet does not answer now: no socket)"
    );
    after(1100, None).expect("the kubelet has just said that nobody holds it");
}

#[test]
fn the_refusal_of_a_held_share_says_how_old_that_is_and_why_it_is_not_newer() {
    let mut test = AllocatorTest::new("", &[holding("train", "nvidia.com/gpu", &["GPU-0"])]);
    let later = test.now + Duration::from_secs(7);
    let refused = test
        .allocator
        .allocate("nvidia.com/gpu", &strings(&["GPU-0"]), later, later, Some("no socket"))
        .unwrap_err();
    assert_eq!(
        refused.to_string(),
        "allocate nvidia.com/gpu: pod team/train holds GPU-0 according to the kubelet 7.0s ago, so another container cannot \
         get it (the kubelet does not answer now: no socket)"
    );
}

/// A plugin that served the resource meanwhile gave it to a pod that still runs.
#[test]
fn a_device_that_a_pod_has_from_another_plugin_is_given_to_nobody_until_that_pod_ends() {
    for (config, theirs, id, all) in [
        (SHARED, "GPU-0", "GPU-0::0", 6),
        ("", "GPU-0::3", "GPU-0", 3),
        (MEMORY, "GPU-0", "GPU-0-_-1", 16),
    ] {
        let mut test = AllocatorTest::new(config, &[]);
        let resource = test.allocator.advertised()[0].name.clone();
        let (total, _) = test.count(&resource).unwrap();
        assert_eq!(total, all, "{config}");
        test.observe(&[holding("train", "nvidia.com/gpu", &[theirs])]);
        let of_device = |test: &AllocatorTest| {
            let healthy = test.healthy().into_iter();
            healthy.filter(|(_, id)| device_of(id) == "GPU-0").count()
        };
        assert_eq!(of_device(&test), 0, "{config}");
        let refused = test.allocate(&resource, &[id]).unwrap_err().to_string();
        assert!(refused.contains("a container has it from another plugin"), "{refused}");
        let [waiting] = test.allocator.pending_changes().try_into().unwrap();
        assert_eq!(waiting.pods, ["team/train"]);
        assert!(
            waiting.message.ends_with(
                " and also held by a pod of another plugin; no container gets a share of it until the last pod that holds \
                 it ends"
            ),
            "{}",
            waiting.message
        );
        test.observe(&[]);
        assert_eq!(test.count(&resource).unwrap().0, all, "{config}");
        assert!(test.allocator.pending_changes().is_empty());
        test.allocate(&resource, &[id]).unwrap();
    }
}

#[test]
fn shares_that_others_hold_of_a_device_stay_healthy_while_a_pod_has_it_from_another_plugin() {
    let held = [
        holding("ours", "nvidia.com/gpu", &["GPU-0::1"]),
        holding("theirs", "nvidia.com/gpu", &["GPU-0"]),
    ];
    let mut test = AllocatorTest::new(SHARED, &held[..1]);
    test.observe(&held);
    let healthy: Vec<String> = test.healthy().into_iter().map(|(_, id)| id).collect();
    assert!(healthy.contains(&"GPU-0::1".to_owned()) && !healthy.contains(&"GPU-0::0".to_owned()));
    assert_eq!(test.allocator.pending_changes()[0].pods, ["team/theirs"]);
    assert!(!test.allocator.needs_observation(), "such a pod can run for weeks");
}

#[test]
fn a_device_that_another_plugin_gave_out_meanwhile_as_now_desired_changes_under_its_pods() {
    // Saved by an agent that has left the node since; another plugin served the node until now.
    let mut saved = AllocatorTest::new(MEMORY, &[]).allocator.assigned().clone();
    saved.retain(|uuid, _| uuid != "GPU-2");
    let mut test = AllocatorTest {
        allocator: Allocator::restore(saved, BTreeMap::new()),
        now: Instant::now(),
    };
    test.set_desired(wants(SHARED));
    let others = holding("theirs", "nvidia.com/gpu", &["GPU-0::1", "GPU-1::0"]);
    let ours = holding("ours", "a.b/mem", &["GPU-1-_-3"]);
    for _ in 0..10 {
        test.observe(&[others.clone(), ours.clone()]);
    }
    let assigned = test.allocator.assigned();
    assert_eq!(assigned["GPU-0"].resource, "nvidia.com/gpu");
    assert_eq!(assigned["GPU-1"].resource, "a.b/mem", "a pod holds it as it is");
    let pending = test.allocator.pending_changes();
    assert_eq!(pending.len(), 1, "{pending:?}");
    assert_eq!(pending[0].pods, ["team/ours"], "nobody waits for the other pod");
    assert!(
        test.healthy()
            .contains(&("nvidia.com/gpu".to_owned(), "GPU-0::1".to_owned())),
        "a held share stays healthy: {:?}",
        test.healthy()
    );
    let error = test.allocate("nvidia.com/gpu", &["GPU-0::1"]).unwrap_err();
    assert!(error.to_string().contains("pod team/theirs holds GPU-0::1"), "{error}");
    test.allocate("nvidia.com/gpu", &["GPU-0::0"]).unwrap();
    // An own share that is in the checkpoint alone is all that is waited for.
    let allocatable = test.healthy();
    test.now += Duration::from_secs(1);
    test.allocator.observe(KubeletObservation {
        started: test.now,
        holders: vec![others.clone()],
        allocatable,
        checkpoint: [("a.b/mem".to_owned(), "GPU-1-_-3".to_owned())].into(),
    });
    assert!(test.allocator.waits_for_checkpoint());
    test.observe(&[others]);
    assert!(test.allocator.pending_changes().is_empty());
}

#[test]
fn no_mps_daemon_comes_between_processes_that_another_plugin_gave_the_device_to() {
    let mut test = AllocatorTest {
        allocator: Allocator::restore(
            AllocatorTest::new(MEMORY, &[]).allocator.assigned().clone(),
            BTreeMap::new(),
        ),
        now: Instant::now(),
    };
    test.set_desired(wants(
        "resources: [{name: nvidia.com/gpu, sharing: {strategy: Mps, replicas: 2}}]",
    ));
    let others = [holding("theirs", "nvidia.com/gpu", &["GPU-0::1"])];
    for _ in 0..10 {
        test.observe(&others);
    }
    assert_eq!(test.allocator.assigned()["GPU-0"].resource, "a.b/mem");
    assert_eq!(test.allocator.assigned()["GPU-1"].resource, "nvidia.com/gpu");
    assert_eq!(test.allocator.pending_changes()[0].pods, ["team/theirs"]);
    test.observe(&[]);
    assert_eq!(test.allocator.assigned()["GPU-0"].resource, "nvidia.com/gpu");
}

#[test]
fn a_share_that_could_be_of_either_sharing_keeps_its_device_as_it_is() {
    let held = holding("ours", "nvidia.com/gpu", &["GPU-0::1"]);
    let mut test = AllocatorTest::new(SHARED, std::slice::from_ref(&held));
    // Its pod is evicted, and holds it still.
    test.allocator.withdraw_switching(true);
    // Replicas under MPS have the same ids as time slices.
    test.set_desired(wants(
        "resources: [{name: nvidia.com/gpu, sharing: {strategy: Mps, replicas: 2}}]",
    ));
    for _ in 0..10 {
        test.observe(std::slice::from_ref(&held));
    }
    let sharing = |uuid: &str| test.allocator.assigned()[uuid].sharing;
    assert_eq!(sharing("GPU-0"), DeviceSharing::TimeSlicing { replicas: 2 });
    assert_eq!(sharing("GPU-1"), DeviceSharing::Mps { replicas: 2 });
}

#[test]
fn a_device_of_which_only_the_checkpoint_names_a_holder_from_another_plugin_waits_for_the_checkpoint_alone() {
    let ours = [holding("ours", "nvidia.com/gpu", &["GPU-0::1"])];
    let mut test = AllocatorTest::new(SHARED, &ours);
    let resource = "nvidia.com/gpu".to_owned();
    let allocatable = test.healthy();
    test.now += Duration::from_secs(1);
    test.allocator.observe(KubeletObservation {
        started: test.now,
        holders: ours.to_vec(),
        allocatable,
        checkpoint: [
            (resource.clone(), "GPU-0".to_owned()),
            (resource, "GPU-0::1".to_owned()),
        ]
        .into(),
    });
    assert!(test.allocator.waits_for_checkpoint());
    let [waiting] = test.allocator.pending_changes().try_into().unwrap();
    assert!(
        waiting.message.contains("until the kubelet's checkpoint no longer has") && waiting.pods.is_empty(),
        "{waiting:?}"
    );
    test.observe(&ours);
    assert!(!test.allocator.waits_for_checkpoint() && test.allocator.pending_changes().is_empty());
}
