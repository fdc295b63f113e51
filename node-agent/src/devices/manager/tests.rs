use super::*;
use crate::{
    devices::state::tests::{nothing_held, state},
    kubelet::{
        checkpoint::{CHECKPOINT_FILE, PodFolders},
        podresources::{
            PodResources,
            tests::{Kubelet, serve},
        },
    },
};
use gpunode_gpu::{ContainerShares, DeviceFaults, HealthObservation, KubeletObservation};
use std::{path::Path, sync::Arc};
use tokio::time::timeout;

const MEMORY: &str = "resources: [{name: a.b/mem, sharing: {strategy: Memory}}]";

fn manager() -> Arc<DeviceManager> {
    manager_of("/nonexistent".into())
}

/// Returns a manager that reads the daemons' answers in `mps_dir`.
fn manager_of(mps_dir: PathBuf) -> Arc<DeviceManager> {
    manager_with(mps_dir, &watch::Sender::default())
}

fn manager_with(mps_dir: PathBuf, health: &watch::Sender<Arc<NodeHealth>>) -> Arc<DeviceManager> {
    manager_following(mps_dir, health, &watch::Sender::default())
}

fn manager_following(
    mps_dir: PathBuf,
    health: &watch::Sender<Arc<NodeHealth>>,
    cdi: &watch::Sender<CdiState>,
) -> Arc<DeviceManager> {
    let nowhere = DriverRoots::of_host(Path::new("/nonexistent"));
    Arc::new(DeviceManager::new(DeviceManagerInputs {
        roots: nowhere.clone(),
        mps_dir,
        utilisation: Utilisation::new(nowhere, watch::channel(None).1),
        node: None,
        health: health.subscribe(),
        cdi: cdi.subscribe(),
        metrics: AgentMetrics::new(),
    }))
}

async fn open(document: &str) -> Arc<DeviceManager> {
    let manager = manager();
    manager.open(state(document)).await;
    manager
}

/// Returns an API of a kubelet that does not exist.
pub fn nobody() -> PodResources {
    PodResources::new(
        "/nonexistent/kubelet.sock".into(),
        "/nonexistent".into(),
        PodFolders::default(),
    )
}

fn holds(resource: &str, ids: Vec<String>) -> ContainerShares {
    ContainerShares {
        namespace: "team".into(),
        pod: "train".into(),
        resource: resource.into(),
        ids,
        ..ContainerShares::default()
    }
}

fn units(gpu: u32, units: std::ops::Range<u32>) -> Vec<String> {
    units.map(|unit| format!("GPU-{gpu}-_-{unit}")).collect()
}

fn healthy(manager: &DeviceManager) -> usize {
    manager
        .snapshot()
        .0
        .advertised
        .iter()
        .map(crate::devices::advertised::AdvertisedList::healthy)
        .sum()
}

#[tokio::test]
async fn a_manager_that_was_not_opened_allocates_nothing() {
    let manager = manager();
    assert!(manager.allocate("nvidia.com/gpu", &["GPU-0".to_owned()]).await.is_err());
    assert!(!manager.snapshot().0.daemons_known);
}

#[tokio::test]
async fn an_allocation_is_observed_soon() {
    let manager = open(MEMORY).await;
    let response = manager.allocate("a.b/mem", &units(1, 0..3)).await.unwrap();
    assert_eq!(response.envs["ALIYUN_COM_GPU_MEM_CONTAINER"], "3");
    timeout(Duration::from_secs(1), manager.holders.allocated())
        .await
        .unwrap();
    assert!(manager.state.lock().is_busy());
}

#[tokio::test]
async fn a_bad_request_is_refused_without_waiting() {
    let manager = open(MEMORY).await;
    let refused = timeout(Duration::from_secs(1), manager.allocate("a.b/mem", &units(7, 0..1)))
        .await
        .unwrap();
    assert!(matches!(refused, Err(AllocationRefusal::Unknown { .. })), "{refused:?}");
}

#[tokio::test]
async fn there_is_always_an_answer_to_which_devices_are_best() {
    let manager = open("resources: [{name: a.b/c, sharing: {strategy: TimeSlicing, replicas: 2}}]").await;
    let available = ["GPU-0::0", "GPU-1::0"].map(str::to_owned);
    assert_eq!(manager.preferred("a.b/c", &available, &[], 1).await.len(), 1);
    assert_eq!(manager.preferred("x.y/z", &available, &[], 1).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn before_a_split_is_refused_free_units_are_withheld_and_the_kubelet_knows() {
    let manager = open(MEMORY).await;
    assert_eq!(healthy(&manager), 32);
    let asked: Vec<String> = units(0, 0..12).into_iter().chain(units(1, 0..8)).collect();
    let other = manager.clone();
    let refusal = tokio::spawn(async move { other.allocate("a.b/mem", &asked).await });
    let mut changes = manager.changes();
    while healthy(&manager) == 32 {
        changes.changed().await.unwrap();
    }
    assert_eq!(healthy(&manager), 16);
    let published = tokio::time::Instant::now();
    manager.published(manager.snapshot().1);
    let refusal = refusal.await.unwrap().unwrap_err();
    assert!(
        published.elapsed() >= NODE_UNREADABLE_PAUSE && published.elapsed() < REFUSAL_TIMEOUT,
        "{:?}",
        published.elapsed()
    );
    assert!(
        refusal
            .to_string()
            .contains("20 units do not fit on one GPU: 32 units are free"),
        "{refusal}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_refusal_ends_though_nothing_is_published_or_observed() {
    let manager = open(MEMORY).await;
    let start = tokio::time::Instant::now();
    let asked: Vec<String> = units(0, 0..12).into_iter().chain(units(1, 0..8)).collect();
    manager.allocate("a.b/mem", &asked).await.unwrap_err();
    assert!(
        start.elapsed() < REFUSAL_TIMEOUT + Duration::from_millis(50),
        "{:?}",
        start.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn a_split_of_doubtful_units_asks_the_kubelet_once() {
    let manager = open(MEMORY).await;
    manager.allocate("a.b/mem", &units(0, 0..1)).await.unwrap();
    let start = tokio::time::Instant::now();
    let asked: Vec<String> = units(0, 0..12).into_iter().chain(units(1, 0..8)).collect();
    let refusal = tokio::spawn({
        let manager = manager.clone();
        async move { manager.allocate("a.b/mem", &asked).await }
    });
    let mut changes = manager.changes();
    while healthy(&manager) > 17 {
        changes.changed().await.unwrap();
    }
    assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
    refusal.await.unwrap().unwrap_err();
    assert!(
        start.elapsed() < REFUSAL_TIMEOUT + Duration::from_millis(50),
        "{:?}",
        start.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn the_refusal_of_a_held_share_says_why_the_kubelet_was_not_asked_anew() {
    let manager = open(MEMORY).await;
    let held = holds("a.b/mem", units(0, 0..4));
    manager.change(|state| {
        state.observe(KubeletObservation {
            holders: vec![held],
            ..nothing_held(Instant::now())
        });
    });
    let watching = tokio::spawn(manager.clone().watch_holders(nobody()));
    let refusal = manager
        .allocate("a.b/mem", &units(0, 0..1))
        .await
        .unwrap_err()
        .to_string();
    assert!(
        refusal.contains("pod team/train holds") && refusal.contains("according to the kubelet"),
        "{refusal}"
    );
    assert!(refusal.contains("does not answer now: ask the kubelet"), "{refusal}");
    watching.abort();
}

/// The clock of allocations is the machine's, so this test takes as long as the wait.
#[tokio::test]
async fn a_wait_for_the_kubelet_takes_no_device_from_the_pod_of_an_init_container() {
    let manager = open("").await;
    let ids = ["GPU-0".to_owned()];
    manager.allocate("nvidia.com/gpu", &ids).await.unwrap();
    let start = Instant::now();
    // Nobody asks the kubelet, so no observation comes.
    manager.allocate("nvidia.com/gpu", &ids).await.unwrap();
    assert!(start.elapsed() > Duration::from_secs(1), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn holders_that_are_not_known_are_told_and_asked_for_again() {
    let manager = manager();
    let mut changes = manager.changes();
    let watching = tokio::spawn(manager.clone().watch_holders(nobody()));
    changes.changed().await.unwrap();
    assert!(
        manager
            .snapshot()
            .0
            .holders_unknown
            .is_some_and(|reason| reason.contains("/nonexistent/kubelet.sock does not exist"))
    );
    watching.abort();
}

#[tokio::test]
async fn healthy_devices_of_the_kubelet_are_known_though_its_checkpoint_is_damaged() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join(CHECKPOINT_FILE), "{").unwrap();
    let manager = manager();
    let mut observed = manager.observed();
    let watching = tokio::spawn(manager.clone().watch_holders(serve(folder.path(), Kubelet::Held)));
    timeout(Duration::from_secs(10), observed.changed())
        .await
        .unwrap()
        .unwrap();
    let state = observed.borrow();
    assert!(state.started.is_none(), "an allocation waits for the holders");
    let error = state.error.clone().unwrap_or_default();
    assert!(error.contains("parse the kubelet's checkpoint"), "{error}");
    let allocatable = state.allocatable.as_ref().unwrap();
    assert_eq!(allocatable.names, ["a.b/c".to_owned()].into());
    watching.abort();
}

/// Publishes that this GPU has fallen off the bus.
fn publish_fault(health: &watch::Sender<Arc<NodeHealth>>, gpu: &str) {
    let mut faults = DeviceFaults::default();
    faults.observe(
        HealthObservation::Xid(gpu.to_owned(), 79),
        &gpunode_config::HealthRules::default(),
        jiff::Timestamp::UNIX_EPOCH,
    );
    health.send_replace(Arc::new(NodeHealth {
        faults: Some(faults),
        ..NodeHealth::default()
    }));
}

/// A manager of two GPUs, and the sender of their health.
async fn open_with_health() -> (Arc<DeviceManager>, watch::Sender<Arc<NodeHealth>>) {
    let health = watch::Sender::default();
    let manager = manager_with("/nonexistent".into(), &health);
    manager.open(state("")).await;
    (manager, health)
}

#[tokio::test]
async fn no_allocation_slips_in_after_a_fault_is_published() {
    let (manager, health) = open_with_health().await;
    let ids = ["GPU-0".to_owned()];
    publish_fault(&health, "GPU-0");
    let refused = manager.allocate("nvidia.com/gpu", &ids).await.unwrap_err().to_string();
    assert!(refused.contains("fallen off the bus"), "{refused}");
    publish_fault(&health, "GPU-1");
    manager.allocate("nvidia.com/gpu", &ids).await.unwrap();
}

#[tokio::test]
async fn a_published_fault_holds_for_the_devices_that_an_earlier_agent_left() {
    let (manager, health) = open_with_health().await;
    publish_fault(&health, "GPU-0");
    manager.open(state("")).await;
    assert_eq!(healthy(&manager), 1);
}

#[tokio::test]
async fn a_published_health_is_a_change_of_the_devices_at_once() {
    let (manager, health) = open_with_health().await;
    let watching = tokio::spawn(manager.clone().watch_inputs());
    tokio::task::yield_now().await;
    let mut changes = manager.changes();
    for (gpu, healthy_id) in [("GPU-0", "GPU-1"), ("GPU-1", "GPU-0")] {
        let before = manager.snapshot().1;
        publish_fault(&health, gpu);
        timeout(Duration::from_secs(1), changes.changed())
            .await
            .unwrap()
            .unwrap();
        let (snapshot, number) = manager.snapshot();
        assert_eq!(number, before + 1);
        let shares = snapshot
            .advertised
            .iter()
            .flat_map(|advertised| &advertised.resource.shares);
        let ids: Vec<&str> = shares
            .filter(|share| share.healthy)
            .map(|share| share.id.as_str())
            .collect();
        assert_eq!(ids, [healthy_id]);
    }
    watching.abort();
}

#[tokio::test]
async fn an_observation_frees_what_was_withheld() {
    let manager = open(MEMORY).await;
    let observation = |holders| KubeletObservation {
        holders,
        ..nothing_held(Instant::now())
    };
    let held = holds("a.b/mem", units(0, 0..4));
    manager.change(|state| state.observe(observation(vec![held])));
    manager.change(|state| state.allocator.withhold("a.b/mem"));
    assert_eq!(healthy(&manager), 4 + 16);
    manager.change(|state| state.observe(observation(Vec::new())));
    assert_eq!(healthy(&manager), 32);
}

#[tokio::test]
async fn a_gpu_is_not_given_out_before_it_is_known_which_daemons_run() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let manager = manager_of(file.path().to_owned());
    let mut state = DeviceState::default();
    state.set_desired(crate::devices::state::tests::configured(""), Instant::now());
    state.observe(nothing_held(Instant::now()));
    manager.open(state).await;
    assert_eq!((healthy(&manager), manager.snapshot().0.daemons_known), (0, false));
    let refused = manager
        .allocate("nvidia.com/gpu", &["GPU-0".to_owned()])
        .await
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("not known yet whether an MPS control daemon"),
        "{refused}"
    );
}

fn rules(document: &str) -> InjectionRules {
    InjectionRules::of(&gpunode_config::load(document).unwrap(), None)
}

#[tokio::test]
async fn another_strategy_is_for_later_containers_and_needs_no_other_ids() {
    let manager = open("").await;
    let before = manager.snapshot().0.advertised;
    let [first, second] = ["GPU-0", "GPU-1"].map(|id| [id.to_owned()]);
    let first = manager.allocate("nvidia.com/gpu", &first).await.unwrap();
    assert_eq!(first.envs["NVIDIA_VISIBLE_DEVICES"], "GPU-0");
    manager.set_injection(&rules("deviceListStrategy: [VolumeMounts]"));
    let second = manager.allocate("nvidia.com/gpu", &second).await.unwrap();
    assert_eq!(
        second.mounts[0].container_path,
        "/var/run/nvidia-container-devices/GPU-1"
    );
    assert_eq!(manager.snapshot().0.advertised, before);
}

#[tokio::test]
async fn a_device_that_only_cdi_may_hand_over_waits_for_the_file_and_its_holder_keeps_it() {
    let cdi = watch::Sender::default();
    let manager = manager_following("/nonexistent".into(), &watch::Sender::default(), &cdi);
    manager.open(state("")).await;
    manager.change(|state| {
        state.observe(KubeletObservation {
            holders: vec![holds("nvidia.com/gpu", vec!["GPU-0".to_owned()])],
            ..nothing_held(Instant::now())
        });
    });
    manager.set_injection(&rules("deviceListStrategy: [CdiCri]"));
    assert_eq!(healthy(&manager), 1, "the held one");
    let ids = ["GPU-1".to_owned()];
    let refused = manager.allocate("nvidia.com/gpu", &ids).await.unwrap_err().to_string();
    assert!(refused.contains("the CDI file does not describe it"), "{refused}");
    assert_eq!(
        manager.snapshot().0.not_injectable.into_keys().collect::<Vec<_>>(),
        ["GPU-0", "GPU-1"]
    );

    let watching = tokio::spawn(manager.clone().watch_inputs());
    tokio::task::yield_now().await;
    let mut changes = manager.changes();
    cdi.send_replace(CdiState {
        described: ["GPU-1".to_owned()].into(),
        ..CdiState::default()
    });
    timeout(Duration::from_secs(1), changes.changed())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(healthy(&manager), 2);
    let response = manager.allocate("nvidia.com/gpu", &ids).await.unwrap();
    assert_eq!(response.cdi_devices[0].name, "gpunode.dev/gpu=GPU-1");
    assert!(response.envs.is_empty());
    watching.abort();
}
