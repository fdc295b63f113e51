//! Changes of the number of time slices.

use super::*;
use std::collections::VecDeque;

const GPU: &str = "nvidia.com/gpu";

/// Four GPUs, each with this number of time slices.
fn slices(replicas: u32) -> DesiredDevices {
    slices_of(GPU, replicas)
}

fn slices_of(resource: &str, replicas: u32) -> DesiredDevices {
    let gpus = (0..4).map(|index| Gpu {
        index,
        uuid: format!("GPU-{index}"),
        memory_mib: 4096,
        ..Gpu::default()
    });
    let inventory = Inventory {
        gpus: gpus.collect(),
        ..Inventory::default()
    };
    let config = format!("resources: [{{name: {resource}, sharing: {{strategy: TimeSlicing, replicas: {replicas}}}}}]");
    desired_devices(&inventory, &load(&config).unwrap()).unwrap()
}

fn test(replicas: u32, holders: &[ContainerShares]) -> AllocatorTest {
    AllocatorTest::of(slices(replicas), holders)
}

fn healthy(test: &AllocatorTest) -> Vec<String> {
    test.healthy().into_iter().map(|(_, id)| id).collect()
}

fn pods(ids: &[&str]) -> Vec<ContainerShares> {
    ids.iter().map(|id| holding(id, GPU, &[id])).collect()
}

/// An observation of a kubelet that was just started: it has neither healthy devices nor pods yet, only a checkpoint.
fn observe_restarted_kubelet(test: &mut AllocatorTest, checkpoint: &[ContainerShares]) {
    test.now += Duration::from_secs(1);
    let ids = checkpoint.iter().flat_map(|of| &of.ids);
    test.allocator.observe(KubeletObservation {
        checkpoint: ids.map(|id| (GPU.to_owned(), id.clone())).collect(),
        ..nothing_held(test.now)
    });
}

#[test]
fn more_time_slices_are_offered_at_once_also_where_some_are_held() {
    let held = pods(&["GPU-0::0", "GPU-0::1", "GPU-1::1"]);
    let mut test = test(2, &held);
    test.set_desired(slices(4));
    assert_eq!(test.count(GPU), Some((16, 16)));
    assert!(test.allocator.pending_changes().is_empty());
    test.allocate(GPU, &["GPU-0::3"]).unwrap();
}

#[test]
fn of_fewer_time_slices_a_gpu_keeps_what_is_held_and_the_sum_is_the_new_one() {
    let held = pods(&["GPU-0::0", "GPU-0::1", "GPU-0::2", "GPU-0::3", "GPU-1::3", "GPU-2::0"]);
    let mut test = test(4, &held);
    test.set_desired(slices(2));
    assert_eq!(test.count(GPU).unwrap().0, 8, "two slices of other GPUs are withheld");
    let ids = healthy(&test);
    for pod in &held {
        assert!(ids.contains(&pod.ids[0]), "{ids:?}");
    }
    let [waiting] = test.allocator.pending_changes().try_into().unwrap();
    assert_eq!(
        waiting.message,
        "GPU 0 wants nvidia.com/gpu (2 replicas), and pods hold 4; waits until pods with 2 of them end"
    );
    assert_eq!(waiting.pods.len(), 4);
    assert!(test.allocator.needs_observation());
    // The kubelet picked it before it got the list.
    test.allocate(GPU, &["GPU-3::3"]).unwrap();
    // The id that is freed is not offered again: another GPU has room.
    test.observe(&held[1..]);
    assert_eq!(test.count(GPU).unwrap().0, 8);
    assert!(!healthy(&test).contains(&"GPU-0::0".to_owned()));
    test.observe(&held[2..]);
    assert!(test.allocator.pending_changes().is_empty());
    for _ in 0..20 {
        test.observe(&held[4..]);
    }
    assert_eq!(
        test.count(GPU),
        Some((8, 8)),
        "GPU-1::3 is held in the place of another"
    );
    assert!(!test.allocator.needs_observation());
}

#[test]
fn a_fault_during_a_change_offers_no_slices_of_other_gpus_for_those_of_the_faulty_one() {
    let held = pods(&[
        "GPU-0::0", "GPU-0::1", "GPU-0::2", "GPU-0::3", "GPU-1::0", "GPU-1::1", "GPU-1::2", "GPU-2::0", "GPU-2::3",
        "GPU-3::0",
    ]);
    let mut test = test(4, &held);
    test.set_desired(slices(2));
    test.observe(&held);
    assert_eq!(test.count(GPU).unwrap().0, 10, "what is held is more than the number");
    test.allocator
        .set_unavailable([("GPU-0".to_owned(), "XID 79".to_owned())].into());
    assert_eq!(test.count(GPU).unwrap().0, 6);
    test.observe(&held[4..]);
    assert_eq!(test.count(GPU).unwrap().0, 6);
}

#[test]
fn a_container_gets_no_slice_of_a_gpu_that_has_too_many() {
    let held = pods(&["GPU-0::0", "GPU-0::1", "GPU-0::2", "GPU-1::0"]);
    let mut test = test(4, &held);
    test.set_desired(slices(2));
    let available = ["GPU-0::3", "GPU-1::1", "GPU-1::2", "GPU-2::3"].map(str::to_owned);
    let preferred = |size| {
        let chosen = test.allocator.preferred(GPU, &available, &[], size, &BTreeMap::new());
        chosen.ids
    };
    assert_eq!(preferred(1), ["GPU-1::1"]);
    assert_eq!(
        preferred(2),
        ["GPU-1::1", "GPU-2::3"],
        "an id of the earlier list, where there is room"
    );
    assert_eq!(preferred(4).len(), 4, "as many as the kubelet asks for");
}

#[test]
fn a_restarted_agent_keeps_slices_that_the_configuration_no_longer_has() {
    let held = pods(&["GPU-0::1", "GPU-0::2", "GPU-0::3"]);
    let mut before = test(4, &held);
    before.set_desired(slices(2));
    let mut test = AllocatorTest {
        allocator: Allocator::restore(before.allocator.assigned().clone(), BTreeMap::new()),
        now: before.now,
    };
    test.set_desired(slices(2));
    test.observe(&held);
    assert_eq!(test.count(GPU).unwrap().0, 8);
    assert_eq!(test.allocator.pending_changes().len(), 1);
    let refused = test.allocate(GPU, &["GPU-0::3"]).unwrap_err();
    assert!(matches!(refused, AllocationRefusal::Held { .. }), "{refused}");
}

#[test]
fn a_slice_that_the_configuration_no_longer_has_is_given_to_the_next_pod_also_after_a_restart() {
    let held = pods(&[
        "GPU-1::3", "GPU-0::0", "GPU-0::1", "GPU-1::0", "GPU-2::0", "GPU-2::1", "GPU-3::0", "GPU-3::1",
    ]);
    let mut before = test(4, &held);
    before.set_desired(slices(2));
    before.observe(&held);
    let restarted = Allocator::restore(before.allocator.assigned().clone(), BTreeMap::new());
    // The agent restarts, or the kubelet, which at first has neither healthy devices nor pods.
    for (allocator, kubelet_restarts) in [(restarted, false), (before.allocator, true)] {
        let mut test = AllocatorTest {
            allocator,
            now: before.now,
        };
        test.set_desired(slices(2));
        if kubelet_restarts {
            observe_restarted_kubelet(&mut test, &[]);
        }
        test.observe(&held);
        // The pod has ended, and the kubelet gives its slice to the next one.
        test.observe(&held[1..]);
        test.allocate(GPU, &["GPU-1::3"]).unwrap();
        test.observe(&held);
        assert_eq!(test.count(GPU).unwrap().0, 8);
        // Some time after the kubelet has another slice in its place, it is no longer known.
        for _ in 0..14 {
            test.observe(&held[1..]);
        }
        let refused = test.allocate(GPU, &["GPU-1::3"]).unwrap_err();
        assert!(matches!(refused, AllocationRefusal::Unknown { .. }), "{refused}");
    }
}

#[test]
fn a_restarted_kubelet_that_lists_no_pods_yet_keeps_the_slices_of_its_checkpoint() {
    let held = pods(&["GPU-0::0", "GPU-1::3"]);
    let mut test = test(4, &held);
    test.set_desired(slices(2));
    observe_restarted_kubelet(&mut test, &held);
    assert!(healthy(&test).contains(&"GPU-1::3".to_owned()));
    assert_eq!(test.count(GPU), Some((8, 8)));
    // The pod has ended meanwhile.
    test.observe(&held[..1]);
    assert!(!healthy(&test).contains(&"GPU-1::3".to_owned()));
}

#[test]
fn a_restarted_kubelet_that_lists_no_pods_yet_keeps_all_slices_of_a_gpu_that_holds_too_many() {
    let held = pods(&["GPU-0::0", "GPU-0::1", "GPU-0::2", "GPU-0::3"]);
    let mut test = test(4, &held);
    test.set_desired(slices(2));
    test.observe(&held);
    let before = healthy(&test);
    observe_restarted_kubelet(&mut test, &held);
    assert_eq!(healthy(&test), before);
}

#[test]
fn a_slice_that_the_configuration_no_longer_has_is_known_also_if_the_next_observation_comes_late() {
    let mut test = test(4, &[]);
    // A slow kubelet: the last observation began long before the change.
    test.now += Duration::from_secs(15);
    test.set_desired(slices(2));
    test.observe(&[]);
    test.allocate(GPU, &["GPU-3::3"]).unwrap();
    for _ in 0..12 {
        test.observe(&[]);
    }
    let refused = test.allocate(GPU, &["GPU-2::3"]).unwrap_err();
    assert!(matches!(refused, AllocationRefusal::Unknown { .. }), "{refused}");
}

#[test]
fn slices_of_one_resource_are_none_of_the_next_resource_of_the_device() {
    let mut test = test(4, &[]);
    test.set_desired(slices(2));
    test.observe(&[]);
    test.set_desired(slices_of("a.b/c", 2));
    test.observe(&[]);
    assert_eq!(test.count("a.b/c"), Some((8, 8)));
    let refused = test.allocate("a.b/c", &["GPU-0::3"]).unwrap_err();
    assert!(matches!(refused, AllocationRefusal::Unknown { .. }), "{refused}");
}

/// A pod of the Deployment.
#[derive(Clone, Debug)]
struct Pod {
    generation: u32,
    bound: bool,
    id: Option<String>,
    /// Time at which it is ready.
    ready: u64,
    /// Time at which its containers end, and at which the API server deletes it.
    ends: Option<(u64, u64)>,
}

/// A list as the agent sent it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct SentList {
    healthy: BTreeSet<String>,
    all: BTreeSet<String>,
}

/// A Deployment, a scheduler that goes by node status, a kubelet that writes it every 10 s, and the agent. Time is in
/// hundredths of a second. The agent looks as often as it does on a node, and its lists take their time.
struct Cluster {
    test: AllocatorTest,
    start: Instant,
    clock: u64,
    /// Number of time slices of each GPU.
    number: u32,
    replicas: usize,
    generation: u32,
    pods: Vec<Pod>,
    /// Healthy ids that the kubelet has, and the lists on their way with the time of arrival.
    taken: BTreeSet<String>,
    sent: VecDeque<(u64, SentList)>,
    last_sent: SentList,
    /// All ids that the kubelet has.
    listed: BTreeSet<String>,
    reported: usize,
    next_look: u64,
    /// True if agent and kubelet restart now and then.
    restarts: bool,
    /// Time until which a restarted kubelet knows no pods.
    without_pods: u64,
    /// Reason for each rejected pod.
    rejected: Vec<String>,
    random: u64,
}

impl Cluster {
    fn new(seed: u64, restarts: bool) -> Self {
        let test = test(4, &[]);
        let start = test.now;
        let mut cluster = Self {
            test,
            start,
            clock: 0,
            number: 4,
            replicas: 14,
            generation: 0,
            pods: Vec::new(),
            taken: BTreeSet::new(),
            sent: VecDeque::new(),
            last_sent: SentList::default(),
            listed: BTreeSet::new(),
            reported: 16,
            next_look: 0,
            restarts,
            without_pods: 0,
            rejected: Vec::new(),
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
        };
        cluster.send();
        cluster
    }

    fn random(&mut self, below: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        usize::try_from(self.random % u64::try_from(below.max(1)).unwrap()).unwrap()
    }

    /// Returns a time between these two from now on.
    fn soon(&mut self, from: u64, to: u64) -> u64 {
        let more = self.random(usize::try_from(to - from + 1).unwrap());
        self.clock + from + u64::try_from(more).unwrap()
    }

    /// Sends a new list, which arrives after those before it.
    fn send(&mut self) {
        let lists = self.test.allocator.advertised();
        let list = SentList {
            healthy: healthy(&self.test).into_iter().collect(),
            all: lists
                .iter()
                .flat_map(|list| list.shares.iter().map(|share| share.id.clone()))
                .collect(),
        };
        if list != self.last_sent {
            let arrival = self.soon(5, 30);
            let before = self.sent.back().map_or(0, |(arrival, _)| *arrival);
            self.sent.push_back((arrival.max(before), list.clone()));
            self.last_sent = list;
        }
    }

    fn resize(&mut self, number: u32) {
        self.number = number;
        self.test.set_desired(slices(number));
        self.send();
    }

    fn held(&self) -> BTreeSet<String> {
        let running = self
            .pods
            .iter()
            .filter(|pod| pod.ends.is_none_or(|(end, _)| end > self.clock));
        running.filter_map(|pod| pod.id.clone()).collect()
    }

    fn observe(&mut self) {
        let held = self.held();
        let checkpoint = held.iter().map(|id| (GPU.to_owned(), id.clone())).collect();
        let listed = if self.clock < self.without_pods {
            BTreeSet::new()
        } else {
            held
        };
        self.test.now = self.start + Duration::from_millis(self.clock * 10);
        self.test.allocator.observe(KubeletObservation {
            started: self.test.now,
            holders: pods(&listed.iter().map(String::as_str).collect::<Vec<_>>()),
            allocatable: self.taken.iter().map(|id| (GPU.to_owned(), id.clone())).collect(),
            checkpoint,
        });
        self.send();
        let pause = if self.test.allocator.needs_observation() {
            50
        } else {
            1000
        };
        self.next_look = self.clock + pause;
    }

    /// Ends the streams: the kubelet has nothing until the next list arrives.
    fn disconnect(&mut self) {
        self.taken.clear();
        self.sent.clear();
        self.last_sent = SentList::default();
    }

    fn restart_agent(&mut self) {
        self.test.allocator = Allocator::restore(self.test.allocator.assigned().clone(), BTreeMap::new());
        self.test.set_desired(slices(self.number));
        self.disconnect();
        self.observe();
    }

    fn restart_kubelet(&mut self) {
        self.disconnect();
        self.without_pods = self.clock + 200;
        self.observe();
    }

    /// Admits a pod as the kubelet does.
    fn admit(&mut self, at: usize) {
        let held = self.held();
        let available: Vec<String> = self.taken.difference(&held).cloned().collect();
        let chosen = self
            .test
            .allocator
            .preferred(GPU, &available, &[], 1, &BTreeMap::new())
            .ids;
        if self.test.allocator.is_doubtful(GPU, &chosen) {
            self.observe();
        }
        self.test.now = self.start + Duration::from_millis(self.clock * 10);
        let given = match chosen.first() {
            Some(id) => self
                .test
                .allocate(GPU, &[id.as_str()])
                .map(|_| id.clone())
                .map_err(|refusal| refusal.to_string()),
            None => Err(format!("the kubelet has {:?}, all held", self.taken)),
        };
        match given {
            Ok(id) => {
                // The next lists may come before the answer. A kubelet crashes if its list no longer has the id.
                let on_the_way = self.sent.iter().map(|(_, list)| &list.all);
                let is_listed = on_the_way.chain([&self.listed]).all(|list| list.contains(&id));
                assert!(is_listed, "the kubelet crashes: {id}");
                self.pods[at].id = Some(id);
                self.pods[at].ready = self.clock + 100;
                self.next_look = self.next_look.min(self.clock + 20);
                self.send();
            }
            Err(reason) => {
                let (clock, reported) = (self.clock, self.reported);
                self.rejected.push(format!("at {clock}, {reported} reported: {reason}"));
                _ = self.pods.remove(at);
            }
        }
    }

    fn tick(&mut self) {
        self.clock += 10;
        let clock = self.clock;
        while self.sent.front().is_some_and(|(arrival, _)| *arrival <= clock) {
            let list = self.sent.pop_front().unwrap().1;
            (self.taken, self.listed) = (list.healthy, list.all);
        }
        self.pods
            .retain(|pod| pod.ends.is_none_or(|(_, deleted)| deleted > clock));
        self.roll();
        match self.restarts.then(|| self.random(400)) {
            Some(0) => self.restart_agent(),
            Some(1) => self.restart_kubelet(),
            _ => {}
        }
        if clock >= self.next_look {
            self.observe();
        }
        // A kubelet without devices rejects every pod, whatever the plugin does.
        if self.taken.is_empty() || clock < self.without_pods {
            return;
        }
        if clock.is_multiple_of(1000) {
            self.reported = self.taken.len();
        }
        let requested = self.pods.iter().filter(|pod| pod.bound).count();
        if requested < self.reported
            && let Some(at) = self.pods.iter().position(|pod| !pod.bound && pod.ends.is_none())
        {
            self.pods[at].bound = true;
            self.admit(at);
        }
    }

    /// Takes a step of the Deployment: at most a quarter more pods, at most a quarter unavailable.
    fn roll(&mut self) {
        let quarter = self.replicas / 4;
        let alive = |pod: &&Pod| pod.ends.is_none();
        let of_new = self
            .pods
            .iter()
            .filter(alive)
            .filter(|pod| pod.generation == self.generation)
            .count();
        let all = self.pods.iter().filter(alive).count();
        let is_rolling = all > of_new;
        let wanted = self.replicas.saturating_sub(of_new);
        let room = (self.replicas + if is_rolling { quarter } else { 0 }).saturating_sub(all);
        for _ in 0..wanted.min(room) {
            self.pods.push(Pod {
                generation: self.generation,
                bound: false,
                id: None,
                ready: u64::MAX,
                ends: None,
            });
        }
        let (clock, generation) = (self.clock, self.generation);
        loop {
            let available = self.pods.iter().filter(alive).filter(|pod| pod.ready <= clock).count();
            let old: Vec<usize> = (0..self.pods.len())
                .filter(|at| self.pods[*at].ends.is_none() && self.pods[*at].generation < generation)
                .collect();
            if old.is_empty() || available + quarter <= self.replicas {
                break;
            }
            let at = old[self.random(old.len())];
            self.end(at);
        }
    }

    /// Ends the containers of a pod in a second or so; the API server deletes it some time later.
    fn end(&mut self, at: usize) {
        let end = self.soon(100, 139);
        let deleted = self.soon(5, 100) + (end - self.clock);
        self.pods[at].ends = Some((end, deleted));
    }

    fn run(&mut self, seconds: u64) {
        for _ in 0..seconds * 10 {
            self.tick();
        }
    }

    fn scale(&mut self, replicas: usize) {
        self.replicas = replicas;
        while self.pods.iter().filter(|pod| pod.ends.is_none()).count() > replicas {
            let alive: Vec<usize> = (0..self.pods.len())
                .filter(|at| self.pods[*at].ends.is_none())
                .collect();
            let at = alive[self.random(alive.len())];
            self.end(at);
        }
    }

    fn restart(&mut self) {
        self.generation += 1;
        self.run(60);
        let left = self.pods.iter().filter(|pod| pod.generation < self.generation).count();
        let ready = self.pods.iter().filter(|pod| pod.id.is_some()).count();
        assert_eq!((left, ready), (0, self.replicas), "the restart ends: {:?}", self.pods);
    }
}

/// Plays a Deployment of 14 that is scaled to 8 once each GPU has 2 slices in the place of 4. Returns its restarts until nothing
/// waits.
fn restarts_until_done(seed: u64, with_restarts: bool) -> usize {
    let mut cluster = Cluster::new(seed, with_restarts);
    cluster.run(30);
    cluster.resize(2);
    cluster.run(30);
    cluster.scale(8);
    cluster.run(40);
    let mut restarts = 0;
    while restarts < 2 || !cluster.test.allocator.pending_changes().is_empty() {
        assert!(restarts < 10, "{:?}", cluster.test.allocator.pending_changes());
        cluster.restart();
        restarts += 1;
    }
    assert!(cluster.rejected.is_empty(), "seed {seed}: {:?}", cluster.rejected);
    restarts
}

#[test]
fn a_deployment_that_fits_reaches_the_new_number_in_two_restarts_without_a_rejected_pod() {
    for seed in 1..=24 {
        assert_eq!(restarts_until_done(seed, false), 2, "seed {seed}");
    }
}

#[test]
fn a_deployment_that_fits_reaches_the_new_number_though_agent_and_kubelet_restart() {
    for seed in 1..=48 {
        restarts_until_done(seed, true);
    }
}
