use super::*;
use gpunode_gpu::{AdvertisedShare, ContainerShares};

const GPU: &str = "nvidia.com/gpu";

/// A registered resource, and the clock of its kubelet.
struct Bench {
    served: ServedResource,
    start: Instant,
}

impl Bench {
    /// Registers GPUs `a` and `b`, and observes at second 0 the pod `team/old`, which holds `a`.
    fn new() -> Self {
        let start = Instant::now();
        let mut bench = Self {
            served: ServedResource::new(start),
            start,
        };
        bench.send(0.0, &["a", "b"]);
        bench.observe(0.0, &["a", "b"], &[("old", "a")]);
        bench
    }

    fn at(&self, second: f64) -> Instant {
        self.start + Duration::from_secs_f64(second)
    }

    /// Sends a list; `!` marks an unhealthy id.
    fn send(&mut self, second: f64, ids: &[&str]) {
        let shares = ids.iter().map(|id| AdvertisedShare {
            id: id.trim_start_matches('!').to_owned(),
            healthy: !id.starts_with('!'),
            numa_node: None,
            surplus: false,
        });
        let list = AdvertisedResource {
            name: GPU.to_owned(),
            is_companion: false,
            shares: shares.collect(),
        };
        self.served.send(&Arc::new(list), self.at(second));
    }

    fn request(&mut self, second: f64, id: &str) {
        self.served.request(&[id.to_owned()], self.at(second));
    }

    fn observe(&mut self, second: f64, healthy: &[&str], holders: &[(&str, &str)]) {
        let ids = holders.iter().map(|(_, id)| *id).collect::<Vec<_>>();
        self.observe_with_checkpoint(second, healthy, holders, &ids);
    }

    fn observe_with_checkpoint(
        &mut self,
        second: f64,
        healthy: &[&str],
        holders: &[(&str, &str)],
        checkpoint: &[&str],
    ) {
        let pairs = |ids: &[&str]| ids.iter().map(|id| (GPU.to_owned(), (*id).to_owned())).collect();
        let holders = holders.iter().map(|(pod, id)| ContainerShares {
            namespace: "team".to_owned(),
            pod: (*pod).to_owned(),
            container: "main".to_owned(),
            resource: GPU.to_owned(),
            ids: vec![(*id).to_owned()],
        });
        let observation = KubeletObservation {
            started: self.at(second),
            holders: holders.collect(),
            allocatable: pairs(healthy),
            checkpoint: pairs(checkpoint),
        };
        self.served.observe(GPU, &observation);
    }

    fn holds_lists(&self, second: f64) -> bool {
        self.served.list_hold().is_some_and(|hold| self.at(second) < hold.until)
    }

    fn other(&self) -> Option<String> {
        self.served.other().map(ToString::to_string)
    }
}

#[test]
fn foreign_ids_in_two_looks_are_another_plugins() {
    let mut bench = Bench::new();
    bench.observe(10.0, &["another"], &[("old", "a")]);
    assert_eq!(bench.other(), None);
    assert!(bench.served.is_doubtful(), "the next look must come soon");
    bench.observe(10.9, &["another"], &[("old", "a")]);
    assert_eq!(bench.other(), None, "the looks are too close together");
    bench.observe(11.0, &["another"], &[("old", "a")]);
    let expected = "the kubelet has device another, which gpunode does not advertise";
    assert_eq!(bench.other().as_deref(), Some(expected));
}

#[test]
fn a_look_between_that_agrees_starts_over() {
    let mut bench = Bench::new();
    bench.observe(10.0, &["another"], &[]);
    bench.observe(10.5, &["a", "b"], &[]);
    assert!(!bench.served.is_doubtful());
    bench.observe(11.0, &["another"], &[]);
    assert_eq!(bench.other(), None);
}

#[test]
fn an_unhealthy_id_that_the_kubelet_allocates_is_another_plugins() {
    let mut bench = Bench::new();
    bench.send(10.0, &["a", "!b"]);
    bench.observe(10.5, &["a", "b"], &[]);
    assert!(!bench.served.is_doubtful(), "the kubelet may not have the list yet");
    bench.observe(11.0, &["a", "b"], &[]);
    bench.observe(12.0, &["a", "b"], &[]);
    let expected = "the kubelet allocates device b, which gpunode advertises as unhealthy";
    assert_eq!(bench.other().as_deref(), Some(expected));
}

#[test]
fn a_kubelet_that_was_slow_with_a_list_is_believed_again() {
    let mut bench = Bench::new();
    bench.send(10.0, &["a", "!b"]);
    bench.observe(11.0, &["a", "b"], &[]);
    bench.observe(12.0, &["a", "b"], &[]);
    assert!(bench.other().is_some());
    bench.observe(13.0, &["a"], &[]);
    assert!(bench.other().is_some());
    bench.observe(14.0, &["a"], &[]);
    assert_eq!(bench.other(), None);
}

#[test]
fn a_kubelet_without_the_resource_does_not_agree() {
    let mut bench = Bench::new();
    for second in [10.0, 11.0] {
        bench.observe(second, &["another"], &[]);
    }
    for second in [12.0, 13.0, 14.0] {
        bench.observe(second, &[], &[]);
    }
    assert!(
        bench.other().is_some(),
        "the end of the other plugin is another decision"
    );
}

#[test]
fn a_kubelet_with_fewer_ids_than_advertised_proves_nothing() {
    let mut bench = Bench::new();
    for second in [10.0, 11.0, 12.0] {
        bench.observe(second, &["b"], &[]);
    }
    assert_eq!(bench.other(), None);
}

#[test]
fn a_holder_that_the_kubelet_never_asked_for_has_its_id_from_another_plugin() {
    let mut bench = Bench::new();
    for second in [10.0, 11.0] {
        bench.observe(second, &["a", "b"], &[("old", "a"), ("new", "b")]);
    }
    let expected = "pod team/new holds device b, and the kubelet did not ask gpunode for it";
    assert_eq!(bench.other().as_deref(), Some(expected));
    for second in [12.0, 13.0, 14.0] {
        bench.observe(second, &["a", "b"], &[("old", "a")]);
    }
    assert!(
        bench.other().is_some(),
        "the end of the pod is not the end of the plugin"
    );
}

#[test]
fn an_id_that_changes_hands_without_a_request_comes_from_another_plugin() {
    let mut bench = Bench::new();
    for second in [10.0, 11.0] {
        bench.observe(second, &["a", "b"], &[("new", "a")]);
    }
    assert!(bench.other().is_some());
}

#[test]
fn requested_ids_have_one_holder_each() {
    let mut bench = Bench::new();
    bench.request(3.0, "b");
    for second in [4.0, 5.0, 6.0] {
        bench.observe(second, &["a", "b"], &[("old", "a"), ("new", "b")]);
    }
    assert_eq!(bench.other(), None);
    for second in [7.0, 8.0] {
        bench.observe(second, &["a", "b"], &[("old", "a"), ("next", "b")]);
    }
    assert!(bench.other().is_some());
}

#[test]
fn a_request_during_a_look_counts_for_the_next_holder() {
    let mut bench = Bench::new();
    // The pod that holds it ended after the look had begun.
    bench.request(10.1, "a");
    bench.observe(10.0, &["a", "b"], &[("old", "a")]);
    for second in [11.0, 12.0, 13.0] {
        bench.observe(second, &["a", "b"], &[("new", "a")]);
    }
    assert_eq!(bench.other(), None);
}

#[test]
fn a_second_container_of_the_pod_may_hold_the_same_id() {
    let mut bench = Bench::new();
    bench.request(3.0, "b");
    for second in [4.0, 5.0, 6.0] {
        bench.observe(second, &["a", "b"], &[("new", "b"), ("new", "b")]);
    }
    assert_eq!(bench.other(), None);
}

#[test]
fn holders_from_before_the_registration_are_known_also_while_a_kubelet_does_not_list_them() {
    let start = Instant::now();
    let mut bench = Bench {
        served: ServedResource::new(start),
        start,
    };
    bench.send(0.0, &["a", "b"]);
    // The kubelet has just restarted. Its list of pods comes from the API server.
    bench.observe_with_checkpoint(9.0, &["a", "b"], &[], &["a"]);
    for second in [300.0, 301.0, 302.0] {
        bench.observe(second, &["a", "b"], &[("old", "a")]);
    }
    assert_eq!(bench.other(), None);
    // A list without pods for a moment.
    bench.observe_with_checkpoint(303.0, &["a", "b"], &[], &["a"]);
    for second in [304.0, 305.0] {
        bench.observe(second, &["a", "b"], &[("old", "a")]);
    }
    assert_eq!(bench.other(), None);
}

#[test]
fn holders_that_come_right_after_the_registration_are_from_before_it() {
    let mut bench = Bench::new();
    for second in [1.9, 3.0, 4.0] {
        bench.observe(second, &["a", "b"], &[("old", "a"), ("just", "b")]);
    }
    assert_eq!(bench.other(), None);
}

#[test]
fn a_request_of_the_kubelet_ends_the_doubt() {
    let mut bench = Bench::new();
    for second in [10.0, 11.0] {
        bench.observe(second, &["a", "b"], &[("new", "b")]);
    }
    assert!(bench.other().is_some());
    bench.request(12.0, "a");
    assert_eq!(bench.other(), None);
    assert!(!bench.served.is_doubtful());
}

#[test]
fn other_resources_do_not_matter() {
    let mut bench = Bench::new();
    let pair = |id: &str| ("a.b/c".to_owned(), id.to_owned());
    for second in [10.0, 11.0, 12.0] {
        let observation = KubeletObservation {
            started: bench.at(second),
            holders: vec![ContainerShares {
                resource: "a.b/c".to_owned(),
                ids: vec!["x".to_owned()],
                ..ContainerShares::default()
            }],
            allocatable: [pair("x")].into(),
            checkpoint: [pair("x")].into(),
        };
        bench.served.observe(GPU, &observation);
    }
    assert_eq!(bench.other(), None);
}

#[test]
fn a_resource_that_the_kubelet_does_not_have_is_missing_once_it_had_time_for_the_list() {
    let mut bench = Bench::new();
    bench.observe(10.0, &[], &[]);
    assert!(bench.served.is_missing() && bench.served.is_doubtful());
    assert!(
        bench.holds_lists(12.9),
        "a list would hide that another plugin has ended"
    );
    bench.observe(13.0, &[], &[]);
    assert!(bench.served.is_missing() && !bench.holds_lists(13.0), "not for ever");
    bench.observe(14.0, &["a"], &[]);
    assert!(!bench.served.is_missing() && !bench.served.is_doubtful());
    bench.send(15.0, &["a", "b"]);
    bench.observe(15.9, &[], &[]);
    assert!(!bench.served.is_missing());
    bench.send(16.0, &["!a", "!b"]);
    bench.observe(17.0, &[], &[]);
    assert!(!bench.served.is_missing(), "no healthy device is advertised");
}

#[test]
fn a_resource_is_missing_also_while_the_holders_are_unknown() {
    let mut bench = Bench::new();
    bench.served.observe_listed(bench.at(0.9), false);
    assert!(!bench.served.is_missing(), "the kubelet may not have the list yet");
    bench.served.observe_listed(bench.at(10.0), false);
    assert!(bench.served.is_missing() && bench.served.is_doubtful());
    bench.served.observe_listed(bench.at(11.0), true);
    assert!(!bench.served.is_missing());
}

#[test]
fn lists_are_held_back_from_the_first_doubt() {
    let mut bench = Bench::new();
    assert!(!bench.holds_lists(10.0));
    // Another plugin has a new socket, and registers a moment later.
    bench.served.doubt(bench.at(10.0));
    bench.observe(10.5, &["a", "b"], &[("old", "a")]);
    assert!(bench.holds_lists(10.5) && bench.served.is_doubtful());
    bench.observe(11.0, &["a", "b"], &[("old", "a")]);
    assert!(!bench.holds_lists(11.0));
    bench.observe(20.0, &["another"], &[("old", "a")]);
    assert!(bench.holds_lists(20.0), "one look is a suspicion");
    bench.observe(21.0, &["a", "b"], &[("old", "a")]);
    assert!(!bench.holds_lists(21.0));
}

#[test]
fn a_hold_ends_though_the_kubelet_does_not_answer() {
    let mut bench = Bench::new();
    bench.served.doubt(bench.at(10.0));
    assert!(bench.holds_lists(12.9) && !bench.holds_lists(13.0));
    bench.observe(20.0, &["another"], &[]);
    assert!(bench.holds_lists(22.9) && !bench.holds_lists(23.0), "a suspicion");
    bench.observe(25.0, &["another"], &[]);
    assert!(bench.other().is_some());
    assert!(bench.holds_lists(54.9) && !bench.holds_lists(55.0), "another plugin");
    bench.observe(60.0, &["another"], &[]);
    assert!(bench.holds_lists(89.9), "it is still there");
}

#[test]
fn a_socket_that_comes_and_goes_all_the_time_does_not_hold_lists_for_ever() {
    let mut bench = Bench::new();
    for second in [10.0, 10.9, 11.8, 12.7, 13.6] {
        bench.served.doubt(bench.at(second));
        bench.observe(second + 0.2, &["a", "b"], &[("old", "a")]);
    }
    assert!(bench.holds_lists(12.9) && !bench.holds_lists(13.8));
    bench.observe(15.0, &["a", "b"], &[("old", "a")]);
    assert!(!bench.served.is_doubtful());
    bench.served.doubt(bench.at(20.0));
    assert!(bench.holds_lists(20.0));
}
