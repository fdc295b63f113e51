use super::*;
use crate::driver::nvml::probe::{ProbeTarget, unanswered};
use gpunode_config::load;
use gpunode_crds::MpsDaemonState;
use gpunode_gpu::{
    AdvertisedShare, ContainerShares, Gpu, GpuProbe, HealthObservation, Inventory, ProbeResult, desired_devices,
};

/// Returns the desired devices of a configuration on two GPUs of 16 GiB.
pub fn configured(document: &str) -> DesiredDevices {
    let gpu = |index| Gpu {
        index,
        uuid: format!("GPU-{index}"),
        memory_mib: 16 * 1024,
        compute_capability: Some((7, 5)),
        ..Gpu::default()
    };
    let inventory = Inventory {
        gpus: vec![gpu(0), gpu(1)],
        ..Inventory::default()
    };
    desired_devices(&inventory, &load(document).unwrap()).unwrap()
}

/// Returns an observation without holders and without allocatable devices.
pub fn nothing_held(started: Instant) -> KubeletObservation {
    KubeletObservation {
        started,
        holders: Vec::new(),
        allocatable: BTreeSet::new(),
        checkpoint: BTreeSet::new(),
    }
}

/// Returns the state of a node with this configuration and no holders.
pub fn state(document: &str) -> DeviceState {
    let mut state = DeviceState::default();
    state.set_daemon_answers(DaemonAnswers::new(), Duration::ZERO);
    state.set_desired(configured(document), Instant::now());
    state.observe(nothing_held(Instant::now()));
    state
}

const MPS: &str = "resources: [{name: a.b/c, sharing: {strategy: Mps, replicas: 2}}]";

fn healthy(snapshot: &DeviceSnapshot) -> Vec<&str> {
    let shares = snapshot
        .advertised
        .iter()
        .flat_map(|advertised| &advertised.resource.shares);
    shares
        .filter(|share| share.healthy)
        .map(|share: &AdvertisedShare| share.id.as_str())
        .collect()
}

fn answered(devices: &[(&str, u64)]) -> DaemonAnswers {
    devices
        .iter()
        .map(|(device, second)| ((*device).to_owned(), Some(Duration::from_secs(*second))))
        .collect()
}

#[test]
fn nothing_is_offered_before_the_kubelet_says_who_holds_what() {
    let mut state = DeviceState::default();
    state.set_daemon_answers(DaemonAnswers::new(), Duration::ZERO);
    state.set_desired(configured(""), Instant::now());
    assert!(state.not_observed("no socket", Instant::now()));
    let snapshot = state.snapshot();
    assert!(snapshot.advertised.is_empty() && snapshot.assignments.is_empty());
    assert_eq!(snapshot.holders_unknown.as_deref(), Some("no socket"));
    state.observe(nothing_held(Instant::now()));
    let snapshot = state.snapshot();
    assert_eq!(
        (
            healthy(&snapshot),
            snapshot.assignments.len(),
            snapshot.holders_unknown.is_none()
        ),
        (vec!["GPU-0", "GPU-1"], 2, true)
    );
}

#[test]
fn what_was_known_stays_while_the_kubelet_does_not_answer_and_after_a_while_that_is_said() {
    let start = Instant::now();
    let mut state = state("");
    state.observe(nothing_held(start + Duration::from_secs(1)));
    let after = |state: &mut DeviceState, second| state.not_observed("no socket", start + Duration::from_secs(second));
    assert!(!after(&mut state, 30));
    assert_eq!(
        (state.snapshot().advertised.len(), state.snapshot().holders_unknown),
        (1, None)
    );
    assert!(state.is_busy(), "it is asked again soon");
    assert!(after(&mut state, 31), "that is news");
    let snapshot = state.snapshot();
    assert_eq!(healthy(&snapshot), ["GPU-0", "GPU-1"]);
    let unknown = snapshot.holders_unknown.unwrap();
    assert!(
        unknown.contains("not reported for over 30s") && unknown.ends_with("no socket"),
        "{unknown}"
    );
    assert!(!after(&mut state, 32), "it is reported once");
    state.observe(nothing_held(start + Duration::from_secs(33)));
    assert_eq!(state.snapshot().holders_unknown, None);
    assert!(!state.is_busy());
}

#[test]
fn containers_keep_their_devices_while_the_driver_answers_no_call() {
    let mut state = state("");
    state.observe(KubeletObservation {
        holders: vec![ContainerShares {
            resource: "nvidia.com/gpu".to_owned(),
            ids: vec!["GPU-0".to_owned()],
            ..ContainerShares::default()
        }],
        ..nothing_held(Instant::now())
    });
    let mut faults = DeviceFaults::default();
    for (gpu, result) in [("GPU-0", ProbeResult::Blocked), ("GPU-1", ProbeResult::Hangs)] {
        let target = ProbeTarget {
            gpu: gpu.to_owned(),
            ..ProbeTarget::default()
        };
        let probe = GpuProbe {
            result,
            ..unanswered(&target)
        };
        let rules = gpunode_config::HealthRules::default();
        faults.observe(HealthObservation::Probe(probe), &rules, jiff::Timestamp::UNIX_EPOCH);
    }
    let blocked = NodeHealth {
        faults: Some(faults),
        ..NodeHealth::default()
    };
    let waiting = NodeHealth {
        paused: Some("no answer within 30s".to_owned()),
        ..NodeHealth::default()
    };
    for health in [blocked, waiting] {
        assert!(state.set_health(&Arc::new(health)));
        assert_eq!(healthy(&state.snapshot()), ["GPU-0"]);
        let gpu = ["GPU-1".to_owned()];
        assert!(
            state
                .allocator
                .allocate("nvidia.com/gpu", &gpu, Instant::now(), Instant::now(), None)
                .is_err()
        );
    }
    state.set_health(&Arc::default());
    assert_eq!(healthy(&state.snapshot()), ["GPU-0", "GPU-1"]);
}

#[test]
fn beside_a_dra_driver_containers_keep_their_devices_and_a_resource_without_holders_is_left_to_it() {
    let mut state = state("resources: [{name: a.b/first, devices: {indices: [0]}}, {name: a.b/second}]");
    let held = |ids: &[&str]| KubeletObservation {
        holders: vec![ContainerShares {
            resource: "a.b/first".to_owned(),
            ids: ids.iter().map(|id| (*id).to_owned()).collect(),
            ..ContainerShares::default()
        }],
        ..nothing_held(Instant::now())
    };
    let names = |snapshot: &DeviceSnapshot| -> Vec<String> {
        let lists = snapshot.advertised.iter();
        lists.map(|list| list.resource.name.clone()).collect()
    };
    state.observe(held(&["GPU-0"]));
    let dra = Arc::new(NodeHealth {
        served_by_dra: true,
        ..NodeHealth::default()
    });
    assert!(state.set_health(&dra));
    assert_eq!(
        (names(&state.snapshot()), healthy(&state.snapshot())),
        (vec!["a.b/first".to_owned()], vec!["GPU-0"])
    );
    let refusal = state
        .allocator
        .allocate(
            "a.b/second",
            &["GPU-1".to_owned()],
            Instant::now(),
            Instant::now(),
            None,
        )
        .unwrap_err();
    assert!(refusal.to_string().contains("NVIDIA's DRA driver"), "{refusal}");
    state.observe(nothing_held(Instant::now()));
    assert_eq!(names(&state.snapshot()), [""; 0]);
    state.set_health(&Arc::default());
    assert_eq!(names(&state.snapshot()), ["a.b/first", "a.b/second"]);
}

#[test]
fn nothing_is_given_out_before_it_is_known_which_daemons_run() {
    let mut state = DeviceState::default();
    state.set_desired(configured(""), Instant::now());
    state.observe(nothing_held(Instant::now()));
    assert!(!state.set_daemons_silent());
    assert_eq!(healthy(&state.snapshot()), [""; 0]);
    assert!(state.has_daemons(), "the next read comes soon");
    assert!(state.set_daemon_answers(answered(&[("GPU-0", 1)]), Duration::from_secs(2)));
    assert_eq!(
        healthy(&state.snapshot()),
        ["GPU-1"],
        "the old daemon of the other is still stopping"
    );
}

#[test]
fn a_device_that_was_of_mps_between_two_reads_is_withheld_until_the_next() {
    let mut state = state(MPS);
    state.set_desired(configured(""), Instant::now());
    state.observe(nothing_held(Instant::now()));
    assert!(healthy(&state.snapshot()).is_empty(), "its daemon may run by now");
    state.set_daemon_answers(DaemonAnswers::new(), Duration::from_secs(1));
    assert_eq!(healthy(&state.snapshot()), ["GPU-0", "GPU-1"]);
}

#[test]
fn a_device_of_mps_is_withheld_until_its_daemon_answers_and_again_when_it_is_silent() {
    let mut state = state(MPS);
    assert_eq!(healthy(&state.snapshot()), [""; 0]);
    assert_eq!(state.snapshot().daemons[1].state, MpsDaemonState::NotAnswering);
    assert!(state.set_daemon_answers(answered(&[("GPU-1", 100)]), Duration::from_secs(101)));
    assert_eq!(healthy(&state.snapshot()), ["GPU-1::0", "GPU-1::1"]);
    assert!(
        !state.set_daemon_answers(answered(&[("GPU-1", 101)]), Duration::from_secs(102)),
        "nothing has changed"
    );
    assert!(state.set_daemon_answers(answered(&[("GPU-1", 101)]), Duration::from_secs(200)));
    assert_eq!(healthy(&state.snapshot()), [""; 0]);
}

#[test]
fn a_device_that_leaves_mps_is_withheld_until_its_daemon_is_gone() {
    let mut state = state(MPS);
    state.set_daemon_answers(answered(&[("GPU-0", 100), ("GPU-1", 100)]), Duration::from_secs(101));
    state.set_desired(configured(""), Instant::now());
    state.observe(nothing_held(Instant::now()));
    let snapshot = state.snapshot();
    assert!(healthy(&snapshot).is_empty(), "{snapshot:?}");
    assert!(
        snapshot
            .daemons
            .iter()
            .all(|daemon| daemon.state == MpsDaemonState::Stopping)
    );
    state.set_daemon_answers(answered(&[("GPU-1", 102)]), Duration::from_secs(102));
    assert_eq!(healthy(&state.snapshot()), ["GPU-0"]);
}

#[test]
fn daemons_that_cannot_be_looked_at_do_not_answer() {
    let mut state = state(MPS);
    state.set_daemon_answers(answered(&[("GPU-0", 100)]), Duration::from_secs(101));
    assert!(state.set_daemons_silent());
    assert!(healthy(&state.snapshot()).is_empty());
    assert!(!DeviceState::default().snapshot().daemons_known);
}

#[test]
fn a_list_is_sent_again_only_while_its_device_waits_for_the_checkpoint_alone() {
    let start = Instant::now();
    let mut state = state("");
    let document = "resources: [{name: a.b/c, devices: {indices: [0]}}, {name: nvidia.com/gpu}]";
    state.set_desired(configured(document), start);
    let resends = |state: &DeviceState| -> Vec<(String, u64)> {
        let snapshot = state.snapshot();
        snapshot
            .advertised
            .iter()
            .map(|advertised| (advertised.resource.name.clone(), advertised.resend))
            .collect()
    };
    let mut observe = |second, holders: Vec<ContainerShares>| {
        let remembered = [("nvidia.com/gpu".to_owned(), "GPU-0".to_owned())].into();
        state.observe(KubeletObservation {
            holders,
            checkpoint: remembered,
            ..nothing_held(start + Duration::from_secs(second))
        });
        resends(&state)
    };
    let gpu = |times| vec![("a.b/c".to_owned(), 0), ("nvidia.com/gpu".to_owned(), times)];
    let held = ContainerShares {
        resource: "nvidia.com/gpu".to_owned(),
        ids: vec!["GPU-0".to_owned()],
        ..ContainerShares::default()
    };
    assert_eq!(observe(100, vec![held.clone()]), gpu(0));
    assert_eq!(observe(200, vec![held]), gpu(0), "the pod is there");
    assert_eq!(observe(201, Vec::new()), gpu(0), "the list has just changed");
    assert_eq!(observe(205, Vec::new()), gpu(0));
    assert_eq!(observe(212, Vec::new()), gpu(1));
    assert_eq!(observe(215, Vec::new()), gpu(1));
    assert_eq!(observe(223, Vec::new()), gpu(2));
    state.observe(nothing_held(start + Duration::from_secs(224)));
    assert_eq!(state.snapshot().pending_changes, []);
    assert_eq!(
        resends(&state),
        gpu(2),
        "a number that falls or rises would send a list"
    );
}
