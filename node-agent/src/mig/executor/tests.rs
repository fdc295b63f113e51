//! The executor, on the simulated driver of a node.

use super::*;
use crate::{
    admin::metrics::AgentMetrics,
    api_server::release::ReleaseRequest,
    driver::{
        driver_events::DriverEvents,
        hardware::DriverState,
        hardware_watch::HardwareWatch,
        nvml::{DriverReading, GpuAddress, events::DriverEvent, restore_persistence},
    },
    mig::job::tests::{A100, FOUR, H100, ONE_AT_6, TWO_AT_4, TestNode, layout, run},
};
use gpunode_crds::MpsDaemon;
use gpunode_gpu::{DeviceHolder, GpuLayout, Inventory};
use std::{collections::BTreeSet, future::Future};
use tokio::{sync::mpsc, task::JoinHandle};

const LIMIT: Duration = Duration::from_secs(30);

struct NoAllocations;

impl Allocations for NoAllocations {
    fn changes(&self) -> watch::Receiver<u64> {
        watch::Sender::new(0).subscribe()
    }

    fn daemons(&self) -> Vec<MpsDaemon> {
        Vec::new()
    }

    fn holders(&self) -> Vec<DeviceHolder> {
        Vec::new()
    }

    fn known_holders(&self) -> Option<Vec<DeviceHolder>> {
        Some(Vec::new())
    }

    fn is_assigned(&self, _: &str) -> bool {
        false
    }
}

/// An executor of a node and its neighbours.
struct TestExecutor {
    executor: MigExecutor,
    hardware: watch::Sender<Option<Arc<Hardware>>>,
    work: watch::Sender<Vec<MigWork>>,
    layouts: watch::Sender<bool>,
}

impl TestExecutor {
    fn new(node: &TestNode) -> Self {
        let layouts = watch::Sender::new(true);
        let (hardware, work) = (watch::Sender::new(None), watch::Sender::default());
        let executor = MigExecutor {
            roots: node.roots.clone(),
            state_dir: node.state_dir(),
            hardware: hardware.subscribe(),
            work: work.subscribe(),
            attempts: watch::Sender::default(),
            records: watch::Sender::default(),
            devices: Arc::new(NoAllocations),
            alone: watch::Sender::new(false),
            probe_hardware: Arc::default(),
            thread: BlockingThread::default(),
        };
        let own = Self {
            executor,
            hardware,
            work,
            layouts,
        };
        own.read(node);
        own
    }

    /// Reads the hardware.
    fn read(&self, node: &TestNode) {
        let inventory = Inventory {
            gpus: node.gpus(),
            ..Inventory::default()
        };
        let reading = Some(DriverReading {
            inventory,
            ..DriverReading::default()
        });
        let hardware = Hardware {
            driver: DriverState::Answers,
            reading,
            run: run(),
            ..Hardware::default()
        };
        self.hardware.send_replace(Some(Arc::new(hardware)));
    }

    fn start(&self) -> JoinHandle<()> {
        tokio::spawn(self.executor.clone().run())
    }

    /// Watches the hardware beside the executor.
    fn watch_hardware(
        &self,
        node: &TestNode,
        driver_events: Option<DriverEvents>,
    ) -> watch::Receiver<Option<Arc<Hardware>>> {
        let (sender, hardware) = watch::channel(None);
        let hardware_watch = HardwareWatch {
            layouts: self.layouts.subscribe(),
            roots: node.roots.clone(),
            hardware: sender,
            probe_now: self.executor.probe_hardware.clone(),
            release: ReleaseRequest::new(None, &node.state_dir()),
            mps_dir: node.state_dir().join("mps"),
            driver_events,
            alone: self.executor.alone.subscribe(),
            metrics: AgentMetrics::new(),
        };
        tokio::spawn(hardware_watch.run());
        hardware
    }

    /// Does work, and returns its result.
    async fn done(&self, work: MigWork) -> AttemptResult {
        let mut attempts = self.executor.attempts.subscribe();
        attempts.mark_unchanged();
        self.work.send_replace(vec![work.clone()]);
        let is_done = |attempts: &MigAttempts| {
            attempts
                .get(&work.gpu)
                .is_some_and(|attempt| attempt.work == work && attempt.result != AttemptResult::Running)
        };
        let attempts = within(attempts.wait_for(is_done)).await.unwrap();
        attempts[&work.gpu].result.clone()
    }
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    timeout(LIMIT, future).await.expect("no answer in time")
}

/// Waits until something on the node is so.
async fn until(is_so: impl Fn() -> bool) {
    within(async {
        while !is_so() {
            sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn work_is_running_until_its_result_which_stays() {
    let node = TestNode::new(A100, 2, Some("3g.40gb"));
    let test = TestExecutor::new(&node);
    let mut attempts = test.executor.attempts.subscribe();
    node.faults().delay(0, "nvmlDeviceGetMigMode", 100).unwrap();
    let both = [0, 1].map(|gpu| node.work(gpu, MigWorkKind::Check, &layout(&[FOUR])));
    test.work.send_replace(both.to_vec());
    let _task = test.start();
    let result = |attempts: &MigAttempts, work: &MigWork| attempts.get(&work.gpu).map(|attempt| attempt.result.clone());
    let is_running = |attempts: &MigAttempts| result(attempts, &both[0]) == Some(AttemptResult::Running);
    within(attempts.wait_for(is_running)).await.unwrap();
    let are_clear = |attempts: &MigAttempts| {
        both.iter()
            .all(|work| result(attempts, work) == Some(AttemptResult::Clear))
    };
    within(attempts.wait_for(are_clear)).await.unwrap();
    test.work.send_replace(Vec::new());
    assert!(are_clear(&test.executor.attempts.borrow()));
}

#[tokio::test]
async fn records_are_read_without_a_layout_and_forgotten_without_the_gpu() {
    let node = TestNode::new(A100, 1, None);
    node.records().update("GPU-gone", |record| record.run = run()).unwrap();
    let test = TestExecutor::new(&node);
    let mut records = test.executor.records.subscribe();
    let _task = test.start();
    let are = |count| move |records: &Option<Arc<MigRecords>>| records.as_ref().is_some_and(|all| all.len() == count);
    within(records.wait_for(are(1))).await.unwrap();
    let forget = MigWork {
        gpu: "GPU-gone".to_owned(),
        ..node.work(0, MigWorkKind::Forget, &GpuLayout::default())
    };
    assert_eq!(test.done(forget).await, AttemptResult::Done);
    within(records.wait_for(are(0))).await.unwrap();
    assert!(node.records().records().is_empty());
}

#[tokio::test]
async fn records_that_cannot_be_read_are_read_again_and_not_replaced() {
    let node = TestNode::new(A100, 1, None);
    let path = node.state_dir().join("mig.json");
    std::fs::create_dir(&path).unwrap();
    let test = TestExecutor::new(&node);
    let mut records = test.executor.records.subscribe();
    let _task = test.start();
    assert!(timeout(SETTLE / 2, records.wait_for(Option::is_some)).await.is_err());
    std::fs::remove_dir(&path).unwrap();
    within(records.wait_for(Option::is_some)).await.unwrap();
}

#[tokio::test]
async fn work_of_the_driver_begins_after_a_release_and_has_not_failed_before() {
    let node = TestNode::new(A100, 2, Some("3g.40gb"));
    let test = TestExecutor::new(&node);
    node.roots.calls.close();
    let mut attempts = test.executor.attempts.subscribe();
    let [check, remember] =
        [(0, MigWorkKind::Check), (1, MigWorkKind::Remember)].map(|(gpu, kind)| node.work(gpu, kind, &layout(&[])));
    test.work.send_replace(vec![check.clone(), remember.clone()]);
    let _task = test.start();
    let is_done = |attempts: &MigAttempts| {
        let attempt = attempts.get(&remember.gpu);
        attempt.is_some_and(|attempt| attempt.result == AttemptResult::Done)
    };
    let seen = within(attempts.wait_for(is_done)).await.unwrap().clone();
    assert_eq!(seen.keys().collect::<Vec<_>>(), [&remember.gpu]);
    node.roots.calls.reopen();
    assert_eq!(test.done(check).await, AttemptResult::Clear);
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn gpus_get_their_layouts_one_after_the_other_and_the_hardware_is_read_again() {
    let node = TestNode::new(H100, 2, None);
    let test = TestExecutor::new(&node);
    let _task = test.start();
    let wanted = layout(&[FOUR, TWO_AT_4, ONE_AT_6]);
    for gpu in [0, 1] {
        assert_eq!(
            test.done(node.work(gpu, MigWorkKind::Apply, &wanted)).await,
            AttemptResult::Done
        );
        within(test.executor.probe_hardware.notified()).await;
        let mut instances = wanted.instances.clone();
        instances.sort_unstable();
        assert_eq!(node.state_of(gpu).layout().instances, instances);
    }
    let records = test.executor.records.borrow().clone().unwrap();
    assert!(records.values().all(|record| record.applied.as_ref() == Some(&wanted)));
    assert!(!*test.executor.alone.borrow(), "no GPU was reset");
}

/// The approval is for what was clear a while ago.
#[tokio::test]
#[ignore = "needs root: make test"]
async fn what_came_since_the_approval_keeps_a_gpu_from_its_change() {
    let wanted = layout(&[(9, 4, 4), (14, 0, 2)]);
    for kind in [MigWorkKind::Apply, MigWorkKind::RollBack, MigWorkKind::Restore] {
        let node = TestNode::new(A100, 1, Some("3g.40gb, 3g.40gb"));
        let before = node.state_of(0);
        let capability = 10 * (before.instances[0].id + 1);
        node.add_process(22, "nv-hostengine", &format!("/dev/nvidia-caps/nvidia-cap{capability}"));
        let test = TestExecutor::new(&node);
        let _task = test.start();
        let result = test.done(node.work(0, kind, &wanted)).await;
        let is_blocked = matches!(&result, AttemptResult::Blocked { reason: MigReason::InUse, message }
            if message.contains("nv-hostengine"));
        assert!(is_blocked, "{kind:?}: {result:?}");
        assert_eq!(node.state_of(0), before, "{kind:?}");
        assert!(node.records().records().is_empty(), "{kind:?}: nothing has begun");
    }
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_reset_waits_for_other_calls_and_lets_none_begin() {
    let node = TestNode::new(A100, 1, None);
    let test = TestExecutor::new(&node);
    let mut alone = test.executor.alone.subscribe();
    node.faults().delay(0, "nvmlDeviceSetMigMode", 1000).unwrap();
    let calls = &node.roots.calls;
    let other = calls.begin().unwrap();
    let _task = test.start();
    let work = node.work(0, MigWorkKind::Apply, &layout(&[FOUR]));
    let changing = test.done(work);
    let beside = async {
        within(alone.wait_for(|alone| *alone)).await.unwrap();
        assert!(calls.begin().is_none());
        assert!(node.records().records().is_empty(), "nothing has begun");
        drop(other);
        until(|| !node.records().records().is_empty()).await;
        assert!(calls.begin().is_none(), "the driver is used by the change alone");
    };
    let (result, ()) = tokio::join!(changing, beside);
    assert_eq!(result, AttemptResult::Done);
    assert!(calls.begin().is_some() && !*test.executor.alone.borrow());
}

#[tokio::test(start_paused = true)]
#[ignore = "needs root: make test"]
async fn a_call_that_does_not_end_keeps_a_gpu_from_a_reset_and_others_may_begin_again() {
    let node = TestNode::new(A100, 1, None);
    let test = TestExecutor::new(&node);
    let _hanging = node.roots.calls.begin().unwrap();
    let _task = test.start();
    let result = test.done(node.work(0, MigWorkKind::Apply, &layout(&[FOUR]))).await;
    let is_blocked = matches!(&result, AttemptResult::Blocked { reason: MigReason::InUse, message } if message.contains("no answer yet"));
    assert!(is_blocked, "{result:?}");
    assert!(node.roots.calls.begin().is_some() && !*test.executor.alone.borrow());
    assert!(!node.state_of(0).enabled);
}

/// Waits until the events of the first GPU arrive, and drops those.
async fn are_followed(node: &TestNode, received: &mut mpsc::Receiver<DriverEvent>) {
    within(async {
        while timeout(Duration::from_millis(200), received.recv()).await.is_err() {
            node.faults().inject_xid(0, 43).unwrap();
        }
    })
    .await;
    while received.try_recv().is_ok() {}
}

/// The simulated driver resets no GPU whose events this process follows.
#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_gpu_is_reset_although_its_events_are_followed_and_they_are_followed_again() {
    let node = TestNode::new(A100, 1, None);
    let test = TestExecutor::new(&node);
    let library = node.roots.find().unwrap().library;
    restore_persistence(&library, &GpuAddress::of(&node.gpus()[0])).unwrap();
    let (events, mut received) = DriverEvents::new(AgentMetrics::new(), node.roots.calls.clone());
    let mut hardware = test.watch_hardware(&node, Some(events));
    within(hardware.wait_for(Option::is_some)).await.unwrap();
    are_followed(&node, &mut received).await;
    let _task = test.start();
    let work = node.work(0, MigWorkKind::Apply, &layout(&[FOUR]));
    node.faults().delay(0, "nvmlDeviceSetMigMode", 1000).unwrap();
    let beside = async {
        until(|| !node.records().records().is_empty()).await;
        // As a reset may cause: nobody follows events now.
        node.faults().inject_xid(0, 45).unwrap();
    };
    let (result, ()) = tokio::join!(test.done(work), beside);
    assert_eq!(result, AttemptResult::Done);
    assert!(node.is_persistent());
    let xid = within(async {
        loop {
            if let Ok(Some(event)) = timeout(Duration::from_millis(200), received.recv()).await {
                return event.xid;
            }
            node.faults().inject_xid(0, 43).unwrap();
        }
    })
    .await;
    assert_eq!(xid, Some(43), "XIDs of the reset are none of the GPU's faults");
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn the_events_end_at_once_for_a_reset_that_follows_another() {
    let node = TestNode::new(A100, 4, None);
    let test = TestExecutor::new(&node);
    let (events, mut received) = DriverEvents::new(AgentMetrics::new(), node.roots.calls.clone());
    let mut hardware = test.watch_hardware(&node, Some(events));
    within(hardware.wait_for(Option::is_some)).await.unwrap();
    let _task = test.start();
    let mut waits = Vec::new();
    for gpu in 0..4 {
        // A wait for the next event begins now.
        are_followed(&node, &mut received).await;
        let start = Instant::now();
        let work = node.work(gpu, MigWorkKind::Apply, &layout(&[]));
        assert_eq!(test.done(work).await, AttemptResult::Done);
        waits.push(start.elapsed());
    }
    // The shortest: a loaded machine makes some of them long, and a wait of its own would make each last 2 s.
    let shortest = waits.iter().skip(1).min().copied().unwrap_or_default();
    assert!(shortest < Duration::from_millis(1500), "{waits:?}");
}

#[tokio::test(start_paused = true)]
async fn a_reset_that_does_not_end_is_reported_and_its_end_too() {
    let node = TestNode::new(A100, 1, None);
    let test = TestExecutor::new(&node);
    let mut hardware = test.watch_hardware(&node, None);
    let is_in = |is_so: fn(&DriverState) -> bool| {
        move |hardware: &Option<Arc<Hardware>>| hardware.as_ref().is_some_and(|hardware| is_so(&hardware.driver))
    };
    let answers = is_in(|state| *state == DriverState::Answers);
    timeout(LIMIT * 4, hardware.wait_for(answers)).await.unwrap().unwrap();
    test.executor.alone.send_replace(true);
    let waits =
        is_in(|state| matches!(state, DriverState::Waiting(message) if message.starts_with("change the MIG mode")));
    timeout(LIMIT * 4, hardware.wait_for(waits)).await.unwrap().unwrap();
    test.executor.alone.send_replace(false);
    timeout(LIMIT * 4, hardware.wait_for(answers)).await.unwrap().unwrap();
}

#[tokio::test]
async fn events_end_for_a_reset_although_a_reading_of_the_hardware_waits_for_the_driver() {
    let node = TestNode::new(A100, 1, None);
    let test = TestExecutor::new(&node);
    let calls = &node.roots.calls;
    let (events, _received) = DriverEvents::new(AgentMetrics::new(), calls.clone());
    let mut hardware = test.watch_hardware(&node, Some(events));
    within(hardware.wait_for(Option::is_some)).await.unwrap();
    // The session of the events is what is left after the reading.
    until(|| calls.progress(2).is_some()).await;
    calls.close();
    test.executor.probe_hardware.notify_one();
    for _ in 0..3 {
        tokio::task::yield_now().await;
    }
    test.executor.alone.send_replace(true);
    within(calls.ended()).await;
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn an_executor_that_ends_between_two_calls_leaves_the_rest_to_the_next() {
    let node = TestNode::new(H100, 1, Some("1g.10gb, 1g.10gb, 1g.10gb"));
    let before = node.state_of(0).layout();
    let test = TestExecutor::new(&node);
    for call in ["nvmlGpuInstanceDestroy", "nvmlDeviceCreateGpuInstanceWithPlacement"] {
        node.faults().delay(0, call, 300).unwrap();
    }
    let task = test.start();
    let work = node.work(0, MigWorkKind::Apply, &layout(&[FOUR, TWO_AT_4]));
    test.work.send_replace(vec![work.clone()]);
    until(|| node.parts().is_some_and(|(instances, _)| instances < 3)).await;
    task.abort();
    _ = task.await;
    // The hand-over waits for this.
    within(test.executor.thread.run(|| ())).await.unwrap();
    let half = node.state_of(0);
    assert!(half.instances.len() < 3 && half.layout() != work.layout, "{half:?}");
    let records = node.records();
    let change = records.records()[&work.gpu].change.clone().unwrap();
    assert_eq!(change.before, before);
    let next = TestExecutor::new(&node);
    let _task = next.start();
    assert_eq!(next.done(work.clone()).await, AttemptResult::Done);
    let instances: BTreeSet<_> = node.state_of(0).layout().instances.into_iter().collect();
    assert_eq!(instances, work.layout.instances.iter().copied().collect());
    assert_eq!(node.records().records()[&work.gpu].change, None);
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn other_sessions_stay_away_until_a_reset_is_over_although_the_executor_has_ended() {
    let node = TestNode::new(A100, 1, None);
    let test = TestExecutor::new(&node);
    let library = node.roots.find().unwrap().library;
    restore_persistence(&library, &GpuAddress::of(&node.gpus()[0])).unwrap();
    node.faults().delay(0, "nvmlDeviceSetMigMode", 1000).unwrap();
    let task = test.start();
    test.work
        .send_replace(vec![node.work(0, MigWorkKind::Apply, &layout(&[FOUR]))]);
    // It is off for the call that changes the mode.
    until(|| !node.is_persistent()).await;
    task.abort();
    _ = task.await;
    assert!(node.roots.calls.begin().is_none() && *test.executor.alone.borrow());
    within(test.executor.thread.run(|| ())).await.unwrap();
    assert!(node.roots.calls.begin().is_some() && !*test.executor.alone.borrow());
    let state = node.state_of(0);
    assert_eq!(
        (state.enabled, state.instances),
        (true, Vec::new()),
        "it ended between two calls"
    );
    assert!(node.is_persistent());
}

/// Eight GPUs with seven instances each, from the work to its result, and by the calls of the driver alone.
#[tokio::test]
#[ignore = "a measurement, as root"]
async fn measure_eight_gpus_of_seven_instances() {
    const CALLS: [(&str, u64); 3] = [
        ("nvmlDeviceSetMigMode", 200),
        ("nvmlDeviceCreateGpuInstanceWithPlacement", 100),
        ("nvmlGpuInstanceCreateComputeInstance", 50),
    ];
    let [node, other] = [(); 2].map(|()| {
        let node = TestNode::new(H100, 8, None);
        for gpu in 0..8 {
            for (call, ms) in CALLS {
                node.faults().delay(gpu, call, ms).unwrap();
            }
        }
        node
    });
    let wanted: GpuLayout = layout(&[0, 1, 2, 3, 4, 5, 6].map(|start| (19, start, 1)));
    let alone = other.driver.divide(&wanted.instances);
    let test = TestExecutor::new(&node);
    let works: Vec<MigWork> = (0..8).map(|gpu| node.work(gpu, MigWorkKind::Apply, &wanted)).collect();
    let mut attempts = test.executor.attempts.subscribe();
    let _task = test.start();
    let start = Instant::now();
    test.work.send_replace(works.clone());
    let are_done = |attempts: &MigAttempts| {
        let of_works = works.iter().filter_map(|work| attempts.get(&work.gpu));
        of_works.filter(|attempt| attempt.result == AttemptResult::Done).count() == works.len()
    };
    timeout(Duration::from_mins(2), attempts.wait_for(are_done))
        .await
        .unwrap()
        .unwrap();
    let took = start.elapsed();
    let more = (took.as_secs_f64() / alone.as_secs_f64() - 1.0) * 100.0;
    println!("MIG: 8 GPUs x 7 instances in {took:.2?}; the calls of the driver alone in {alone:.2?}: {more:.1} % more");
    assert!(more <= 20.0, "{more:.1} %");
}
