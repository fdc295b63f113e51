//! Decisions about the MIG layouts of all GPUs of the node, with what is known of them now. Pure.

use crate::{
    devices::state::DeviceSnapshot,
    driver::hardware::{DriverState, Hardware},
    health::{fault_text, node_health::NodeHealth},
    mig::{executor::MigAttempts, record_file::MigRecords},
};
use gpunode_config::AgentConfig;
use gpunode_crds::{MigPhase, MigReason, MigStatus};
use gpunode_gpu::{
    AttemptHistory, AttemptResult, DeviceUse, FailedDrain, Fault, Gpu, Inventory, LayoutHolds, LayoutTarget,
    MigDecision, MigInputs, MigRecord, MigWork, MigWorkKind, UsedDevices, decide, forget,
};
use jiff::{SignedDuration, Timestamp};
use std::collections::{BTreeMap, BTreeSet};

/// Time after which a GPU that is gone is not expected back.
const GONE: SignedDuration = SignedDuration::from_hours(24);

/// Decisions about the layouts of the node's GPUs. Empty where no configuration has layouts.
#[derive(Debug, Default)]
pub struct NodeLayouts {
    /// True if the configuration in force has layouts.
    is_configured: bool,
    /// Layouts of the configuration by UUID of the GPU.
    targets: BTreeMap<String, LayoutTarget>,
    /// UUIDs of the GPUs; none before they are known.
    gpus: Option<BTreeSet<String>>,
    /// True if GPUs without a target have none for sure.
    is_sure: bool,
    /// Start of the time in which GPUs with a record are missing.
    missing_since: BTreeMap<String, Timestamp>,
    /// Records to drop, by UUID of the GPU.
    forgotten: BTreeMap<String, MigDecision>,
    /// Last attempts of the executor.
    attempts: MigAttempts,
    histories: BTreeMap<String, AttemptHistory>,
    decisions: BTreeMap<String, MigDecision>,
}

/// Knowledge of the node that decisions depend on.
#[derive(Clone, Copy, Debug)]
pub struct LayoutInputs<'a> {
    /// Last reading of the hardware.
    pub hardware: &'a Hardware,
    /// Holders and assignments of devices.
    pub snapshot: &'a DeviceSnapshot,
    /// Faults of devices.
    pub health: &'a NodeHealth,
    /// Hash of the configuration in force.
    pub hash: &'a str,
    /// True if its layouts are approved.
    pub approved: bool,
    /// True while pods are evicted for them.
    pub is_drained: bool,
    /// Failure of the last drain for this configuration, until the next one begins.
    pub failed_drain: Option<&'a FailedDrain>,
    /// Records of the GPUs; none before they are read.
    pub records: Option<&'a MigRecords>,
    /// Time of the decisions.
    pub now: Timestamp,
}

/// A GPU that has reached another phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PhaseChange {
    /// Index of the GPU.
    pub gpu: u32,
    /// UUID of the GPU.
    pub uuid: String,
    /// Progress since.
    pub progress: MigStatus,
    /// Phase before; none for the first decision.
    pub before: Option<MigPhase>,
}

impl NodeLayouts {
    /// Takes the configuration in force and the GPUs. `is_sure` is false while another configuration may come into force by itself.
    pub fn set_targets(&mut self, config: Option<&AgentConfig>, inventory: Option<&Inventory>, is_sure: bool) {
        let groups = config
            .and_then(|config| config.mig.as_ref())
            .map_or(&[][..], |mig| &mig.layout);
        self.is_configured = !groups.is_empty();
        self.is_sure = is_sure;
        self.gpus = inventory.map(|inventory| inventory.gpus.iter().map(|gpu| gpu.uuid.clone()).collect());
        let gpus = inventory.map_or(&[][..], |inventory| &inventory.gpus);
        let targets = gpus
            .iter()
            .filter_map(|gpu| Some((gpu.uuid.clone(), LayoutTarget::of(gpu, groups)?)));
        self.targets = targets.collect();
    }

    /// Returns true if the GPUs' instances have to be known: the configuration has layouts, or a change is under way.
    pub fn are_wanted(&self, records: Option<&MigRecords>) -> bool {
        self.is_configured || records.is_some_and(|records| self.present(records).any(|record| record.change.is_some()))
    }

    /// Returns the records of the GPUs that are there; before the GPUs are known, of all. A change on a board that was exchanged never
    /// ends.
    fn present<'a>(&'a self, records: &'a MigRecords) -> impl Iterator<Item = &'a MigRecord> {
        let is_present = |gpu: &String| self.gpus.as_ref().is_none_or(|gpus| gpus.contains(gpu));
        records
            .iter()
            .filter(move |(gpu, _)| is_present(gpu))
            .map(|(_, record)| record)
    }

    /// Returns true if no GPU has a decision.
    pub fn is_empty(&self) -> bool {
        self.decisions.is_empty()
    }

    /// Takes the last attempts of the executor, of which at least one is new. Returns those that are over.
    pub fn observe(&mut self, attempts: &MigAttempts, now: Timestamp) -> Vec<(MigWorkKind, AttemptResult)> {
        // The same work had the same result again, and it began and ended between two looks.
        let again = *attempts == self.attempts;
        let ended = attempts.iter().filter(|(gpu, attempt)| {
            attempt.result != AttemptResult::Running && (again || self.attempts.get(*gpu) != Some(attempt))
        });
        let ended = ended
            .map(|(_, attempt)| (attempt.work.kind, attempt.result.clone()))
            .collect();
        self.histories.retain(|gpu, _| attempts.contains_key(gpu));
        for (gpu, attempt) in attempts {
            let history = self.histories.entry(gpu.clone()).or_default();
            let listed = self.decisions.get(gpu).and_then(|decision| decision.work.as_ref());
            history.observe(Some(attempt), again && listed == Some(&attempt.work), now);
        }
        self.attempts.clone_from(attempts);
        ended
    }

    /// Decides about every GPU. Returns those that have reached another phase.
    pub fn decide(&mut self, inputs: &LayoutInputs<'_>) -> Vec<PhaseChange> {
        let (usage, none) = (usage(inputs.snapshot), AttemptHistory::default());
        let gpus = inputs.hardware.inventory().map_or(&[][..], |inventory| &inventory.gpus);
        let answers = inputs.hardware.driver == DriverState::Answers;
        let decision = |gpu: &Gpu| {
            let record = inputs.records?.get(&gpu.uuid);
            let fault = inputs
                .health
                .faults
                .as_ref()
                .and_then(|faults| faults.gravest(&[&gpu.uuid]))
                .filter(|fault| Fault::withholds(fault))
                .map(fault_text::meaning);
            let mut decision = decide(&MigInputs {
                gpu,
                target: self.targets.get(&gpu.uuid),
                hash: inputs.hash,
                usage: &usage,
                fault: fault.as_deref(),
                approved: inputs.approved,
                is_drained: inputs.is_drained,
                failed_drain: inputs.failed_drain,
                record,
                run: &inputs.hardware.run,
                attempts: self.histories.get(&gpu.uuid).unwrap_or(&none),
                now: inputs.now,
            })?;
            // A driver that is being replaced, or that another driver's plugin uses, is left alone.
            if !answers || inputs.health.served_by_dra {
                decision.work = None;
            }
            Some((gpu.uuid.clone(), decision))
        };
        let decisions: BTreeMap<String, MigDecision> = gpus.iter().filter_map(decision).collect();
        let before = std::mem::replace(&mut self.decisions, decisions);
        self.forgotten = self.forget(inputs);
        let changed = gpus.iter().filter_map(|gpu| {
            let progress = &self.decisions.get(&gpu.uuid)?.progress;
            let before = before.get(&gpu.uuid).map(|decision| decision.progress.phase);
            (before != Some(progress.phase)).then(|| PhaseChange {
                gpu: gpu.index,
                uuid: gpu.uuid.clone(),
                progress: progress.clone(),
                before,
            })
        });
        changed.collect()
    }

    /// Returns the records to drop: those of GPUs that no group selects and about which nothing is to decide, and those of GPUs that
    /// are gone for long.
    fn forget(&mut self, inputs: &LayoutInputs<'_>) -> BTreeMap<String, MigDecision> {
        let (Some(gpus), Some(records)) = (&self.gpus, inputs.records.filter(|_| self.is_sure)) else {
            return BTreeMap::new();
        };
        let reading = inputs.hardware.reading.as_ref();
        let is_whole = inputs.hardware.driver == DriverState::Answers
            && reading.is_some_and(|reading| reading.unreadable.is_empty() && reading.lost.is_empty());
        self.missing_since
            .retain(|gpu, _| is_whole && records.contains_key(gpu) && !gpus.contains(gpu));
        let none = AttemptHistory::default();
        let mut forgotten = BTreeMap::new();
        for gpu in records.keys() {
            let is_over = if gpus.contains(gpu) {
                !self.targets.contains_key(gpu) && !self.decisions.contains_key(gpu)
            } else {
                let since = self.missing_since.entry(gpu.clone()).or_insert(inputs.now);
                is_whole && inputs.now.duration_since(*since) >= GONE
            };
            if is_over {
                let attempts = self.histories.get(gpu).unwrap_or(&none);
                forgotten.insert(gpu.clone(), forget(gpu, attempts, inputs.now));
            }
        }
        forgotten
    }

    /// Returns the work for the executor.
    pub fn work(&self) -> Vec<MigWork> {
        self.decisions
            .values()
            .chain(self.forgotten.values())
            .filter_map(|decision| decision.work.clone())
            .collect()
    }

    /// Returns the devices that no container may get, and the GPUs that have a layout.
    pub fn holds(&self) -> LayoutHolds {
        let mut holds = LayoutHolds::default();
        for (gpu, decision) in &self.decisions {
            holds.add(gpu, &decision.hold);
            let phase = decision.progress.phase;
            if phase != MigPhase::Unsupported {
                holds.laid_out.insert(gpu.clone());
            }
            let may_pass = decision.progress.reason.is_some_and(MigReason::may_pass);
            if phase == MigPhase::Failed || (phase == MigPhase::Blocked && !may_pass) {
                holds.stuck.insert(gpu.clone());
            }
        }
        holds
    }

    /// Returns the progress of each GPU by UUID.
    pub fn progress(&self) -> BTreeMap<String, MigStatus> {
        let of_gpu = |(gpu, decision): (&String, &MigDecision)| (gpu.clone(), decision.progress.clone());
        self.decisions.iter().map(of_gpu).collect()
    }

    /// Returns the time of the next decision, if nothing happens before.
    pub fn look_again(&self) -> Option<Timestamp> {
        let decisions = self.decisions.values().chain(self.forgotten.values());
        decisions.filter_map(|decision| decision.look_again).min()
    }

    /// Returns true while devices cannot be offered yet: nobody knows what the GPUs have, or what they had before. Until the driver
    /// has answered, instances of a record may have to be made again.
    pub fn are_awaited(&self, hardware: Option<&Hardware>, records: Option<&MigRecords>) -> bool {
        let Some(reading) = hardware.and_then(|hardware| hardware.reading.as_ref()) else {
            let may_be_lost = |record: &MigRecord| hardware.is_none_or(|hardware| record.may_be_lost(&hardware.run));
            let has_no_gpus = hardware.is_some_and(Hardware::is_known);
            return !has_no_gpus && records.is_none_or(|records| records.values().any(may_be_lost));
        };
        let gpus = &reading.inventory.gpus;
        match records {
            // An agent before this one may have left a change half done, whatever the configuration wants.
            None => gpus.iter().any(|gpu| self.is_configured || gpu.mig_mode.is_some()),
            Some(_) => self.are_wanted(records) && !gpus.is_empty() && !reading.has_layouts,
        }
    }

    /// Returns true while a GPU gets the instances from before a boot or a reset.
    pub fn are_restored(&self) -> bool {
        self.decisions.values().any(|decision| decision.is_restored)
    }

    /// Returns true if nothing that was approved is left to do. A change that failed is not over: it stops the rollout. A GPU whose
    /// pods have not ended needs another approval, and one that waits for anything else, such as the kubelet after a restart, has
    /// its change still before it.
    pub fn are_finished(&self, records: Option<&MigRecords>) -> bool {
        let is_open = |decision: &MigDecision| {
            let is_under_way = match decision.progress.phase {
                MigPhase::AwaitingApproval | MigPhase::Applying | MigPhase::RebootRequired | MigPhase::Failed => true,
                MigPhase::Waiting => !decision.waits_for_pods,
                _ => false,
            };
            is_under_way
                || decision
                    .work
                    .as_ref()
                    .is_some_and(|work| work.kind != MigWorkKind::Remember)
        };
        records.is_some_and(|records| self.present(records).all(|record| record.change.is_none()))
            && self.targets.keys().all(|gpu| self.decisions.contains_key(gpu))
            && !self.decisions.values().any(is_open)
    }

    /// Forgets the attempts of an executor that has ended, and all that was decided with them.
    pub fn clear(&mut self) {
        *self = Self {
            is_configured: self.is_configured,
            targets: std::mem::take(&mut self.targets),
            gpus: self.gpus.take(),
            is_sure: self.is_sure,
            ..Self::default()
        };
    }
}

/// Returns the use of the node's devices.
fn usage(snapshot: &DeviceSnapshot) -> UsedDevices {
    let assigned = snapshot
        .assignments
        .keys()
        .map(|device| (device.clone(), DeviceUse::Assigned));
    let mut devices: BTreeMap<String, DeviceUse> = assigned.collect();
    let held = snapshot.held_devices.iter();
    devices.extend(held.map(|device| (device.clone(), DeviceUse::Held(Vec::new()))));
    for holder in &snapshot.holders {
        let pod = format!("{}/{}", holder.namespace, holder.pod);
        match devices.get_mut(&holder.device) {
            Some(DeviceUse::Held(pods)) => pods.push(pod),
            _ => _ = devices.insert(holder.device.clone(), DeviceUse::Held(vec![pod])),
        }
    }
    UsedDevices {
        is_known: snapshot.holders_unknown.is_none(),
        devices,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::nvml::DriverReading;
    use gpunode_config::{HealthRules, load};
    use gpunode_crds::MigMode;
    use gpunode_gpu::{
        Assignment, ChangeRecord, DeviceFaults, DeviceHolder, DeviceSharing, GpuLayout, GpuMigState, GpuVirtualization,
        HealthObservation, MigAttempt, RunId,
    };
    use gpunode_mig::MigBoard;

    fn hardware() -> Hardware {
        let state = GpuMigState {
            enabled: true,
            pending: true,
            mode_needs_reset: true,
            virtualization: GpuVirtualization::None,
            geometry: MigBoard::named("A100-80GB").unwrap().geometry,
            instances: Vec::new(),
        };
        let gpu = |index, mig_state| Gpu {
            index,
            uuid: format!("GPU-{index}"),
            mig_mode: Some(MigMode::Enabled),
            mig_state,
            ..Gpu::default()
        };
        Hardware {
            driver: DriverState::Answers,
            reading: Some(DriverReading {
                inventory: Inventory {
                    gpus: vec![gpu(0, Some(state.clone())), gpu(1, Some(state))],
                    ..Inventory::default()
                },
                has_layouts: true,
                ..DriverReading::default()
            }),
            ..Hardware::default()
        }
    }

    fn layouts(hardware: &Hardware) -> NodeLayouts {
        let config = load("mig: {strategy: Mixed, layout: [{devices: {indices: [0]}, instances: {7g.80gb: 1}}]}\n");
        let mut layouts = NodeLayouts::default();
        layouts.set_targets(Some(&config.unwrap()), hardware.inventory(), true);
        layouts
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn decide_at(layouts: &mut NodeLayouts, hardware: &Hardware, approved: bool, second: i64) -> Vec<PhaseChange> {
        decide_with(layouts, hardware, &NodeHealth::default(), approved, second)
    }

    fn decide_with(
        layouts: &mut NodeLayouts,
        hardware: &Hardware,
        health: &NodeHealth,
        approved: bool,
        second: i64,
    ) -> Vec<PhaseChange> {
        decide_on(
            layouts,
            hardware,
            (health, &DeviceSnapshot::default()),
            approved,
            second,
        )
    }

    fn decide_on(
        layouts: &mut NodeLayouts,
        hardware: &Hardware,
        (health, snapshot): (&NodeHealth, &DeviceSnapshot),
        approved: bool,
        second: i64,
    ) -> Vec<PhaseChange> {
        layouts.decide(&LayoutInputs {
            hardware,
            snapshot,
            health,
            hash: "one",
            approved,
            is_drained: false,
            failed_drain: None,
            records: Some(&MigRecords::new()),
            now: at(second),
        })
    }

    /// Publishes a result of the listed work.
    fn answer(layouts: &mut NodeLayouts, result: AttemptResult, second: i64) -> usize {
        let work = layouts.work().remove(0);
        let attempt = MigAttempt { work, result };
        layouts
            .observe(&[("GPU-0".to_owned(), attempt)].into(), at(second))
            .len()
    }

    #[test]
    fn each_gpu_of_a_group_is_decided_on_and_no_other() {
        let hardware = hardware();
        let mut layouts = layouts(&hardware);
        let [change] = decide_at(&mut layouts, &hardware, false, 0).try_into().unwrap();
        assert_eq!(
            (change.gpu, change.progress.phase, change.before),
            (0, MigPhase::Waiting, None)
        );
        assert_eq!(layouts.work().len(), 1);
        assert!(decide_at(&mut layouts, &hardware, false, 1).is_empty());
        assert_eq!(answer(&mut layouts, AttemptResult::Clear, 2), 1);
        let [change] = decide_at(&mut layouts, &hardware, false, 3).try_into().unwrap();
        assert_eq!(
            (change.progress.phase, change.before),
            (MigPhase::AwaitingApproval, Some(MigPhase::Waiting))
        );
        assert!(!layouts.are_finished(Some(&MigRecords::new())));
        let [change] = decide_at(&mut layouts, &hardware, true, 4).try_into().unwrap();
        assert_eq!(change.progress.phase, MigPhase::Applying);
        let waiting = Hardware {
            driver: DriverState::Waiting(String::new()),
            ..hardware
        };
        decide_at(&mut layouts, &waiting, true, 5);
        assert!(layouts.work().is_empty(), "the driver is left alone");
    }

    #[test]
    fn fault_of_a_gpu_keeps_it_from_its_layout_and_one_of_an_instance_does_not() {
        let hardware = hardware();
        let phase = |device: &str| {
            let mut faults = DeviceFaults::default();
            let xid = HealthObservation::Xid(device.to_owned(), 79);
            faults.observe(xid, &HealthRules::default(), at(0));
            let health = NodeHealth {
                faults: Some(faults),
                ..NodeHealth::default()
            };
            let [change] = decide_with(&mut layouts(&hardware), &hardware, &health, true, 0)
                .try_into()
                .unwrap();
            (change.progress.phase, change.progress.reason)
        };
        assert_eq!(phase("GPU-0"), (MigPhase::Blocked, Some(MigReason::Unhealthy)));
        assert_eq!(phase("MIG-of-GPU-0"), (MigPhase::Waiting, None));
        assert_eq!(phase("GPU-1"), (MigPhase::Waiting, None));
    }

    #[test]
    fn result_that_comes_again_unseen_counts_again() {
        let hardware = hardware();
        let mut layouts = layouts(&hardware);
        let failed = || AttemptResult::Failed {
            message: "disk full".to_owned(),
        };
        decide_at(&mut layouts, &hardware, false, 0);
        assert_eq!(answer(&mut layouts, failed(), 0), 1);
        decide_at(&mut layouts, &hardware, false, 0);
        assert_eq!(layouts.look_again(), Some(at(10)));
        decide_at(&mut layouts, &hardware, false, 10);
        assert_eq!(answer(&mut layouts, failed(), 11), 1);
        decide_at(&mut layouts, &hardware, false, 11);
        assert_eq!(layouts.look_again(), Some(at(31)));
    }

    #[test]
    fn approved_change_is_finished_while_only_pods_keep_its_gpus() {
        let mut hardware = hardware();
        let gpu = &mut hardware.reading.as_mut().unwrap().inventory.gpus[0];
        let mig = gpu.mig_state.as_mut().unwrap();
        (mig.enabled, mig.pending) = (false, false);
        let is_finished = |snapshot: &DeviceSnapshot| {
            let mut layouts = layouts(&hardware);
            let health = NodeHealth::default();
            let [change] = decide_on(&mut layouts, &hardware, (&health, snapshot), true, 0)
                .try_into()
                .unwrap();
            assert_eq!(change.progress.phase, MigPhase::Waiting, "{:?}", change.progress);
            layouts.are_finished(Some(&MigRecords::new()))
        };
        let held = DeviceSnapshot {
            held_devices: ["GPU-0".to_owned()].into(),
            ..DeviceSnapshot::default()
        };
        assert!(is_finished(&held), "they need another approval");
        assert!(
            !layouts(&hardware).are_finished(Some(&MigRecords::new())),
            "nothing is decided"
        );
        let unknown = DeviceSnapshot {
            holders_unknown: Some("no answer".to_owned()),
            ..held
        };
        assert!(!is_finished(&unknown));
        let assignment = Assignment {
            resource: "nvidia.com/gpu".to_owned(),
            sharing: DeviceSharing::Whole,
            gpu_uuid: None,
        };
        let assigned = DeviceSnapshot {
            assignments: [("GPU-0".to_owned(), assignment)].into(),
            ..DeviceSnapshot::default()
        };
        assert!(!is_finished(&assigned), "as just after a restart");
    }

    #[test]
    fn approved_change_that_failed_before_its_first_call_is_not_finished() {
        let hardware = hardware();
        let mut layouts = layouts(&hardware);
        decide_at(&mut layouts, &hardware, true, 0);
        answer(&mut layouts, AttemptResult::Clear, 1);
        decide_at(&mut layouts, &hardware, true, 1);
        let message = "disk full".to_owned();
        answer(&mut layouts, AttemptResult::Failed { message }, 2);
        let [change] = decide_at(&mut layouts, &hardware, true, 2).try_into().unwrap();
        assert_eq!(change.progress.phase, MigPhase::Failed);
        assert!(!layouts.are_finished(Some(&MigRecords::new())));
    }

    #[test]
    fn gpu_is_stuck_once_a_person_has_to_act_and_not_while_a_program_is_on_it() {
        let hardware = hardware();
        for (reason, is_stuck) in [(MigReason::InUse, false), (MigReason::ModePending, true)] {
            let mut layouts = layouts(&hardware);
            decide_at(&mut layouts, &hardware, false, 0);
            let message = "used".to_owned();
            answer(&mut layouts, AttemptResult::Blocked { reason, message }, 1);
            let [change] = decide_at(&mut layouts, &hardware, false, 1).try_into().unwrap();
            assert_eq!(change.progress.phase, MigPhase::Blocked);
            assert_eq!(!layouts.holds().stuck.is_empty(), is_stuck, "{reason:?}");
        }
    }

    #[test]
    fn nothing_is_offered_before_gpus_and_records_are_read() {
        let hardware = hardware();
        let layouts = layouts(&hardware);
        let records = MigRecords::new();
        assert!(layouts.are_awaited(Some(&hardware), None));
        assert!(!layouts.are_awaited(Some(&hardware), Some(&records)));
        let mut unread = hardware.clone();
        unread.reading.as_mut().unwrap().has_layouts = false;
        assert!(layouts.are_awaited(Some(&unread), Some(&records)));
        let none = NodeLayouts::default();
        assert!(none.are_awaited(Some(&unread), None), "a change may be under way");
        assert!(!none.are_awaited(Some(&unread), Some(&records)), "no layout, no wait");
        for gpu in &mut unread.reading.as_mut().unwrap().inventory.gpus {
            gpu.mig_mode = None;
        }
        assert!(!none.are_awaited(Some(&unread), None), "no MIG, no wait");
        let without_gpus = Hardware {
            driver: DriverState::NotNeeded,
            ..Hardware::default()
        };
        assert!(!layouts.are_awaited(Some(&without_gpus), None), "no GPU, no wait");
    }

    #[test]
    fn nothing_is_offered_before_the_driver_tells_whether_instances_were_lost() {
        let run = |boot: &str| RunId {
            boot: boot.to_owned(),
            ..RunId::default()
        };
        let of_layout = |enabled| MigRecord {
            run: run("first"),
            applied: Some(GpuLayout {
                enabled,
                ..GpuLayout::default()
            }),
            ..MigRecord::default()
        };
        let silent = |boot| Hardware {
            run: run(boot),
            driver: DriverState::Waiting("no answer".to_owned()),
            ..Hardware::default()
        };
        let layouts = NodeLayouts::default();
        let is_awaited = |hardware: Option<&Hardware>, enabled| {
            let records = MigRecords::from([("GPU-0".to_owned(), of_layout(enabled))]);
            layouts.are_awaited(hardware, Some(&records))
        };
        assert!(is_awaited(None, true));
        assert!(is_awaited(Some(&silent("second")), true));
        assert!(!is_awaited(Some(&silent("first")), true), "an agent starts again");
        assert!(!is_awaited(Some(&silent("second")), false), "MIG was off");
    }

    fn half_done() -> MigRecord {
        MigRecord {
            change: Some(ChangeRecord::default()),
            ..MigRecord::default()
        }
    }

    #[test]
    fn change_on_a_gpu_that_is_gone_keeps_no_node_from_finishing() {
        let hardware = hardware();
        let mut layouts = NodeLayouts::default();
        let with_change = |gpu: &str| -> MigRecords { [(gpu.to_owned(), half_done())].into() };
        layouts.set_targets(None, hardware.inventory(), true);
        let (there, gone) = (with_change("GPU-0"), with_change("GPU-9"));
        assert!(layouts.are_wanted(Some(&there)) && !layouts.are_finished(Some(&there)));
        assert!(!layouts.are_wanted(Some(&gone)) && layouts.are_finished(Some(&gone)));
        layouts.set_targets(None, None, true);
        assert!(layouts.are_wanted(Some(&gone)), "nobody knows yet");
    }

    #[test]
    fn records_are_dropped_without_a_layout_and_after_a_day_without_the_gpu() {
        let hardware = hardware();
        let mut layouts = layouts(&hardware);
        let applied = || MigRecord {
            applied: Some(GpuLayout::default()),
            ..MigRecord::default()
        };
        let gpus = ["GPU-0", "GPU-1", "GPU-8", "GPU-9"];
        let records: MigRecords = gpus.map(|gpu| (gpu.to_owned(), applied())).into();
        let dropped = |layouts: &mut NodeLayouts, hardware: &Hardware, records: &MigRecords, second| -> Vec<String> {
            layouts.decide(&LayoutInputs {
                hardware,
                snapshot: &DeviceSnapshot::default(),
                health: &NodeHealth::default(),
                hash: "one",
                approved: false,
                is_drained: false,
                failed_drain: None,
                records: Some(records),
                now: at(second),
            });
            let work = layouts.work().into_iter();
            let forget = work.filter(|work| work.kind == MigWorkKind::Forget);
            forget.map(|work| work.gpu).collect()
        };
        assert_eq!(
            dropped(&mut layouts, &hardware, &records, 0),
            ["GPU-1"],
            "no group selects it"
        );
        let day = 24 * 60 * 60;
        assert_eq!(dropped(&mut layouts, &hardware, &records, day - 1), ["GPU-1"]);
        assert_eq!(
            dropped(&mut layouts, &hardware, &records, day),
            ["GPU-1", "GPU-8", "GPU-9"]
        );
        let mut unreadable = hardware.clone();
        let sentence = "read GPU 2: no answer".to_owned();
        unreadable.reading.as_mut().unwrap().unreadable.push(sentence);
        assert_eq!(dropped(&mut layouts, &unreadable, &records, day), ["GPU-1"]);
        assert_eq!(
            dropped(&mut layouts, &hardware, &records, day + 1),
            ["GPU-1"],
            "it begins anew"
        );
        let half_done: MigRecords = [("GPU-1".to_owned(), half_done())].into();
        assert!(dropped(&mut layouts, &hardware, &half_done, 0).is_empty());
        layouts.set_targets(None, hardware.inventory(), false);
        assert!(
            dropped(&mut layouts, &hardware, &records, 0).is_empty(),
            "a layout may come"
        );
        layouts.set_targets(None, hardware.inventory(), true);
        assert_eq!(dropped(&mut layouts, &hardware, &records, 0), ["GPU-0", "GPU-1"]);
    }

    #[test]
    fn change_under_way_is_followed_without_a_layout() {
        let records: MigRecords = [("GPU-0".to_owned(), half_done())].into();
        let layouts = NodeLayouts::default();
        assert!(layouts.are_wanted(Some(&records)) && !layouts.are_finished(Some(&records)));
        assert!(!layouts.are_wanted(Some(&MigRecords::new())) && !layouts.are_wanted(None));
    }

    #[test]
    fn device_with_an_assignment_or_a_holder_is_not_free() {
        let snapshot = DeviceSnapshot {
            holders: vec![DeviceHolder {
                namespace: "ml".to_owned(),
                pod: "train".to_owned(),
                device: "MIG-a".to_owned(),
                ..DeviceHolder::default()
            }],
            held_devices: ["MIG-a".to_owned(), "MIG-b".to_owned()].into(),
            holders_unknown: Some("no answer".to_owned()),
            ..DeviceSnapshot::default()
        };
        let usage = usage(&snapshot);
        assert!(!usage.is_known);
        let held = |pods: &[&str]| DeviceUse::Held(pods.iter().map(|pod| (*pod).to_owned()).collect());
        let expected = [
            ("MIG-a".to_owned(), held(&["ml/train"])),
            ("MIG-b".to_owned(), held(&[])),
        ];
        assert_eq!(usage.devices, expected.into());
    }
}
