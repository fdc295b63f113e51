//! Tests of repeated probes, with the simulated library and a paused clock.

use super::*;
use crate::{
    api_server::gpu_node::{GpuNodeState, ObservedGpuNode},
    driver::{calls::DriverCalls, nvml::tests::FakeDriver},
};
use gpunode_crds::{GpuNode, GpuNodeSpec};
use kube::core::ApiResource;
use std::{fs, path::Path};
use tempfile::TempDir;
use tokio::time::Instant;

const UNDIVIDED: &str = "{node: n, board: NVIDIA A100-SXM4-80GB, count: 2, topology: NVSwitch, mig: [{gpus: [1]}]}";
const DIVIDED: &str =
    "{node: n, board: NVIDIA A100-SXM4-80GB, count: 2, topology: NVSwitch, mig: [{gpus: [1], instances: [7g.80gb]}]}";

/// A host with two GPUs whose driver is in a folder of its own.
struct Host {
    root: TempDir,
    library: FakeDriver,
}

impl Host {
    fn new(scenario: &str) -> Self {
        let root = tempfile::tempdir().unwrap();
        let dmi = root.path().join("sys/class/dmi/id");
        fs::create_dir_all(&dmi).unwrap();
        fs::write(dmi.join("product_name"), "DGX").unwrap();
        for function in ["0000:07:00.0", "0000:08:00.0"] {
            let function = root.path().join("sys/bus/pci/devices").join(function);
            fs::create_dir_all(&function).unwrap();
            fs::write(function.join("vendor"), "0x10de").unwrap();
            fs::write(function.join("class"), "0x030200").unwrap();
        }
        let usr = root.path().join("driver/usr");
        fs::create_dir_all(&usr).unwrap();
        let library = FakeDriver::within(&usr, scenario);
        // As the driver's root sees it.
        let target = Path::new("/usr").join(library.folder().file_name().unwrap());
        std::os::unix::fs::symlink(target, usr.join("lib64")).unwrap();
        Self { root, library }
    }

    fn roots(&self) -> DriverRoots {
        DriverRoots {
            driver_roots: vec!["/driver".into()],
            ..DriverRoots::of_host(self.root.path())
        }
    }

    fn probe(&self, before: Option<&Hardware>) -> Hardware {
        let roots = self.roots();
        let call = roots.calls.begin().unwrap();
        roots.probe(before, false, &call).1
    }

    fn capability(&self, of: &str) {
        let folder = self.root.path().join("proc/driver/nvidia/capabilities");
        fs::create_dir_all(folder.join(of)).unwrap();
    }

    fn watch(&self) -> watch::Receiver<Option<Arc<Hardware>>> {
        self.watch_with(ReleaseRequest::new(None, self.root.path()))
    }

    fn watch_with(&self, release: ReleaseRequest) -> watch::Receiver<Option<Arc<Hardware>>> {
        self.watch_beside(DriverCalls::default(), release)
    }

    /// Watches the hardware in a process that makes `calls`, too.
    fn watch_beside(&self, calls: DriverCalls, release: ReleaseRequest) -> watch::Receiver<Option<Arc<Hardware>>> {
        let (sender, hardware) = watch::channel(None);
        let hardware_watch = HardwareWatch {
            roots: DriverRoots { calls, ..self.roots() },
            hardware: sender,
            probe_now: Arc::new(Notify::new()),
            release,
            mps_dir: self.root.path().join("mps"),
            alone: watch::Sender::new(false).subscribe(),
            layouts: watch::Sender::new(false).subscribe(),
            driver_events: None,
            metrics: AgentMetrics::new(),
        };
        tokio::spawn(hardware_watch.run());
        hardware
    }
}

fn parts(hardware: &Hardware) -> usize {
    hardware
        .inventory()
        .map_or(0, |found| found.gpus.iter().map(|gpu| gpu.mig_devices.len()).sum())
}

async fn wait_for(seen: &mut watch::Receiver<Option<Arc<Hardware>>>, what: impl Fn(&Hardware) -> bool) -> Hardware {
    let looked = seen.wait_for(|found| found.as_deref().is_some_and(&what));
    let found = timeout(Duration::from_mins(5), looked)
        .await
        .expect("it is looked at again")
        .unwrap();
    Hardware::clone(found.as_ref().unwrap())
}

#[tokio::test(start_paused = true)]
async fn mig_instances_of_others_are_found_within_a_minute_with_and_without_the_kernels_list() {
    for listed in [true, false] {
        let host = Host::new(UNDIVIDED);
        if listed {
            host.capability("gpu1/mig");
        }
        let mut seen = host.watch();
        wait_for(&mut seen, |found| found.problem().is_none() && parts(found) == 0).await;
        host.library.scenario(DIVIDED);
        if listed {
            host.capability("gpu1/mig/gi0/ci0");
        }
        let start = Instant::now();
        wait_for(&mut seen, |found| parts(found) == 1).await;
        let limit = if listed { RECHECK } else { BLIND_RECHECK };
        assert!(start.elapsed() <= limit * 2, "{:?}", start.elapsed());
        // Destroyed instances are noticed too.
        host.library.scenario(UNDIVIDED);
        if listed {
            fs::remove_dir_all(host.root.path().join("proc/driver/nvidia/capabilities/gpu1/mig/gi0")).unwrap();
        }
        wait_for(&mut seen, |found| parts(found) == 0).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_gpu_that_joins_its_fabric_is_read_again_with_clique_and_links() {
    let host = Host::new(
        "{node: n, board: NVIDIA GB200, count: 2, topology: NVSwitch, \
         fabric: {clusterUuid: 0b968a6d-c8aa-45e1-9e07-e1e51be99c31, cliqueId: 7}}",
    );
    host.library
        .state("gpus: {0: {fabric: NotStarted}, 1: {fabric: InProgress}}");
    let first = |hardware: &Hardware| hardware.inventory().unwrap().gpus[0].clone();
    let mut seen = host.watch();
    let waiting = first(&wait_for(&mut seen, Hardware::waits_for_fabric).await);
    assert_eq!(waiting.links[0].nvlinks, None);
    host.library.state("{}");
    let start = Instant::now();
    let has_joined = |found: &Hardware| found.driver == DriverState::Answers && !found.waits_for_fabric();
    let joined = first(&wait_for(&mut seen, has_joined).await);
    assert!(start.elapsed() <= BLIND_RECHECK * 2, "{:?}", start.elapsed());
    assert!(joined.links[0].nvlinks.is_some());
    let clique = joined
        .fabric
        .and_then(|fabric| fabric.place)
        .map(|place| place.clique_id);
    assert_eq!(clique, Some(7));
}

#[test]
fn a_driver_that_answers_for_no_gpu_has_failed_until_it_does() {
    let host = Host::new(DIVIDED);
    host.library.state("gpus: {0: {lost: true}, 1: {lost: true}}");
    let lost = host.probe(None);
    let DriverState::Failed(message) = &lost.driver else {
        panic!("{lost:?}")
    };
    assert!(
        message.contains("read GPU 0: ") && message.contains("read GPU 1: "),
        "{message}"
    );
    assert!(lost.is_known() && lost.has_gpus(), "none of them is advertised");
    host.library.state("{}");
    let found = host.probe(Some(&lost));
    assert_eq!(found.driver, DriverState::Answers);
    host.library.state("gpus: {0: {lost: true}, 1: {lost: true}}");
    let lost = host.probe(Some(&found));
    assert_eq!(
        (lost.inventory(), &lost.driver),
        (found.inventory(), &DriverState::Answers),
        "that they are broken is said of each"
    );
    assert!(lost.problem().is_some());
}

#[test]
fn a_gpu_that_does_not_tell_what_it_is_is_looked_at_again() {
    let host = Host::new(DIVIDED);
    let before = host.probe(None);
    host.library
        .state("gpus: {1: {failing: {nvmlDeviceGetMigMode: UNKNOWN}}}");
    let now = host.probe(Some(&before));
    assert_eq!(
        (now.inventory(), &now.driver),
        (before.inventory(), &DriverState::Answers)
    );
    assert!(
        now.problem()
            .is_some_and(|problem| problem.contains("read the MIG mode of GPU 1: ")),
        "{now:?}"
    );
    assert_eq!(before.problem(), None);
}

#[test]
fn instances_are_a_trace() {
    let host = Host::new(DIVIDED);
    let before = host.roots().traces();
    host.capability("gpu1/mig/gi0/ci0");
    assert_ne!(host.roots().traces(), before);
}

fn gpu_node(release: bool) -> GpuNodeState {
    let spec = GpuNodeSpec {
        release,
        ..GpuNodeSpec::default()
    };
    GpuNodeState::Present(Arc::new(ObservedGpuNode::new(
        "node",
        &ApiResource::erase::<GpuNode>(&()),
        spec,
    )))
}

#[tokio::test(start_paused = true)]
async fn while_the_gpus_are_released_nobody_is_asked_and_what_was_found_stays() {
    let host = Host::new(UNDIVIDED);
    let (say, said) = watch::channel(gpu_node(false));
    let mut seen = host.watch_with(ReleaseRequest::new(Some(said), host.root.path()));
    let before = wait_for(&mut seen, |found| found.driver == DriverState::Answers).await;
    say.send_replace(gpu_node(true));
    let released = wait_for(&mut seen, |found| found.driver == DriverState::Released).await;
    assert_eq!((released.inventory(), released.problem()), (before.inventory(), None));
    host.library.scenario(DIVIDED);
    sleep(RECHECK * 10).await;
    assert!(!seen.has_changed().unwrap(), "nobody looks");

    // An agent that starts now does not use the driver either, before the API server answers.
    let (later, said) = watch::channel(GpuNodeState::Unknown);
    let mut started = host.watch_with(ReleaseRequest::new(Some(said), host.root.path()));
    let first = wait_for(&mut started, |_| true).await;
    assert_eq!(
        (first.driver, first.functions, first.reading),
        (DriverState::Released, 2, None)
    );

    say.send_replace(gpu_node(false));
    later.send_replace(gpu_node(false));
    for seen in [&mut seen, &mut started] {
        wait_for(seen, |found| found.driver == DriverState::Answers && parts(found) == 1).await;
    }
    let (_later, said) = watch::channel(GpuNodeState::Unknown);
    let mut next = host.watch_with(ReleaseRequest::new(Some(said), host.root.path()));
    wait_for(&mut next, |found| found.driver == DriverState::Answers).await;
}

#[tokio::test(start_paused = true)]
async fn the_gpus_are_released_once_no_call_of_the_agent_holds_the_driver() {
    let host = Host::new(UNDIVIDED);
    let calls = DriverCalls::default();
    let (say, said) = watch::channel(gpu_node(false));
    let mut seen = host.watch_beside(calls.clone(), ReleaseRequest::new(Some(said), host.root.path()));
    let before = wait_for(&mut seen, |found| found.driver == DriverState::Answers).await;
    let probing = calls.begin().unwrap();
    say.send_replace(gpu_node(true));
    let waiting = wait_for(&mut seen, |found| found.problem().is_some()).await;
    assert!(
        waiting
            .problem()
            .is_some_and(|problem| problem.starts_with("release the GPUs: ")),
        "{waiting:?}"
    );
    assert_eq!(waiting.inventory(), before.inventory());
    assert!(calls.begin().is_none(), "no further call begins");
    sleep(RECHECK * 10).await;
    assert!(!seen.has_changed().unwrap());
    drop(probing);
    wait_for(&mut seen, |found| found.driver == DriverState::Released).await;
    say.send_replace(gpu_node(false));
    wait_for(&mut seen, |found| found.driver == DriverState::Answers).await;

    // A release that ends before the call does.
    let probing = calls.begin().unwrap();
    say.send_replace(gpu_node(true));
    wait_for(&mut seen, |found| found.problem().is_some()).await;
    say.send_replace(gpu_node(false));
    wait_for(&mut seen, |found| found.driver == DriverState::Answers).await;
    drop(probing);
}

#[tokio::test(start_paused = true)]
async fn the_gpus_are_released_once_the_mps_daemons_without_clients_have_ended() {
    let host = Host::new(UNDIVIDED);
    let daemon = host.root.path().join("mps/GPU-1");
    fs::create_dir_all(&daemon).unwrap();
    fs::write(host.root.path().join("mps/lock"), "").unwrap();
    let (say, said) = watch::channel(gpu_node(false));
    let mut seen = host.watch_with(ReleaseRequest::new(Some(said), host.root.path()));
    let answers = |found: &Hardware| found.driver == DriverState::Answers;
    let is_released = |found: &Hardware| found.driver == DriverState::Released;
    wait_for(&mut seen, answers).await;

    // A release that ends before the daemon does.
    say.send_replace(gpu_node(true));
    let waiting = wait_for(&mut seen, |found| found.problem().is_some()).await;
    assert!(
        waiting
            .problem()
            .is_some_and(|problem| problem.starts_with("release the GPUs: MPS ")),
        "{waiting:?}"
    );
    say.send_replace(gpu_node(false));
    wait_for(&mut seen, answers).await;

    // A daemon whose device a pod holds.
    let start = Instant::now();
    say.send_replace(gpu_node(true));
    wait_for(&mut seen, is_released).await;
    assert!(start.elapsed() >= DAEMONS_TIMEOUT, "{:?}", start.elapsed());
    say.send_replace(gpu_node(false));
    wait_for(&mut seen, answers).await;

    // A daemon that ends.
    let start = Instant::now();
    say.send_replace(gpu_node(true));
    wait_for(&mut seen, |found| found.problem().is_some()).await;
    fs::remove_dir(&daemon).unwrap();
    wait_for(&mut seen, is_released).await;
    assert!(start.elapsed() < DAEMONS_TIMEOUT, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_driver_container_that_is_not_ready_is_waited_for_and_a_driver_in_use_is_kept() {
    let host = Host::new(UNDIVIDED);
    let container = host.root.path().join("run/nvidia/driver");
    fs::create_dir_all(container.parent().unwrap()).unwrap();
    fs::rename(host.root.path().join("driver"), &container).unwrap();
    let folder = host.root.path().join("run/nvidia/validations");
    fs::create_dir(&folder).unwrap();
    let (sender, mut seen) = watch::channel(None);
    let hardware_watch = HardwareWatch {
        roots: DriverRoots::of_host(host.root.path()),
        hardware: sender,
        probe_now: Arc::new(Notify::new()),
        release: ReleaseRequest::new(None, host.root.path()),
        mps_dir: host.root.path().join("mps"),
        alone: watch::Sender::new(false).subscribe(),
        layouts: watch::Sender::new(false).subscribe(),
        driver_events: None,
        metrics: AgentMetrics::new(),
    };
    tokio::spawn(hardware_watch.run());
    let waiting = wait_for(&mut seen, |_| true).await;
    assert!(matches!(waiting.driver, DriverState::Waiting(_)), "{waiting:?}");
    assert!(
        waiting
            .problem()
            .is_some_and(|problem| problem.contains(".driver-ctr-ready"))
    );
    // Later than any retry.
    sleep(MAX_RETRY * 4).await;
    fs::write(folder.join(".driver-ctr-ready"), "").unwrap();
    let start = Instant::now();
    wait_for(&mut seen, |found| found.driver == DriverState::Answers).await;
    assert!(start.elapsed() <= RECHECK * 2, "{:?}", start.elapsed());
    // The container ends before its driver is unloaded.
    fs::remove_file(folder.join(".driver-ctr-ready")).unwrap();
    sleep(RECHECK * 10).await;
    assert!(!seen.has_changed().unwrap());
}

#[tokio::test]
async fn the_time_limit_applies_to_each_gpu() {
    let host = Host::new("{node: n, board: Tesla T4, count: 8, topology: Pcie}");
    let gpus: Vec<String> = (0..8).map(|gpu| format!("{gpu}: {{initMs: 400}}")).collect();
    host.library.state(&format!("gpus: {{{}}}", gpus.join(", ")));
    let roots = Arc::new(host.roots());
    let (sender, seen) = watch::channel(None);
    let limit = Duration::from_millis(2500);
    let (_, hardware) = probe_within(limit, &roots, false, &sender).await;
    assert_eq!(
        (hardware.driver, hardware.reading.unwrap().inventory.gpus.len()),
        (DriverState::Answers, 8)
    );
    assert!(!seen.has_changed().unwrap(), "all together took longer");
    let (_, hardware) = probe_within(Duration::from_millis(100), &roots, false, &sender).await;
    assert_eq!(hardware.driver, DriverState::Answers, "it answers in the end");
    let waiting = seen.borrow().clone().unwrap();
    assert!(matches!(waiting.driver, DriverState::Waiting(_)), "{waiting:?}");
    assert_eq!((waiting.functions, &waiting.machine), (2, &hardware.machine));
}

#[tokio::test]
async fn a_release_is_seen_while_a_probe_hangs() {
    let host = Host::new(UNDIVIDED);
    host.library.state("gpus: {0: {hangs: true}}");
    let calls = DriverCalls::default();
    let (say, said) = watch::channel(gpu_node(false));
    let mut seen = host.watch_beside(calls.clone(), ReleaseRequest::new(Some(said), host.root.path()));
    while calls.progress(1).is_none_or(|progress| progress.since.is_none()) {
        sleep(Duration::from_millis(10)).await;
    }
    say.send_replace(gpu_node(true));
    let waiting = wait_for(&mut seen, |_| true).await;
    let is_saved = host.root.path().join("released").exists();
    host.library.state("{}");
    assert!(
        waiting
            .problem()
            .is_some_and(|problem| problem.starts_with("release the GPUs: ")),
        "{waiting:?}"
    );
    assert!(is_saved && calls.begin().is_none());
    wait_for(&mut seen, |found| found.driver == DriverState::Released).await;
}
