//! A GPU, its pods, an executor and an operator that are played against the decision: whatever happens in whatever order, no
//! pod loses its device, and everything comes to an end.

use super::*;
use crate::{MigStep, next_step};
use gpunode_mig::PlacedInstance;
use proptest::{prelude::*, sample::Index};

/// Rounds until everything has settled: three attempts with their pauses, a return, and a change with another configuration.
const ROUNDS_TO_REST: u32 = 120;

/// Something that happens.
#[derive(Clone, Debug)]
enum Event {
    /// A pod takes a device that the kubelet may allocate.
    Take(Index),
    /// A pod ends.
    Leave(Index),
    /// The allocator sees what the kubelet has: free devices that are not desired leave, desired ones come.
    Observe,
    /// The agent reads the GPU.
    Read,
    /// The executor makes its next call.
    Step,
    /// The next call fails.
    Fail,
    /// Something that is no container comes, or goes.
    Process(bool),
    Approve(bool),
    /// Pods are evicted for the change.
    Drain(bool),
    Configure(usize),
    /// The agent is killed and starts again.
    Kill,
    Reboot,
    Wait(i64),
    /// Somebody else divides the GPU while no layout is wanted.
    Divide(bool),
}

/// Work in the hands of the executor.
struct Task {
    work: MigWork,
    /// UUIDs of the instances that are in the layout and were on the GPU at the start.
    kept: BTreeMap<PlacedInstance, String>,
    /// Layout at the start; none of a change that has begun before.
    start: Option<GpuLayout>,
}

#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a part of the world that changes by itself"
)]
struct World {
    /// The GPU.
    gpu: Gpu,
    /// The GPU as the agent has read it.
    read: Gpu,
    /// Devices with an assignment; the allocator saves them.
    assigned: BTreeSet<String>,
    /// Device of each pod.
    pods: Vec<String>,
    is_observed: bool,
    has_process: bool,
    fails: bool,
    approved: bool,
    is_drained: bool,
    config: usize,
    record: Option<MigRecord>,
    attempts: AttemptHistory,
    task: Option<Task>,
    boot: u32,
    devices: u32,
    now: Timestamp,
    decision: Option<MigDecision>,
}

fn configs() -> Vec<Option<LayoutTarget>> {
    vec![
        None,
        Some(LayoutTarget::Off),
        Some(target(&[])),
        Some(target(&[("1g.10gb", 3), ("4g.40gb", 1)])),
        Some(target(&[("1g.10gb", 1), ("2g.20gb", 1), ("4g.40gb", 1)])),
        Some(target(&[("1g.10gb", 7)])),
        Some(target(&[("4g.40gb", 2)])),
        Some(LayoutTarget::Preset("all-balanced".to_owned())),
    ]
}

/// Number of the configuration whose layout fits no GPU.
const TOO_LARGE: usize = 6;

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => any::<Index>().prop_map(Event::Take),
        3 => any::<Index>().prop_map(Event::Leave),
        6 => Just(Event::Observe),
        6 => Just(Event::Read),
        16 => Just(Event::Step),
        2 => Just(Event::Fail),
        1 => any::<bool>().prop_map(Event::Process),
        4 => proptest::bool::weighted(0.8).prop_map(Event::Approve),
        1 => any::<bool>().prop_map(Event::Drain),
        2 => (0..configs().len()).prop_map(Event::Configure),
        1 => Just(Event::Kill),
        1 => Just(Event::Reboot),
        4 => proptest::sample::select(vec![1, 3, 10, 60, 400]).prop_map(Event::Wait),
        1 => any::<bool>().prop_map(Event::Divide),
    ]
}

impl World {
    fn new(mode_needs_reset: bool) -> Self {
        let mut gpu = undivided();
        gpu.mig_state.as_mut().unwrap().mode_needs_reset = mode_needs_reset;
        let mut world = Self {
            read: gpu.clone(),
            gpu,
            assigned: BTreeSet::new(),
            pods: Vec::new(),
            is_observed: false,
            has_process: false,
            fails: false,
            approved: false,
            is_drained: false,
            config: 0,
            record: None,
            attempts: AttemptHistory::default(),
            task: None,
            boot: 0,
            devices: 0,
            now: at(0),
            decision: None,
        };
        world.decide();
        world
    }

    fn state(&mut self) -> &mut GpuMigState {
        self.gpu.mig_state.as_mut().unwrap()
    }

    fn run(&self) -> RunId {
        run(&format!("boot {}", self.boot))
    }

    fn hash(&self) -> String {
        format!("config {}", self.config)
    }

    fn usage(&self) -> UsedDevices {
        let assigned = self.assigned.iter().map(|device| (device.clone(), DeviceUse::Assigned));
        let mut devices: BTreeMap<String, DeviceUse> = assigned.collect();
        let pods = self.pods.iter().filter(|_| self.is_observed);
        devices.extend(pods.map(|device| (device.clone(), DeviceUse::Held(vec!["ml/a".to_owned()]))));
        UsedDevices {
            is_known: self.is_observed,
            devices,
        }
    }

    fn decide(&mut self) {
        let target = configs().swap_remove(self.config);
        self.decision = decide(&MigInputs {
            gpu: &self.read,
            target: target.as_ref(),
            hash: &self.hash(),
            usage: &self.usage(),
            fault: None,
            approved: self.approved,
            is_drained: self.is_drained,
            failed_drain: None,
            record: self.record.as_ref(),
            run: &self.run(),
            attempts: &self.attempts,
            now: self.now,
        });
        let work = self.decision.as_ref().and_then(|decision| decision.work.clone());
        if self.decision.is_none() && self.task.is_none() {
            // What the agent does with `forget`.
            self.record = None;
        }
        match &self.task {
            // A task that does not change the GPU may be dropped.
            Some(task) if changes_the_gpu(task.work.kind) => {
                assert_eq!(
                    work.as_ref(),
                    Some(&task.work),
                    "one change at a time, and each to its end"
                );
            }
            _ => self.begin(work),
        }
    }

    /// Lets the executor begin what is new to it.
    fn begin(&mut self, work: Option<MigWork>) {
        let is_new = self.task.as_ref().map(|task| &task.work) != work.as_ref();
        if !is_new {
            return;
        }
        self.task = work.map(|work| {
            let state = self.gpu.mig_state.as_ref().unwrap();
            let kept = work.layout.instances.iter().filter_map(|placed| {
                let instance = state.instance(placed).filter(|instance| instance.is_whole())?;
                Some((*placed, instance.compute[0].uuid.clone().unwrap()))
            });
            // Those that an approved change has found at its start may go with it.
            let change = self.record.as_ref().and_then(|record| record.change.as_ref());
            let is_known = |placed: &PlacedInstance| {
                let before = change.map_or(&[][..], |change| &change.before.instances);
                before.contains(placed) || work.layout.instances.contains(placed)
            };
            let mut others = state.instances.iter().filter(|instance| {
                let uuid = instance.compute.first().and_then(|compute| compute.uuid.as_deref());
                uuid.is_some_and(|uuid| uuid.starts_with("MIG-other")) && !is_known(&instance.placed)
            });
            let is_approved = self.approved && work.hash == self.hash();
            assert!(
                !changes_the_gpu(work.kind) || is_approved || others.next().is_none(),
                "what somebody else has made goes only with an approval"
            );
            let is_new = self.record.as_ref().is_none_or(|record| record.change.is_none());
            Task {
                kept: kept.collect(),
                work,
                start: is_new.then(|| state.layout()),
            }
        });
        if let Some(task) = &self.task {
            let attempt = MigAttempt {
                work: task.work.clone(),
                result: AttemptResult::Running,
            };
            self.attempts.observe(Some(&attempt), false, self.now);
        }
        self.decide_again();
    }

    fn decide_again(&mut self) {
        if self.task.is_some() {
            self.decide();
        }
    }

    /// Makes the next call of the task.
    fn step(&mut self) {
        let Some(Task { work, .. }) = &self.task else {
            return;
        };
        let work = work.clone();
        let run = self.run();
        let record = self.record.get_or_insert_default();
        match work.kind {
            MigWorkKind::Check if self.has_process => self.end(blocked("dcgm")),
            MigWorkKind::Check => self.end(AttemptResult::Clear),
            MigWorkKind::Remember => {
                (record.run, record.applied) = (run, Some(work.layout));
                (record.failure, record.restore_failure) = (None, None);
                record.change = None;
                self.end(AttemptResult::Done);
            }
            MigWorkKind::Forget => unreachable!("no decision asks for it"),
            _ if self.has_process => self.end(blocked("dcgm")),
            MigWorkKind::Apply | MigWorkKind::RollBack | MigWorkKind::Restore => {
                let state = self.gpu.mig_state.as_ref().unwrap();
                let change = Some(ChangeRecord::begin(&work, record.change.as_ref(), state));
                if record.change == change {
                    self.call(&work);
                } else {
                    record.change = change;
                }
            }
        }
    }

    fn call(&mut self, work: &MigWork) {
        let step = next_step(&work.layout, self.state());
        let failed = std::mem::take(&mut self.fails) && step.is_some();
        let (run, now) = (self.run(), self.now);
        let present = self.gpu.mig_state.as_ref().unwrap().layout();
        let record = self.record.as_mut().unwrap();
        if failed {
            // Nothing has begun.
            let start = self.task.as_ref().and_then(|task| task.start.clone());
            record.change = record.change.take().filter(|_| start != Some(present));
            let is_restore = work.kind == MigWorkKind::Restore;
            let failure = if is_restore {
                &mut record.restore_failure
            } else {
                &mut record.failure
            };
            let before = failure.take().filter(|failure| is_restore || failure.hash == work.hash);
            *failure = Some(MigFailure {
                hash: work.hash.clone(),
                attempts: before.map_or(0, |failure| failure.attempts) + 1,
                at: now,
                message: "error".to_owned(),
                rolled_back: false,
            });
            return self.end(failed_result());
        }
        let Some(step) = step else {
            let change = record.change.take();
            (record.run, record.applied) = (run, Some(work.layout.clone()));
            record.restore_failure = None;
            let failure = record.failure.take();
            record.failure = match work.kind {
                MigWorkKind::RollBack => Some(MigFailure::rolled_back(&work.hash, failure, change.as_ref(), now)),
                MigWorkKind::Restore => failure,
                _ => None,
            };
            let kept = self.task.as_ref().map(|task| task.kept.clone()).unwrap_or_default();
            for (placed, uuid) in kept {
                let instance = self.state().instance(&placed).unwrap();
                assert_eq!(
                    instance.compute[0].uuid.as_ref(),
                    Some(&uuid),
                    "{placed:?} keeps its UUID"
                );
            }
            return self.end(AttemptResult::Done);
        };
        self.carry_out(step);
    }

    fn carry_out(&mut self, step: MigStep) {
        let (pods, assigned) = (self.pods.clone(), self.assigned.clone());
        let is_free = |device: &String| !pods.contains(device) && !assigned.contains(device);
        self.devices += 1;
        let number = self.devices;
        let is_restore = self
            .task
            .as_ref()
            .is_some_and(|task| task.work.kind == MigWorkKind::Restore);
        let destroys = matches!(step, MigStep::Destroy { .. } | MigStep::DestroyCompute { .. });
        assert!(
            !is_restore || !destroys,
            "what somebody has made goes only with an approval"
        );
        let state = self.state();
        match step {
            MigStep::DestroyCompute {
                gpu_instance,
                compute_instance,
            } => {
                let instance = state
                    .instances
                    .iter_mut()
                    .find(|instance| instance.id == gpu_instance)
                    .unwrap();
                let at = instance
                    .compute
                    .iter()
                    .position(|compute| compute.id == compute_instance);
                let compute = instance.compute.remove(at.unwrap());
                assert!(is_free(&compute.uuid.unwrap()), "{:?} is in use", instance.placed);
            }
            MigStep::Destroy { gpu_instance } => {
                let at = state
                    .instances
                    .iter()
                    .position(|instance| instance.id == gpu_instance)
                    .unwrap();
                assert!(state.instances.remove(at).compute.is_empty());
            }
            MigStep::SetMode(enabled) => {
                assert!(state.instances.is_empty(), "the mode changes last");
                assert!(is_free(&GPU.to_owned()) && pods.is_empty(), "the GPU is in use");
                (state.enabled, state.pending) = (enabled, enabled);
            }
            MigStep::Create(placed) => {
                assert!(state.enabled);
                let all = state.instances.iter().map(|instance| instance.placed).chain([placed]);
                let names: Vec<String> = all.map(|placed| state.geometry.instance_name(&placed)).collect();
                parse_instances(&names, &state.geometry).unwrap();
                let id = (1..32)
                    .find(|id| state.instances.iter().all(|instance| instance.id != *id))
                    .unwrap();
                state.instances.push(GpuInstance {
                    id,
                    placed,
                    compute: Vec::new(),
                });
            }
            MigStep::CreateCompute { gpu_instance } => {
                let instance = state
                    .instances
                    .iter_mut()
                    .find(|instance| instance.id == gpu_instance)
                    .unwrap();
                instance.compute.push(ComputeInstance {
                    id: 0,
                    uuid: Some(format!("MIG-{number}")),
                    fills: true,
                });
            }
        }
        let state = self.gpu.mig_state.clone().unwrap();
        let mut gpu = gpu_with(state.enabled, state.instances.clone());
        gpu.mig_state = Some(state);
        self.gpu = gpu;
    }

    fn end(&mut self, result: AttemptResult) {
        let Some(task) = self.task.take() else { return };
        let attempt = MigAttempt {
            work: task.work,
            result,
        };
        self.attempts.observe(Some(&attempt), false, self.now);
    }

    /// Returns the devices that the configuration offers.
    fn desired(&self) -> BTreeSet<String> {
        let hold = self
            .decision
            .as_ref()
            .map(|decision| decision.hold.clone())
            .unwrap_or_default();
        let state = self.read.mig_state.as_ref().unwrap();
        let devices: Vec<&String> = if state.enabled {
            self.read.mig_devices.iter().map(|mig| &mig.facts.uuid).collect()
        } else {
            vec![&self.read.uuid]
        };
        let is_offered = |device: &&&String| !hold.gpu && !hold.devices.contains(**device);
        devices
            .iter()
            .filter(is_offered)
            .map(|device| (*device).clone())
            .collect()
    }

    fn observe(&mut self) {
        let desired = self.desired();
        self.is_observed = true;
        self.assigned
            .retain(|device| desired.contains(device) || self.pods.contains(device));
        let is_divided = desired.iter().all(|device| device != GPU);
        // A GPU and its parts are never assigned together.
        let fits = self.assigned.iter().all(|device| (device != GPU) == is_divided);
        if fits {
            self.assigned.extend(desired);
        }
    }

    fn restart(&mut self) {
        self.task = None;
        self.attempts = AttemptHistory::default();
        self.is_observed = false;
        self.read = self.gpu.clone();
    }

    fn reboot(&mut self) {
        self.boot += 1;
        self.pods.clear();
        let state = self.state();
        state.instances.clear();
        state.enabled &= state.mode_needs_reset;
        state.pending = state.enabled;
        let state = state.clone();
        let mut gpu = gpu_with(state.enabled, Vec::new());
        gpu.mig_state = Some(state);
        self.gpu = gpu;
        self.restart();
        self.decide();
        let record = self.record.clone().unwrap_or_default();
        let had_instances = record.applied.is_some_and(|applied| !applied.instances.is_empty());
        let failed_restores = record.restore_failure.map_or(0, |failure| failure.attempts);
        let phase = self.decision.as_ref().map(|decision| decision.progress.phase);
        let is_lost = phase != Some(MigPhase::Applied) && failed_restores < MAX_ATTEMPTS;
        if self.config != 0 && had_instances && record.change.is_none() && is_lost {
            let decision = self.decision.as_ref().unwrap();
            assert!(
                decision.hold.gpu,
                "nothing is offered before the instances are back: {decision:?}"
            );
        }
    }

    /// Divides the GPU as mig-manager does, which looks at no pod; here there is none.
    fn divide(&mut self, in_halves: bool) {
        let is_idle = self.task.is_none() && self.pods.is_empty();
        if self.config != 0 || !is_idle {
            return;
        }
        self.devices += 1;
        // No configuration has these.
        let names: &[&str] = if in_halves {
            &["1g.20gb@0", "1g.20gb@4"]
        } else {
            &["7g.80gb@0"]
        };
        let needs_reset = self.state().mode_needs_reset;
        let mut gpu = divided(names);
        let state = gpu.mig_state.as_mut().unwrap();
        state.mode_needs_reset = needs_reset;
        for (number, instance) in state.instances.iter_mut().enumerate() {
            instance.compute[0].uuid = Some(format!("MIG-other-{}-{number}", self.devices));
        }
        let state = state.clone();
        gpu = gpu_with(true, state.instances.clone());
        gpu.mig_state = Some(state);
        self.gpu = gpu;
        self.read = self.gpu.clone();
    }

    fn happen(&mut self, event: &Event) {
        match event {
            Event::Take(which) => {
                let free: Vec<&String> = self
                    .assigned
                    .iter()
                    .filter(|device| !self.pods.contains(device))
                    .collect();
                let exists = |device: &&&String| {
                    let divided = self.gpu.mig_devices.iter().any(|mig| mig.facts.uuid == ***device);
                    divided || (***device == GPU && !self.gpu.mig_state.as_ref().unwrap().enabled)
                };
                let free: Vec<&&String> = free.iter().filter(exists).collect();
                if !free.is_empty() {
                    let device = (**which.get(&free)).clone();
                    self.pods.push(device);
                }
            }
            Event::Leave(which) if !self.pods.is_empty() => {
                _ = self.pods.swap_remove(which.index(self.pods.len()));
            }
            Event::Leave(_) => {}
            Event::Observe => self.observe(),
            Event::Read => self.read = self.gpu.clone(),
            Event::Step => self.step(),
            Event::Fail => self.fails = true,
            Event::Process(comes) => self.has_process = *comes,
            Event::Approve(given) => self.approved = *given,
            Event::Drain(begins) => self.is_drained = *begins,
            Event::Configure(config) => self.config = *config,
            Event::Kill => self.restart(),
            Event::Reboot => self.reboot(),
            Event::Wait(seconds) => self.wait(*seconds),
            Event::Divide(in_halves) => self.divide(*in_halves),
        }
        self.decide();
    }

    fn wait(&mut self, seconds: i64) {
        self.now = self.now.checked_add(SignedDuration::from_secs(seconds)).unwrap();
    }

    /// Lets everything go on that needs nobody, and returns the phase at the end; none without a layout.
    fn rest(&mut self) -> Option<MigPhase> {
        (self.has_process, self.fails, self.approved, self.is_drained) = (false, false, true, false);
        for _ in 0..ROUNDS_TO_REST {
            self.read = self.gpu.clone();
            self.decide();
            self.observe();
            for _ in 0..64 {
                if self.task.is_none() {
                    break;
                }
                self.step();
                self.read = self.gpu.clone();
                self.decide();
            }
            self.wait(60);
        }
        let decision = self.decision.clone()?;
        assert_eq!(decision.work, None, "{decision:?}");
        Some(decision.progress.phase)
    }
}

fn failed_result() -> AttemptResult {
    AttemptResult::Failed {
        message: "error".to_owned(),
    }
}

proptest! {
    #[test]
    fn no_pod_loses_its_device_and_everything_comes_to_an_end(
        events in proptest::collection::vec(any_event(), 0..120),
        mode_needs_reset in any::<bool>(),
    ) {
        let mut world = World::new(mode_needs_reset);
        for event in &events {
            world.happen(event);
        }
        let ends = [MigPhase::Applied, MigPhase::Waiting, MigPhase::Blocked, MigPhase::Failed];
        let phase = world.rest();
        prop_assert!(phase.is_none_or(|phase| ends.contains(&phase)), "{:?}", world.decision);
        prop_assert!(phase != Some(MigPhase::Waiting) || !world.pods.is_empty(), "{:?}", world.decision);
        // What has begun ends, whatever becomes of the rest.
        let has_change = world.record.as_ref().is_some_and(|record| record.change.is_some());
        prop_assert!(!has_change || phase == Some(MigPhase::Waiting), "{:?}", world.record);
        world.pods.clear();
        let reason = world.rest().and_then(|_| world.decision.as_ref()?.progress.reason);
        let decision = world.decision.clone();
        let expected = match (world.config, reason) {
            (0, None) => None,
            (TOO_LARGE, _) => Some(MigPhase::Blocked),
            (_, Some(MigReason::RolledBack)) => Some(MigPhase::Failed),
            _ => Some(MigPhase::Applied),
        };
        prop_assert_eq!(decision.as_ref().map(|decision| decision.progress.phase), expected, "{:?}", decision);
        if expected == Some(MigPhase::Applied) {
            let decision = decision.unwrap();
            prop_assert_eq!(&decision.progress.wanted, &decision.progress.observed);
            prop_assert_eq!(decision.hold, DeviceHold::default());
            prop_assert!(world.observe_all(), "every device is offered");
        }
    }
}

impl World {
    /// Returns true if the kubelet may allocate every device of the GPU after an observation.
    fn observe_all(&mut self) -> bool {
        self.observe();
        self.assigned == self.desired()
    }
}
