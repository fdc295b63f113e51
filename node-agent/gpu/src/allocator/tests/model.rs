//! A kubelet that is played against the allocator: whatever happens in whatever order, nothing is given out twice.

mod steps;

use super::*;
use crate::Device;
use proptest::prelude::*;
use steps::{CONFIGS, Step, any_step};

/// Most time slices of a device in [`CONFIGS`].
const MOST_SLICES: u32 = 4;

/// Rounds of 3 s until everything has settled: an allocation that no observation shows is forgotten after 5 s, the largest
/// number of held slices 12 s later, and the slices that were healthy until then after 12 s more.
const ROUNDS_TO_REST: u32 = 12;

/// Returns true if the assignments differ in nothing but the number of time slices.
fn is_same(one: &Assignment, other: &Assignment) -> bool {
    let sharing = |of: &Assignment| match of.sharing {
        DeviceSharing::TimeSlicing { .. } => DeviceSharing::TimeSlicing { replicas: 0 },
        sharing => sharing,
    };
    (&one.resource, &one.gpu_uuid, sharing(one)) == (&other.resource, &other.gpu_uuid, sharing(other))
}

/// A container that was given something.
#[derive(Clone, Debug)]
struct Pod {
    resource: String,
    ids: Vec<String>,
    sharing: Vec<(Device, u32, Assignment)>,
    given: Instant,
    written: bool,
    /// An init container that runs to its end, which `List` leaves out.
    init: bool,
}

/// An observation that is being made.
#[derive(Clone, Debug)]
struct Look {
    started: Instant,
    allocatable: BTreeSet<(String, String)>,
    holders: Option<Vec<ContainerShares>>,
}

type Healthy = BTreeSet<(String, String)>;

struct World {
    now: Instant,
    allocator: Allocator,
    config: usize,
    inventory: Inventory,
    unavailable: BTreeMap<String, String>,
    /// Lists on their way, then what the kubelet has taken; only healthy ids.
    sent: Vec<Healthy>,
    taken: Healthy,
    /// Allocate calls on their way.
    picks: Vec<(String, Vec<String>, bool)>,
    /// Last checkpoint of the kubelet.
    checkpoint: BTreeSet<(String, String)>,
    pods: Vec<Pod>,
    look: Option<Look>,
}

impl World {
    fn new(now: Instant) -> Self {
        let mut world = Self {
            now,
            allocator: Allocator::default(),
            config: 0,
            inventory: node(),
            unavailable: BTreeMap::new(),
            sent: Vec::new(),
            taken: Healthy::new(),
            picks: Vec::new(),
            checkpoint: BTreeSet::new(),
            pods: Vec::new(),
            look: None,
        };
        world.configure();
        world
    }

    fn configure(&mut self) {
        self.allocator.set_desired(
            desired_devices(&self.inventory, &load(CONFIGS[self.config]).unwrap()).unwrap(),
            self.now,
        );
        self.send();
    }

    fn send(&mut self) {
        let lists = self.allocator.advertised();
        let shares = lists
            .iter()
            .flat_map(|list| list.shares.iter().map(|share| (list.name.clone(), share)));
        let healthy: Healthy = shares
            .filter(|(_, share)| share.healthy)
            .map(|(name, share)| (name, share.id.clone()))
            .collect();
        if self.sent.last().unwrap_or(&self.taken) != &healthy {
            self.sent.push(healthy);
        }
    }

    fn available(&self, resource: &str) -> Vec<String> {
        let of_pods = self
            .pods
            .iter()
            .flat_map(|pod| pod.ids.iter().map(move |id| (&pod.resource, id)));
        let of_picks = self
            .picks
            .iter()
            .flat_map(|(resource, ids, _)| ids.iter().map(move |id| (resource, id)));
        let taken: BTreeSet<(&String, &String)> = of_pods.chain(of_picks).collect();
        let healthy = self
            .taken
            .iter()
            .filter(|(name, id)| name == resource && !taken.contains(&(name, id)));
        healthy.map(|(_, id)| id.clone()).collect()
    }

    fn holdings(&self) -> Vec<ContainerShares> {
        let written = self.pods.iter().enumerate().filter(|(_, pod)| pod.written && !pod.init);
        written
            .map(|(at, pod)| ContainerShares {
                pod: format!("pod-{at}"),
                resource: pod.resource.clone(),
                ids: pod.ids.clone(),
                ..ContainerShares::default()
            })
            .collect()
    }

    /// The kubelet does so after each allocation and each list that it takes.
    fn write_checkpoint(&mut self) {
        let written = self.pods.iter().filter(|pod| pod.written);
        self.checkpoint = written
            .flat_map(|pod| pod.ids.iter().map(|id| (pod.resource.clone(), id.clone())))
            .collect();
    }

    fn pick(&mut self, resource: usize, size: usize, preferred: bool, from: usize, init: bool) {
        let names: BTreeSet<&String> = self.taken.iter().map(|(name, _)| name).collect();
        let Some(resource) = names.into_iter().nth(resource).cloned() else {
            return;
        };
        let mut available = self.available(&resource);
        if available.len() < size {
            return;
        }
        let ids = if preferred {
            self.allocator
                .preferred(&resource, &available, &[], size, &BTreeMap::new())
                .ids
        } else {
            let from = from % available.len();
            available.rotate_left(from);
            available.into_iter().take(size).collect()
        };
        assert_eq!(ids.len(), size);
        self.picks.push((resource, ids, init));
    }

    fn call(&mut self) {
        if self.picks.is_empty() {
            return;
        }
        let (resource, ids, init) = self.picks.remove(0);
        match self.allocator.allocate(&resource, &ids, self.now, self.now, None) {
            Ok(granted) => {
                let given = |(device, count): (Device, u32)| {
                    let assignment = self
                        .allocator
                        .assigned()
                        .get(&device.uuid)
                        .cloned()
                        .expect("a device that is given has an entry");
                    assert!(
                        !self.unavailable.contains_key(&device.uuid),
                        "{} is held back",
                        device.uuid
                    );
                    let there = Device::all(&self.inventory).contains(&device);
                    assert!(there, "{} is not there", device.uuid);
                    (device, count, assignment)
                };
                let sharing = granted.devices.into_iter().map(given).collect();
                self.pods.push(Pod {
                    resource,
                    ids,
                    sharing,
                    given: self.now,
                    written: false,
                    init,
                });
            }
            Err(AllocationRefusal::Split {
                most_free,
                asked,
                free_total,
                ..
            }) => {
                assert!(asked <= free_total && most_free <= free_total);
                self.allocator.withhold(&resource);
            }
            Err(_) => {}
        }
        self.send();
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Configure(config) => {
                self.config = config;
                self.configure();
            }
            Step::Hardware(kind) => {
                self.inventory = node();
                let gpus = &mut self.inventory.gpus;
                match kind {
                    0 => _ = gpus.remove(0),
                    1 => _ = gpus.remove(2),
                    2 => (gpus[2].mig_mode, gpus[2].mig_devices) = (None, Vec::new()),
                    3 => (gpus[0].index, gpus[1].index) = (1, 0),
                    _ => {}
                }
                self.configure();
            }
            Step::HoldBack(gpu) => {
                self.unavailable.clear();
                if gpu < 3 {
                    self.unavailable.insert(format!("GPU-{gpu}"), "not now".to_owned());
                }
                self.allocator.set_unavailable(self.unavailable.clone());
                self.send();
            }
            Step::Deliver if !self.sent.is_empty() => {
                self.taken = self.sent.remove(0);
                self.write_checkpoint();
            }
            Step::Pick {
                resource,
                size,
                preferred,
                from,
                init,
            } => self.pick(resource, size, preferred, from, init),
            Step::Call => self.call(),
            Step::WriteDown => {
                self.pods
                    .iter_mut()
                    .find(|pod| !pod.written)
                    .into_iter()
                    .for_each(|pod| pod.written = true);
                self.write_checkpoint();
            }
            Step::Release(at) if self.pods.get(at).is_some_and(|pod| pod.written) => _ = self.pods.remove(at),
            Step::AskAllocatable => {
                self.look = Some(Look {
                    started: self.now,
                    allocatable: self.taken.clone(),
                    holders: None,
                });
            }
            Step::AskHolders => {
                let holdings = self.holdings();
                self.look
                    .as_mut()
                    .into_iter()
                    .for_each(|look| look.holders = Some(holdings.clone()));
            }
            Step::Observe => {
                if let Some(Look {
                    started,
                    allocatable,
                    holders: Some(holders),
                }) = self.look.clone()
                {
                    self.look = None;
                    let checkpoint = self.checkpoint.clone();
                    self.allocator.observe(KubeletObservation {
                        started,
                        holders,
                        allocatable,
                        checkpoint,
                    });
                    self.send();
                }
            }
            Step::Look => {
                for step in [Step::AskAllocatable, Step::AskHolders, Step::Observe] {
                    self.take(&step);
                }
            }
            Step::Restart => {
                self.allocator = Allocator::restore(self.allocator.assigned().clone(), BTreeMap::new());
                self.allocator.set_unavailable(self.unavailable.clone());
                (self.look, self.picks, self.sent, self.taken) = (None, Vec::new(), Vec::new(), Healthy::new());
                self.configure();
            }
            Step::Wait(seconds) => {
                self.now += Duration::from_secs(seconds);
                let now = self.now;
                // The kubelet writes an allocation down long before the allocator stops waiting for it.
                let due = |pod: &&mut Pod| !pod.written && now - pod.given >= Duration::from_secs(2);
                let mut late = self.pods.iter_mut().filter(due).map(|pod| pod.written = true);
                if late.by_ref().count() > 0 {
                    self.write_checkpoint();
                }
            }
            Step::Deliver | Step::Release(_) => {}
        }
        // Time never stands still, so that what comes before is before.
        self.now += Duration::from_millis(1);
    }

    /// Checks the invariants; runs after every step.
    fn check(&self) {
        let mut ids = BTreeSet::new();
        let mut devices: BTreeMap<&str, (&Device, &Assignment, u32)> = BTreeMap::new();
        for pod in &self.pods {
            for id in &pod.ids {
                assert!(ids.insert((&pod.resource, id)), "{id} is given twice");
            }
            let one = pod.sharing.iter().any(|(.., of)| of.sharing.one_device_per_container());
            assert!(!one || pod.sharing.len() == 1, "units of several devices: {pod:?}");
            for (device, count, of) in &pod.sharing {
                let now = self.allocator.assigned().get(&device.uuid);
                assert!(
                    now.is_some_and(|now| is_same(now, of)),
                    "{} changed under {pod:?}: {now:?}",
                    device.uuid
                );
                devices.entry(&device.uuid).or_insert((device, of, 0)).2 += count;
            }
        }
        let node = Device::all(&node());
        let offered: Vec<&Device> = node
            .iter()
            .filter(|device| self.allocator.assigned().contains_key(&device.uuid))
            .collect();
        for one in &offered {
            assert!(
                !offered.iter().any(|other| one.overlaps(other)),
                "{} is offered beside a part of it",
                one.uuid
            );
        }
        for (uuid, (device, of, count)) in &devices {
            let most = match of.sharing {
                DeviceSharing::TimeSlicing { .. } => MOST_SLICES,
                sharing => sharing.shares(),
            };
            assert!(*count <= most, "{count} shares of {uuid} are held: {of:?}");
            let other = devices.values().find(|(other, ..)| device.overlaps(other));
            assert!(other.is_none(), "{uuid} and {other:?} are both held");
        }
        for list in self.allocator.advertised() {
            let distinct: BTreeSet<&String> = list.shares.iter().map(|share| &share.id).collect();
            assert_eq!(distinct.len(), list.shares.len(), "an id is twice in {}", list.name);
        }
    }

    /// Once everybody is gone, what is wanted is in force.
    fn come_to_rest(&mut self) {
        (self.picks, self.pods, self.look) = (Vec::new(), Vec::new(), None);
        self.take(&Step::HoldBack(3));
        for _ in 0..ROUNDS_TO_REST {
            for step in [Step::Wait(3), Step::Look] {
                self.take(&step);
            }
            if self.allocator.waits_for_checkpoint() {
                self.sent.push(self.taken.clone());
            }
            while !self.sent.is_empty() {
                self.take(&Step::Deliver);
            }
        }
        assert!(
            !self.allocator.needs_observation() && self.allocator.pending_changes().is_empty(),
            "{:?}",
            self.allocator.pending_changes()
        );
        let wanted = desired_devices(&self.inventory, &load(CONFIGS[self.config]).unwrap()).unwrap();
        let wanted: BTreeMap<String, Assignment> = wanted
            .devices
            .into_iter()
            .map(|of| (of.device.uuid, of.assignment))
            .collect();
        assert_eq!(*self.allocator.assigned(), wanted);
        // What is withheld although nothing is held stays so: a request that fits nowhere would come again. A checkpoint that
        // nothing brings up to date keeps a former slice, which then stands for another one.
        let lists = self.allocator.advertised();
        let whole = lists
            .iter()
            .filter(|list| !self.allocator.state.withheld.contains(&list.name));
        for list in whole {
            let of_list = wanted.values().filter(|of| of.resource == list.name);
            let shares: u32 = of_list.map(|of| of.sharing.shares()).sum();
            let healthy = list.shares.iter().filter(|share| share.healthy).count();
            assert_eq!(healthy, shares as usize, "{list:?}");
        }
    }
}

proptest! {
    #[test]
    fn nothing_is_given_out_twice_whatever_happens(steps in proptest::collection::vec(any_step(), 1..160)) {
        // The same clock, since it is an input.
        let now = Instant::now();
        let (mut world, mut again) = (World::new(now), World::new(now));
        for step in &steps {
            world.take(step);
            world.check();
            again.take(step);
            prop_assert_eq!(world.allocator.advertised(), again.allocator.advertised());
            prop_assert_eq!(world.allocator.pending_changes(), again.allocator.pending_changes());
            prop_assert_eq!(&world.picks, &again.picks);
        }
        world.come_to_rest();
    }
}
