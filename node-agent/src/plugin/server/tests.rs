//! The list stream, and a figure of `docs/benchmarks.md`, which `make bench` prints.

use super::*;
use crate::devices::state::{DeviceState, tests::nothing_held};
use gpunode_config::load;
use gpunode_gpu::{ContainerShares, Gpu, Inventory, desired_devices};
use prost::Message as _;
use std::collections::BTreeMap;

const LISTS: usize = 2000;

/// Returns the state of a node with 16 GPUs of 80 GiB; a pod of its own holds every other share.
fn half_held(document: &str) -> DeviceState {
    let gpu = |index| Gpu {
        index,
        uuid: format!("GPU-{index:08x}-95d2-4c5b-91c7-4a2f0e6b7d38"),
        memory_mib: 80 * 1024,
        compute_capability: Some((8, 0)),
        numa_node: Some(index / 8),
        ..Gpu::default()
    };
    let inventory = Inventory {
        gpus: (0..16).map(gpu).collect(),
        ..Inventory::default()
    };
    let mut state = DeviceState::default();
    state.set_daemon_answers(BTreeMap::new(), Duration::ZERO);
    state.set_desired(
        desired_devices(&inventory, &load(document).unwrap()).unwrap(),
        Instant::now(),
    );
    let mut observation = nothing_held(Instant::now());
    state.observe(observation.clone());
    let advertised = state.snapshot().advertised;
    let list = &advertised.first().unwrap().resource;
    observation.allocatable = list
        .shares
        .iter()
        .map(|share| (list.name.clone(), share.id.clone()))
        .collect();
    for (pod, share) in list.shares.iter().step_by(2).enumerate() {
        observation.checkpoint.insert((list.name.clone(), share.id.clone()));
        observation.holders.push(ContainerShares {
            namespace: "team".to_owned(),
            pod: format!("train-{pod}"),
            container: "main".to_owned(),
            resource: list.name.clone(),
            ids: vec![share.id.clone()],
        });
    }
    observation.started = Instant::now();
    state.observe(observation);
    state
}

/// Measures the time from a changed state to the bytes for the kubelet, without saving the assignments.
async fn build(key: &str, document: &str, shares: usize) {
    let mut state = half_held(document);
    let device = state.allocator.assigned().keys().next().unwrap().clone();
    let (lists, advertised) = watch::channel(AdvertisedList::default());
    let (streams, stopped) = (watch::Sender::default(), watch::channel(false).1);
    let mut stream = ListStream {
        advertised,
        hold: watch::channel(None).1,
        was_replaced: false,
        stopped,
        streams,
        sent: None,
        metrics: AgentMetrics::new(),
    };
    stream.next().await.unwrap();
    let mut times = Vec::new();
    for round in 0..LISTS {
        // A device becomes faulty, and recovers.
        let ill = (round % 2 == 0).then(|| (device.clone(), "a measurement".to_owned()));
        state.allocator.set_unavailable(ill.into_iter().collect());
        let start = Instant::now();
        lists.send_replace(state.snapshot().advertised.remove(0));
        let list = stream.next().await.unwrap();
        let bytes = list.encode_to_vec();
        times.push(start.elapsed());
        assert!(list.devices.len() == shares && bytes.len() > shares * 40);
    }
    times.sort();
    let [median, p99, max] = [50, 99, 100].map(|share| times[(LISTS * share / 100).min(LISTS - 1)]);
    println!("{key}: median {median:?}, p99 {p99:?}, maximum {max:?} of {LISTS}");
    println!("figure: {key} | {:.3} | ms", p99.as_secs_f64() * 1000.0);
}

#[tokio::test]
async fn lists_that_are_held_back_come_when_the_hold_ends_and_unchanged_only_after_a_proven_one() {
    let list = |resend| AdvertisedList {
        resend,
        ..AdvertisedList::default()
    };
    let (lists, advertised) = watch::channel(list(0));
    let ((hold, list_hold), (_stop, stopped)) = (watch::channel(None), watch::channel(false));
    let mut stream = ListStream {
        advertised,
        hold: list_hold,
        was_replaced: false,
        stopped,
        streams: watch::Sender::default(),
        sent: None,
        metrics: AgentMetrics::new(),
    };
    let pause = Duration::from_millis(20);
    let until = |until, is_proven| Some(ListHold { until, is_proven });
    let later = Instant::now() + Duration::from_mins(1);
    assert!(timeout(pause, stream.next()).await.unwrap().is_some());
    hold.send_replace(until(later, false));
    assert!(timeout(pause, stream.next()).await.is_err());
    hold.send_replace(None);
    assert!(timeout(pause, stream.next()).await.is_err(), "nothing was held back");
    hold.send_replace(until(later, false));
    lists.send_replace(list(1));
    assert!(timeout(pause, stream.next()).await.is_err(), "the list is held back");
    hold.send_replace(None);
    assert!(timeout(pause, stream.next()).await.unwrap().is_some());
    hold.send_replace(until(later, true));
    assert!(timeout(pause, stream.next()).await.is_err());
    hold.send_replace(None);
    assert!(
        timeout(pause, stream.next()).await.unwrap().is_some(),
        "the same list comes again"
    );
    assert!(timeout(pause, stream.next()).await.is_err(), "and only once");
    // Nobody ends the hold, which outlasts the pause on a busy machine too.
    hold.send_replace(until(Instant::now() + Duration::from_secs(1), true));
    lists.send_replace(list(2));
    assert!(timeout(pause, stream.next()).await.is_err(), "the list is held back");
    assert!(timeout(later - Instant::now(), stream.next()).await.unwrap().is_some());
    assert!(
        timeout(pause, stream.next()).await.is_err(),
        "the same list would replace another one"
    );
}

#[tokio::test]
#[ignore = "a measurement"]
async fn measure_the_list_of_64_replicas_of_16_gpus() {
    let document = "resources: [{name: nvidia.com/gpu, sharing: {strategy: TimeSlicing, replicas: 64}}]";
    build("list-replicas-p99", document, 1024).await;
}

#[tokio::test]
#[ignore = "a measurement"]
async fn measure_the_list_of_80_memory_units_of_16_gpus() {
    let document = "resources: [{name: aliyun.com/gpu-mem, sharing: {strategy: Memory}}]";
    build("list-units-p99", document, 1280).await;
}
