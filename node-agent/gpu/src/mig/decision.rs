//! Decides about one GPU on the way to its layout: the devices that no container may get, its progress, and the next work.

#[cfg(test)]
mod tests;

use super::{
    AttemptResult, ChangeRecord, LayoutTarget, MigFailure, MigRecord, MigWork, MigWorkKind,
    arrangement::arrange,
    attempts::{AttemptHistory, EndedAttempt, retry_after_failures},
    hold::DeviceHold,
};
use crate::{Gpu, GpuInstance, GpuLayout, GpuMigState, GpuVirtualization, RunId};
use gpunode_crds::{MAX_LAYOUT_TEXT, MAX_MIG_MESSAGE, MigPhase, MigReason, MigStatus};
use gpunode_mig::{LayoutError, MigLayout, NoPlacement, PlacedInstance};
use jiff::{SignedDuration, Timestamp};
use std::collections::{BTreeMap, BTreeSet};

/// Attempts after which a GPU goes back to its layout from before.
const MAX_ATTEMPTS: u32 = 3;
/// Time for the calls of a change, after which the driver counts as hanging. A reset for a mode takes seconds.
const MAX_CALLS: SignedDuration = SignedDuration::from_mins(5);
/// Time for which something may block a change that has begun. Then the GPU goes back to its layout from before: less
/// than the default of `rollout.progressDeadline`, so that its rollout tells the reason.
const MAX_BLOCKED: SignedDuration = SignedDuration::from_mins(5);
/// Time after a change for a reading of the GPU that shows it.
const READING: SignedDuration = SignedDuration::from_secs(10);
/// Most names in a message.
const MAX_NAMES: usize = 5;

/// Inputs of a decision about one GPU.
#[derive(Clone, Copy, Debug)]
pub struct MigInputs<'a> {
    /// The GPU, as the driver shows it.
    pub gpu: &'a Gpu,
    /// Layout that the configuration wants; none if no group selects the GPU.
    pub target: Option<&'a LayoutTarget>,
    /// Hash of the configuration.
    pub hash: &'a str,
    /// Use of its devices.
    pub usage: &'a UsedDevices,
    /// Fault of the GPU itself that keeps work from it.
    pub fault: Option<&'a str>,
    /// True if the GPU may be changed to the layout of this configuration.
    pub approved: bool,
    /// True while pods are evicted for the change.
    pub is_drained: bool,
    /// Failure of the last drain for this configuration, until the next one begins.
    pub failed_drain: Option<&'a FailedDrain>,
    /// Record of the GPU.
    pub record: Option<&'a MigRecord>,
    /// Boot and driver load of the node.
    pub run: &'a RunId,
    /// Attempts of this process.
    pub attempts: &'a AttemptHistory,
    /// Time of the decision.
    pub now: Timestamp,
}

/// Failure of a drain: the pods on the devices that change did not go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedDrain {
    /// Reason, as one word.
    pub reason: MigReason,
    /// Description, for people.
    pub message: String,
}

/// Use of the devices of a node by containers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsedDevices {
    /// True once the kubelet has told who holds what; nothing counts as free before.
    pub is_known: bool,
    /// Devices that are not free, by UUID.
    pub devices: BTreeMap<String, DeviceUse>,
}

/// Use of a device that is not free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceUse {
    /// Nobody holds it, and the kubelet may still allocate it.
    Assigned,
    /// Containers of these pods hold it, as `NAMESPACE/NAME`; no names if the kubelet does not tell them.
    Held(Vec<String>),
}

/// Decision about one GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MigDecision {
    /// Devices that no container may get.
    pub hold: DeviceHold,
    /// Progress, without the time.
    pub progress: MigStatus,
    /// Work to do now.
    pub work: Option<MigWork>,
    /// Time of the next decision, if nothing else happens before.
    pub look_again: Option<Timestamp>,
    /// True while the GPU gets back what it had before a boot or a reset, which is soon: the first devices of the node wait for it.
    pub is_restored: bool,
    /// True while pods hold what has to go, for as long as they like. Every other wait is short.
    pub waits_for_pods: bool,
}

/// Decides about a GPU. None if no layout concerns it, or if the driver has not told its instances yet.
pub fn decide(inputs: &MigInputs<'_>) -> Option<MigDecision> {
    let MigInputs {
        gpu, target, record, ..
    } = *inputs;
    let is_overtaken = |change: &&ChangeRecord| gpu.mig_state.as_ref().is_some_and(|state| change.is_overtaken(state));
    let change = record
        .and_then(|record| record.change.as_ref())
        .filter(|change| !is_overtaken(change));
    let running = inputs.attempts.running().filter(|work| changes_the_gpu(work.kind));
    if target.is_none() && change.is_none() && running.is_none() {
        return None;
    }
    match &gpu.mig_state {
        Some(state) => Some(GpuCase { inputs, state }.decide(running, change)),
        None if gpu.mig_mode.is_some() => {
            let is_lost = record.is_some_and(|record| record.may_be_lost(inputs.run));
            (change.is_some() || is_lost).then(|| unread(target, change.is_some()))
        }
        None => target.map(without_mig),
    }
}

/// Decides to drop the record of a GPU: another program may divide it from now on, and a later layout must not bring back what it
/// had before.
pub fn forget(gpu: &str, attempts: &AttemptHistory, now: Timestamp) -> MigDecision {
    let work = MigWork {
        gpu: gpu.to_owned(),
        hash: String::new(),
        layout: GpuLayout::default(),
        kind: MigWorkKind::Forget,
        gives_up: None,
    };
    let failed = |last: &&EndedAttempt| last.work == work && last.result != AttemptResult::Done;
    let at = attempts.last().filter(failed).map(|last| attempts.retry_at(last));
    let look_again = at.filter(|at| *at > now);
    MigDecision {
        work: look_again.is_none().then_some(work),
        look_again,
        ..MigDecision::default()
    }
}

/// Decides about a GPU whose instances the driver does not tell, in the midst of a change or after it may have lost them: nobody gets
/// anything of it.
fn unread(target: Option<&LayoutTarget>, is_changing: bool) -> MigDecision {
    let what = if is_changing {
        "of which a change is under way"
    } else {
        "which may have lost them with a boot or a reset"
    };
    MigDecision {
        hold: DeviceHold {
            gpu: true,
            ..DeviceHold::default()
        },
        progress: MigStatus {
            wanted: bounded(
                target.map_or_else(|| "unknown".to_owned(), ToString::to_string),
                MAX_LAYOUT_TEXT,
            ),
            observed: "unknown".to_owned(),
            phase: MigPhase::Blocked,
            reason: Some(MigReason::DriverError),
            message: Some(format!(
                "the driver does not tell the MIG instances of the GPU, {what}; see the kernel log of the node, and reboot it if this \
                 stays"
            )),
            ..MigStatus::default()
        },
        ..MigDecision::default()
    }
}

/// Decides about a GPU that has no MIG.
fn without_mig(target: &LayoutTarget) -> MigDecision {
    let (phase, reason, message) = match target {
        LayoutTarget::Off => (MigPhase::Applied, None, None),
        _ => (
            MigPhase::Unsupported,
            Some(MigReason::NoMig),
            Some("the GPU has no MIG; leave it out of mig.layout with a selector such as products".to_owned()),
        ),
    };
    MigDecision {
        progress: MigStatus {
            wanted: bounded(target.to_string(), MAX_LAYOUT_TEXT),
            observed: "off".to_owned(),
            phase,
            reason,
            message,
            ..MigStatus::default()
        },
        ..MigDecision::default()
    }
}

/// A GPU with MIG.
struct GpuCase<'a> {
    inputs: &'a MigInputs<'a>,
    state: &'a GpuMigState,
}

/// Reason why devices are not free that have to be.
enum Obstruction {
    /// The kubelet has not told who holds what.
    HoldersUnknown,
    /// The kubelet may still allocate them.
    Allocatable,
    /// Containers of these pods hold them; no names if the kubelet does not tell them.
    Held(BTreeSet<String>),
}

impl GpuCase<'_> {
    fn decide(&self, running: Option<&MigWork>, change: Option<&ChangeRecord>) -> MigDecision {
        if let Some(running) = running {
            return self.running(running, change);
        }
        if let Some(done) = self.unread_change(change) {
            let message = "the driver has the layout; reads the GPU again";
            let hold = self.hold_for(&done.work.layout, done.work.kind == MigWorkKind::Restore);
            let mut decision = self.decision(hold, MigPhase::Applying, None, message.to_owned());
            decision.look_again = done.at.saturating_add(READING).ok();
            decision.is_restored = done.work.kind == MigWorkKind::Restore;
            return decision;
        }
        if let Some(change) = change {
            return self.go_on(change);
        }
        let wanted = self.wanted();
        if wanted.as_ref().is_ok_and(|wanted| self.has(wanted.as_ref())) {
            let is_virtual = self.state.virtualization == GpuVirtualization::Virtual;
            // A reset would take the layout away.
            let foreign = self.foreign_mode(self.state.enabled).filter(|_| !is_virtual);
            return foreign.unwrap_or_else(|| self.applied());
        }
        if let Some(lost) = self.lost_layout() {
            return self.restore(lost);
        }
        let wanted = match wanted {
            Ok(wanted) => wanted,
            Err(error) => return self.blocked(DeviceHold::default(), MigReason::DoesNotFit, error.to_string()),
        };
        self.obstacle(wanted.is_some())
            .unwrap_or_else(|| self.approach(wanted.as_ref()))
    }

    /// Returns the instances that the configuration wants, none if MIG is off.
    fn wanted(&self) -> Result<Option<MigLayout>, LayoutError> {
        // Without a group there is a change under way, whose layout is recorded.
        let target = self.inputs.target.unwrap_or(&LayoutTarget::Off);
        if self.lacks_profiles() && *target != LayoutTarget::Off {
            return Ok(Some(MigLayout::default()));
        }
        target.resolve(&self.state.geometry)
    }

    /// Returns true if the driver tells no profiles before MIG is on, as those up to R535 (mig-parted, `pkg/mig/discovery`). The mode
    /// then changes first, and the instances come after the next reading.
    fn lacks_profiles(&self) -> bool {
        !self.state.enabled && self.state.geometry.profiles.is_empty()
    }

    /// Returns true if the GPU has this layout.
    fn has(&self, wanted: Option<&MigLayout>) -> bool {
        match wanted {
            None => !self.state.enabled,
            Some(wanted) => {
                let is_known = |instance: &GpuInstance| self.state.geometry.profile(instance.placed.profile).is_some();
                let mut instances = self.state.instances.iter();
                self.state.enabled
                    && instances.all(|instance| instance.is_whole() && is_known(instance))
                    && self.layout_of_whole() == *wanted
            }
        }
    }

    /// Returns true if the GPU has exactly these instances.
    fn has_instances(&self, layout: &GpuLayout) -> bool {
        let is_whole = |placed| self.state.instance(placed).is_some_and(GpuInstance::is_whole);
        self.state.enabled == layout.enabled
            && self.state.instances.len() == layout.instances.len()
            && layout.instances.iter().all(is_whole)
    }

    fn layout_of_whole(&self) -> MigLayout {
        let whole = self.state.instances.iter().filter(|instance| instance.is_whole());
        let placed: Vec<_> = whole.map(|instance| instance.placed).collect();
        MigLayout::of_instances(&placed, &self.state.geometry)
    }

    /// Decides while the driver is told.
    fn running(&self, work: &MigWork, change: Option<&ChangeRecord>) -> MigDecision {
        let hold = match change {
            Some(change) => self.hold_of_change(change, &work.layout),
            None => self.hold_for(&work.layout, work.kind == MigWorkKind::Restore),
        };
        let mut decision = match self
            .inputs
            .attempts
            .last_at(&work.hash, &work.layout)
            .map(|last| &last.result)
        {
            // What keeps it from its end is there until this attempt is over.
            Some(AttemptResult::Blocked { reason, message }) if change.is_some() => {
                self.blocked(hold, *reason, blocked_text(work.kind, message))
            }
            _ => self.under_way(work, hold),
        };
        let since = self.inputs.attempts.running_since();
        let hangs_at = since.and_then(|since| since.saturating_add(MAX_CALLS).ok());
        if hangs_at.is_some_and(|at| at <= self.inputs.now) {
            let message = format!(
                "the driver has not answered for over {} minutes ({}); nothing can go back before it does: see the kernel log of the \
                 node, and reboot it if this stays",
                MAX_CALLS.as_mins(),
                self.next_text(&work.layout)
            );
            let attempts = decision.progress.attempts;
            decision = self.driver_error(decision.hold, message);
            decision.progress.attempts = attempts;
        } else {
            decision.look_again = hangs_at;
        }
        // Listed until it is over.
        decision.work = Some(work.clone());
        decision.is_restored = work.kind == MigWorkKind::Restore;
        decision
    }

    /// Returns a change that is done, if the last reading of the GPU may be from before.
    fn unread_change(&self, change: Option<&ChangeRecord>) -> Option<&EndedAttempt> {
        let last = self.inputs.attempts.last().filter(|_| change.is_none())?;
        let age = self.inputs.now.duration_since(last.at);
        let is_recent = (SignedDuration::ZERO..READING).contains(&age);
        let is_done = last.result == AttemptResult::Done && changes_the_gpu(last.work.kind);
        (is_done && is_recent && !self.has_instances(&last.work.layout)).then_some(last)
    }

    /// Goes on with a change that has begun, which needs no approval. Another configuration does: once it has it, the change goes to
    /// its layout.
    fn go_on(&self, change: &ChangeRecord) -> MigDecision {
        let is_of_configuration = change.hash == self.inputs.hash || self.inputs.target.is_none();
        let other = (!is_of_configuration).then(|| self.arranged()).flatten();
        let own = change.hash.as_str();
        let gives_up = change.gives_up.clone().or_else(|| self.hopeless(change));
        let (kind, hash, layout) = match &other {
            Some(layout) if self.inputs.approved => (MigWorkKind::Apply, self.inputs.hash, layout.clone()),
            // There is no layout from before to go back to.
            _ if change.restores => (MigWorkKind::Restore, own, change.wanted.clone()),
            _ if change.rolls_back || gives_up.is_some() || self.attempts(own) >= MAX_ATTEMPTS => {
                (MigWorkKind::RollBack, own, change.before.clone())
            }
            _ => (MigWorkKind::Apply, own, change.wanted.clone()),
        };
        let is_restored = kind == MigWorkKind::Restore;
        let hold = self.hold_of_change(change, &layout);
        if let Some(fault) = self.inputs.fault {
            return self.unhealthy(hold, fault);
        }
        if let Some(obstruction) = self.obstruction(&layout) {
            let mut decision = self.waiting(hold, &layout, &obstruction);
            decision.is_restored = is_restored && matches!(obstruction, Obstruction::HoldersUnknown);
            return decision;
        }
        let work = MigWork {
            gives_up: gives_up.filter(|_| kind == MigWorkKind::RollBack),
            ..self.work(kind, hash, layout.clone())
        };
        let failure = self.failure_of(kind, hash);
        let mut decision = self.under_way(&work, hold);
        let last = self.inputs.attempts.last_at(hash, &layout);
        match last.map(|last| (last, &last.result)) {
            Some((_, AttemptResult::RebootRequired { message })) if self.state.enabled != layout.enabled => {
                decision = self.reboot_required(decision.hold, message.clone());
            }
            Some((last, AttemptResult::Blocked { reason, message })) => {
                decision = self.blocked(decision.hold, *reason, blocked_text(kind, message));
                self.retry(&mut decision, work, self.inputs.attempts.retry_at(last));
            }
            Some((last, AttemptResult::Failed { message })) if failure.is_none() => {
                decision = self.driver_error(decision.hold, message.clone());
                self.retry(&mut decision, work, self.inputs.attempts.retry_at(last));
            }
            _ => {
                decision.is_restored = is_restored && failure.is_none();
                let at = failure.filter(|failure| failure.at <= self.inputs.now);
                let next = at.map(|failure| retry_after_failures(failure.at, failure.attempts));
                self.retry(&mut decision, work, next.unwrap_or(self.inputs.now));
                decision.is_restored = kind == MigWorkKind::Restore && failure.is_none();
            }
        }
        match other {
            Some(other) if !self.inputs.approved => self.or_await(decision, &other),
            _ => decision,
        }
    }

    /// Decides about a GPU whose work is under way, or comes next.
    fn under_way(&self, work: &MigWork, hold: DeviceHold) -> MigDecision {
        let back = |why: &String| format!("goes back to the layout from before: {}", kept_from_its_end(why));
        match (self.failure_of(work.kind, &work.hash), &work.gives_up) {
            (Some(failure), Some(why)) => {
                let message = format!("{}; the driver's last answer: {}", back(why), failure.message);
                let mut decision = self.driver_error(hold, message);
                decision.progress.attempts = failure.attempts;
                decision
            }
            (Some(failure), None) => self.failed_work(work.kind, hold, failure),
            (None, Some(why)) => self.decision(hold, MigPhase::Applying, None, back(why)),
            (None, None) => self.decision(hold, MigPhase::Applying, None, self.next_text(&work.layout)),
        }
    }

    /// Returns what has kept a change from its end for so long that it goes back; none while there is hope. Pods that are evicted for
    /// it may be just what is in the way.
    fn hopeless(&self, change: &ChangeRecord) -> Option<String> {
        let attempts = self.inputs.attempts;
        let last = attempts.last().filter(|last| last.work.hash == change.hash)?;
        let goes_back = last.work.kind == MigWorkKind::RollBack;
        // The driver's errors have their own way back.
        let is_blocked = goes_back || matches!(last.result, AttemptResult::Blocked { .. });
        let has_hope = (self.inputs.is_drained && !goes_back) || !is_blocked;
        let may_go_back = !change.rolls_back && !has_hope && self.attempts(&change.hash) < MAX_ATTEMPTS;
        let blocked = attempts.blocked(&change.hash).filter(|_| may_go_back)?;
        let age = blocked.last.duration_since(blocked.since);
        (age >= MAX_BLOCKED).then(|| blocked.message.clone())
    }

    /// Lets a change that does not get on await the approval of another layout, and tries it meanwhile.
    fn or_await(&self, stuck: MigDecision, other: &GpuLayout) -> MigDecision {
        let MigStatus { phase, message, .. } = &stuck.progress;
        let is_stuck = matches!(phase, MigPhase::Blocked | MigPhase::Failed | MigPhase::RebootRequired);
        if !is_stuck || self.obstruction(other).is_some() {
            return stuck;
        }
        let message = format!(
            "waits for the node's turn; then, instead of the change under way: {}; that change: {}",
            self.next_text(other),
            message.as_deref().unwrap_or_default()
        );
        MigDecision {
            work: stuck.work,
            look_again: stuck.look_again,
            ..self.decision(stuck.hold, MigPhase::AwaitingApproval, None, message)
        }
    }

    /// Returns the layout of the record if the GPU has lost it: with another boot or driver load, or with a reset. A GPU on which
    /// somebody has made other instances since has not: they go only by a change that is approved.
    fn lost_layout(&self) -> Option<&GpuLayout> {
        let record = self.inputs.record?;
        let applied = record.applied.as_ref().filter(|applied| applied.enabled)?;
        let is_missing = |placed| !self.state.instance(placed).is_some_and(GpuInstance::is_whole);
        let lacks = !self.state.enabled || applied.instances.iter().any(is_missing);
        let of_record = MigLayout::of_instances(&applied.instances, &self.state.geometry);
        let is_wanted = self.wanted().is_ok_and(|wanted| wanted.as_ref() == Some(&of_record));
        let is_reset = self.state.enabled && self.state.instances.is_empty() && is_wanted;
        let is_part = |instance: &GpuInstance| {
            applied.instances.contains(&instance.placed) && (instance.is_whole() || instance.compute.is_empty())
        };
        let has_others = !self.state.instances.iter().all(is_part);
        // A layout that cannot be made again keeps nobody from another one.
        let is_given_up = !is_wanted && self.failed_restores() >= MAX_ATTEMPTS;
        let is_lost = lacks && (record.run.is_other(self.inputs.run) || is_reset);
        (is_lost && !has_others && !is_given_up).then_some(applied)
    }

    /// Makes the layout from before again. The GPU offers nothing until then.
    fn restore(&self, layout: &GpuLayout) -> MigDecision {
        let hold = self.hold_for(layout, true);
        if let Some(fault) = self.inputs.fault {
            return self.unhealthy(hold, fault);
        }
        if let Some(obstruction) = self.obstruction(layout) {
            let mut decision = self.waiting(hold, layout, &obstruction);
            decision.is_restored = matches!(obstruction, Obstruction::HoldersUnknown);
            return decision;
        }
        let hash = self.inputs.hash;
        let work = self.work(MigWorkKind::Restore, hash, layout.clone());
        let last = self.inputs.attempts.last_at(hash, layout);
        let last = last.filter(|last| last.work.kind == MigWorkKind::Restore);
        let mut decision = match last.map(|last| (&last.result, self.inputs.attempts.retry_at(last))) {
            Some((AttemptResult::Failed { message }, at)) => {
                let mut decision = self.not_restored(hold, message);
                self.retry(&mut decision, work, at);
                decision
            }
            Some((AttemptResult::Blocked { reason, message }, at)) => {
                let mut decision = self.blocked(hold, *reason, message.clone());
                self.retry(&mut decision, work, at);
                decision
            }
            Some((AttemptResult::RebootRequired { message }, _)) => self.reboot_required(hold, message.clone()),
            _ => {
                let instances = self.names(&layout.instances);
                let message = format!("makes the instances from before the boot or reset again: {instances}");
                let mut decision = self.decision(hold, MigPhase::Applying, None, message);
                decision.work = Some(work);
                decision.is_restored = true;
                decision
            }
        };
        decision.progress.attempts = self.failed_restores();
        decision
    }

    /// Has nothing to do, except to save a layout that the record lacks.
    fn applied(&self) -> MigDecision {
        let mut decision = self.decision(DeviceHold::default(), MigPhase::Applied, None, String::new());
        let record = self.inputs.record;
        let layout = self.in_order_of_record(self.state.layout());
        let is_recorded = |record: &MigRecord| {
            let has_failure = record.failure.is_some() || record.restore_failure.is_some();
            record.applied.as_ref() == Some(&layout)
                && !record.run.lacks(self.inputs.run)
                && !has_failure
                && record.change.is_none()
        };
        if !record.is_some_and(is_recorded) {
            let work = self.work(MigWorkKind::Remember, self.inputs.hash, layout);
            let failed = |last: &&EndedAttempt| last.work == work && last.result != AttemptResult::Clear;
            let last = self.inputs.attempts.last().filter(failed);
            let next = last.map_or(self.inputs.now, |last| self.inputs.attempts.retry_at(last));
            self.retry(&mut decision, work, next);
        }
        decision
    }

    /// Returns the decision about a GPU that cannot be changed whatever its instances are; none if it can.
    fn obstacle(&self, enables: bool) -> Option<MigDecision> {
        let nothing = DeviceHold::default;
        if self.state.virtualization == GpuVirtualization::Virtual {
            let message =
                "the GPU is virtual, or is cut for virtual machines; its MIG mode and instances belong to them";
            let mut decision = self.decision(nothing(), MigPhase::Unsupported, None, message.to_owned());
            decision.progress.reason = Some(MigReason::Virtual);
            return Some(decision);
        }
        if self.state.pending == self.state.enabled {
            return None;
        }
        self.foreign_mode(enables).or_else(|| {
            let (current, pending) = (mode(self.state.enabled), mode(self.state.pending));
            let message = format!("MIG is {current}, and {pending} after the next reset of the GPU; reboot the node");
            Some(self.reboot_required(nothing(), message))
        })
    }

    /// Returns the decision about a GPU whose next reset brings a mode that is not wanted; none if there is none.
    fn foreign_mode(&self, enables: bool) -> Option<MigDecision> {
        if self.state.pending == self.state.enabled || self.state.pending == enables {
            return None;
        }
        let remedy = if self.state.enabled == enables {
            ""
        } else {
            " or reboot the node"
        };
        let message = format!(
            "MIG is {}, and somebody else or an earlier configuration has set it to be {} after the next reset of the GPU; set it back \
             (`nvidia-smi -i {} -mig {}`){remedy}",
            mode(self.state.enabled),
            mode(self.state.pending),
            self.inputs.gpu.index,
            u8::from(self.state.enabled),
        );
        Some(self.blocked(DeviceHold::default(), MigReason::ModePending, message))
    }

    /// Takes the next step towards a layout that the GPU does not have.
    fn approach(&self, wanted: Option<&MigLayout>) -> MigDecision {
        let hash = self.inputs.hash;
        if let Some(failure) = self.failure(hash).filter(|failure| failure.rolled_back) {
            let mut decision = self.failed(DeviceHold::default(), failure);
            decision.progress.reason = Some(MigReason::RolledBack);
            return decision;
        }
        let layout = match self.arranged_for(wanted) {
            Ok(layout) => layout,
            Err(error) => return self.blocked(DeviceHold::default(), MigReason::DoesNotFit, error.to_string()),
        };
        let hold = self.hold_for(&layout, false);
        if let Some(fault) = self.inputs.fault {
            return self.unhealthy(hold, fault);
        }
        if let Some(obstruction) = self.obstruction(&layout) {
            return self.waiting(hold, &layout, &obstruction);
        }
        let check = || self.work(MigWorkKind::Check, hash, layout.clone());
        let last = self.inputs.attempts.last_at(hash, &layout);
        let retry_at = |last: &EndedAttempt| match last.work.kind {
            MigWorkKind::Check => self.inputs.attempts.retry_at(last),
            _ => self.inputs.attempts.retry_refused_at(last),
        };
        match last.map(|last| (&last.result, retry_at(last))) {
            Some((AttemptResult::Clear, _)) if self.inputs.approved => {
                let mut decision = self.decision(hold, MigPhase::Applying, None, self.next_text(&layout));
                decision.work = Some(self.work(MigWorkKind::Apply, hash, layout.clone()));
                decision
            }
            Some((AttemptResult::Clear, _)) => {
                let message = format!(
                    "waits for the node's turn in rollout.maxUnavailable of the policy; then: {}",
                    self.next_text(&layout)
                );
                self.decision(hold, MigPhase::AwaitingApproval, None, message)
            }
            Some((AttemptResult::Blocked { reason, message }, at)) => {
                let mut decision = self.blocked(hold, *reason, message.clone());
                self.retry(&mut decision, check(), at);
                decision
            }
            Some((AttemptResult::Failed { message }, at)) => {
                let mut decision = self.driver_error(hold, message.clone());
                self.retry(&mut decision, check(), at);
                decision
            }
            Some((AttemptResult::RebootRequired { message }, _)) if self.state.enabled != layout.enabled => {
                self.reboot_required(hold, message.clone())
            }
            _ => {
                let message = "no container holds what has to go; looks for daemons, processes and open handles on it";
                let mut decision = self.decision(hold, MigPhase::Waiting, None, message.to_owned());
                decision.work = Some(check());
                decision
            }
        }
    }

    /// Returns the layout that the configuration wants, with places; none if it does not fit.
    fn arranged(&self) -> Option<GpuLayout> {
        let wanted = self.wanted().ok()?;
        self.arranged_for(wanted.as_ref()).ok()
    }

    fn arranged_for(&self, wanted: Option<&MigLayout>) -> Result<GpuLayout, NoPlacement> {
        let Some(wanted) = wanted else {
            return Ok(GpuLayout::default());
        };
        let UsedDevices { is_known, devices } = self.inputs.usage;
        let is_in_use = |instance: &GpuInstance| {
            self.devices_of(instance).any(|device| match devices.get(device) {
                Some(DeviceUse::Held(_)) => true,
                Some(DeviceUse::Assigned) => !is_known,
                None => false,
            })
        };
        let placed = arrange(self.state, wanted, is_in_use)?;
        Ok(self.in_order_of_record(GpuLayout {
            enabled: true,
            instances: [placed.kept, placed.created].concat(),
        }))
    }

    /// Sorts the instances that the record has by their order in it, before all others, which keep theirs.
    fn in_order_of_record(&self, mut layout: GpuLayout) -> GpuLayout {
        let applied = self.inputs.record.and_then(|record| record.applied.as_ref());
        let recorded = applied.map_or(&[][..], |applied| &applied.instances);
        layout.instances.sort_by_key(|placed| {
            let at = recorded.iter().position(|other| other == placed);
            at.filter(|_| self.state.instance(placed).is_some())
                .unwrap_or(usize::MAX)
        });
        layout
    }

    /// Returns the instances that cannot stay as they are.
    fn going<'b>(&'b self, layout: &'b GpuLayout) -> impl Iterator<Item = &'b GpuInstance> {
        self.state.instances.iter().filter(|instance| {
            let stays = layout.enabled && layout.instances.contains(&instance.placed);
            !stays || (!instance.is_whole() && !instance.compute.is_empty())
        })
    }

    /// Returns the UUIDs of the MIG devices of an instance.
    fn devices_of<'b>(&'b self, instance: &'b GpuInstance) -> impl Iterator<Item = &'b String> {
        let listed = self.inputs.gpu.mig_devices.iter().map(|mig| &mig.facts);
        let listed = listed
            .filter(|facts| facts.gpu_instance == instance.id)
            .map(|facts| &facts.uuid);
        instance
            .compute
            .iter()
            .filter_map(|compute| compute.uuid.as_ref())
            .chain(listed)
    }

    /// Returns the hold on what goes; on the whole GPU if its mode changes, or if it is to offer nothing.
    fn hold_for(&self, layout: &GpuLayout, is_whole: bool) -> DeviceHold {
        DeviceHold {
            gpu: is_whole || self.state.enabled != layout.enabled,
            devices: self
                .going(layout)
                .flat_map(|instance| self.devices_of(instance))
                .cloned()
                .collect(),
        }
    }

    /// Returns the hold during a change: all but what stays.
    fn hold_of_change(&self, change: &ChangeRecord, layout: &GpuLayout) -> DeviceHold {
        let is_of_all = |instance: &&GpuInstance| {
            let layouts = [&change.before, &change.wanted, layout];
            layouts.iter().all(|layout| layout.instances.contains(&instance.placed)) && instance.is_whole()
        };
        let (stays, goes): (Vec<&GpuInstance>, Vec<_>) = self.state.instances.iter().partition(is_of_all);
        let staying: BTreeSet<&String> = stays
            .into_iter()
            .flat_map(|instance| self.devices_of(instance))
            .collect();
        let listed = self.inputs.gpu.mig_devices.iter().map(|mig| &mig.facts.uuid);
        let others = goes
            .into_iter()
            .flat_map(|instance| self.devices_of(instance))
            .chain(listed);
        DeviceHold {
            gpu: change.restores || change.changes_mode || self.state.enabled != layout.enabled,
            devices: others.filter(|device| !staying.contains(device)).cloned().collect(),
        }
    }

    /// Returns what keeps the devices from being free that have to be for this layout.
    fn obstruction(&self, layout: &GpuLayout) -> Option<Obstruction> {
        let mut needed: BTreeSet<&String> = self
            .going(layout)
            .flat_map(|instance| self.devices_of(instance))
            .collect();
        if self.state.enabled != layout.enabled {
            needed.extend(self.inputs.gpu.mig_devices.iter().map(|mig| &mig.facts.uuid));
        }
        let is_disturbed = self.state.enabled != layout.enabled || self.going(layout).next().is_some();
        needed.extend(is_disturbed.then_some(&self.inputs.gpu.uuid));
        let UsedDevices { is_known, devices } = self.inputs.usage;
        if !needed.is_empty() && !is_known {
            return Some(Obstruction::HoldersUnknown);
        }
        let mut is_allocatable = false;
        let mut held: Option<BTreeSet<String>> = None;
        for taken in needed.into_iter().filter_map(|device| devices.get(device)) {
            match taken {
                DeviceUse::Assigned => is_allocatable = true,
                DeviceUse::Held(pods) => held.get_or_insert_default().extend(pods.iter().cloned()),
            }
        }
        held.map(Obstruction::Held)
            .or_else(|| is_allocatable.then_some(Obstruction::Allocatable))
    }

    fn waiting(&self, hold: DeviceHold, layout: &GpuLayout, obstruction: &Obstruction) -> MigDecision {
        let what = if self.state.enabled == layout.enabled {
            let going: Vec<_> = self.going(layout).map(|instance| instance.placed).collect();
            self.names(&going)
        } else {
            format!("GPU {}", self.inputs.gpu.index)
        };
        let message = match obstruction {
            Obstruction::HoldersUnknown => "waits for the kubelet to report which pod holds which device".to_owned(),
            Obstruction::Allocatable => format!("waits until the kubelet can allocate nothing of {what}"),
            Obstruction::Held(pods) if pods.is_empty() => {
                format!("waits until the pods end that hold {what}; the kubelet does not name them")
            }
            Obstruction::Held(pods) => format!("waits until pods {} end, which hold {what}", listed(pods)),
        };
        let waits_for_pods = matches!(obstruction, Obstruction::Held(_));
        let mut decision = match self.inputs.failed_drain.filter(|_| waits_for_pods) {
            Some(FailedDrain { reason, message: why }) => self.blocked(hold, *reason, format!("{why}; {message}")),
            None => self.decision(hold, MigPhase::Waiting, None, message),
        };
        decision.progress.attempts = self.attempts(self.inputs.hash);
        decision.waits_for_pods = waits_for_pods;
        decision
    }

    fn unhealthy(&self, hold: DeviceHold, fault: &str) -> MigDecision {
        let message = format!("repair the GPU first, only a healthy GPU is divided: {fault}");
        self.blocked(hold, MigReason::Unhealthy, message)
    }

    fn reboot_required(&self, hold: DeviceHold, message: String) -> MigDecision {
        self.decision(hold, MigPhase::RebootRequired, None, message)
    }

    fn blocked(&self, hold: DeviceHold, reason: MigReason, message: String) -> MigDecision {
        self.decision(hold, MigPhase::Blocked, Some(reason), message)
    }

    fn driver_error(&self, hold: DeviceHold, message: String) -> MigDecision {
        self.decision(hold, MigPhase::Failed, Some(MigReason::DriverError), message)
    }

    fn failed(&self, hold: DeviceHold, failure: &MigFailure) -> MigDecision {
        let MigFailure { attempts, message, .. } = failure;
        let message = if failure.rolled_back && *attempts < MAX_ATTEMPTS {
            format!(
                "the GPU has its layout from before again: {}; once that is gone, change devicePlugin in the policy to try again",
                kept_from_its_end(message)
            )
        } else if failure.rolled_back {
            format!(
                "the GPU has its layout from before again, after {attempts} attempts: {message}; repair the GPU, or change \
                 devicePlugin in the policy, to try again"
            )
        } else if *attempts > MAX_ATTEMPTS {
            format!("cannot go back to the layout from before either, tries again: {message}; repair the GPU")
        } else if *attempts == MAX_ATTEMPTS {
            format!("goes back to the layout from before, after {attempts} attempts: {message}")
        } else {
            format!("{message}; attempt {attempts} of {MAX_ATTEMPTS}, the next one follows")
        };
        let mut decision = self.driver_error(hold, message);
        decision.progress.attempts = *attempts;
        decision
    }

    /// Decides about a GPU whose work failed.
    fn failed_work(&self, kind: MigWorkKind, hold: DeviceHold, failure: &MigFailure) -> MigDecision {
        if kind != MigWorkKind::Restore {
            return self.failed(hold, failure);
        }
        let mut decision = self.not_restored(hold, &failure.message);
        decision.progress.attempts = failure.attempts;
        decision
    }

    fn not_restored(&self, hold: DeviceHold, message: &str) -> MigDecision {
        let message = format!("{message}; the GPU offers nothing until it has its instances again");
        self.driver_error(hold, message)
    }

    /// Sets the work if it is time for it, else the time.
    fn retry(&self, decision: &mut MigDecision, work: MigWork, at: Timestamp) {
        if at <= self.inputs.now {
            decision.work = Some(work);
        } else {
            decision.look_again = Some(at);
        }
    }

    /// Returns the failure of a configuration.
    fn failure(&self, hash: &str) -> Option<&MigFailure> {
        let failure = self.inputs.record?.failure.as_ref()?;
        (failure.hash == hash && failure.attempts > 0).then_some(failure)
    }

    /// Returns the failure of work. Those of a restore count apart: they say nothing about a layout of the configuration.
    fn failure_of(&self, kind: MigWorkKind, hash: &str) -> Option<&MigFailure> {
        match kind {
            MigWorkKind::Restore => self.inputs.record?.restore_failure.as_ref(),
            _ => self.failure(hash),
        }
    }

    fn failed_restores(&self) -> u32 {
        let failure = self.inputs.record.and_then(|record| record.restore_failure.as_ref());
        failure.map_or(0, |failure| failure.attempts)
    }

    fn attempts(&self, hash: &str) -> u32 {
        self.failure(hash).map_or(0, |failure| failure.attempts)
    }

    fn work(&self, kind: MigWorkKind, hash: &str, layout: GpuLayout) -> MigWork {
        MigWork {
            gpu: self.inputs.gpu.uuid.clone(),
            hash: hash.to_owned(),
            layout,
            kind,
            gives_up: None,
        }
    }

    fn decision(&self, hold: DeviceHold, phase: MigPhase, reason: Option<MigReason>, message: String) -> MigDecision {
        let wanted = match (self.inputs.target, self.wanted()) {
            (None, _) => self.recorded_text(),
            (Some(target), _) if self.lacks_profiles() => target.to_string(),
            (Some(_), Ok(None)) => "off".to_owned(),
            (Some(_), Ok(Some(layout))) => layout.to_string(),
            (Some(target), Err(_)) => target.to_string(),
        };
        let observed = if self.state.enabled {
            self.layout_of_whole().to_string()
        } else {
            "off".to_owned()
        };
        MigDecision {
            hold,
            progress: MigStatus {
                wanted: bounded(wanted, MAX_LAYOUT_TEXT),
                observed: bounded(observed, MAX_LAYOUT_TEXT),
                phase,
                reason,
                since: None,
                message: Some(bounded(message, MAX_MIG_MESSAGE)).filter(|message| !message.is_empty()),
                attempts: 0,
            },
            work: None,
            look_again: None,
            is_restored: false,
            waits_for_pods: false,
        }
    }

    /// Writes the layout of a change that no configuration wants any more.
    fn recorded_text(&self) -> String {
        let change = self.inputs.record.and_then(|record| record.change.as_ref());
        match change.map(|change| &change.wanted).filter(|wanted| wanted.enabled) {
            Some(wanted) => MigLayout::of_instances(&wanted.instances, &self.state.geometry).to_string(),
            None => "off".to_owned(),
        }
    }

    /// Says what goes and what comes.
    fn next_text(&self, layout: &GpuLayout) -> String {
        let going: Vec<_> = self.going(layout).map(|instance| instance.placed).collect();
        let is_new = |placed: &&PlacedInstance| self.state.instance(placed).is_none();
        let coming: Vec<_> = layout.instances.iter().filter(is_new).copied().collect();
        let parts = [
            (!going.is_empty()).then(|| format!("destroys {}", self.names(&going))),
            (self.state.enabled != layout.enabled)
                .then(|| format!("turns MIG {}", if layout.enabled { "on" } else { "off" })),
            (!coming.is_empty()).then(|| format!("creates {}", self.names(&coming))),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        if parts.is_empty() {
            "compares the GPU with its layout".to_owned()
        } else {
            parts.join(", ")
        }
    }

    fn names(&self, instances: &[PlacedInstance]) -> String {
        let names = instances.iter().map(|placed| self.state.geometry.instance_name(placed));
        names.collect::<Vec<_>>().join(", ")
    }
}

fn mode(is_on: bool) -> &'static str {
    if is_on { "on" } else { "off" }
}

fn changes_the_gpu(kind: MigWorkKind) -> bool {
    matches!(kind, MigWorkKind::Apply | MigWorkKind::Restore | MigWorkKind::RollBack)
}

fn blocked_text(kind: MigWorkKind, message: &str) -> String {
    if kind == MigWorkKind::RollBack {
        format!("cannot go back to the layout from before yet: {message}")
    } else {
        message.to_owned()
    }
}

fn kept_from_its_end(why: &str) -> String {
    let minutes = MAX_BLOCKED.as_mins();
    format!("for over {minutes} minutes something kept the change from its end: {why}")
}

/// Lists names, at most [`MAX_NAMES`].
fn listed(names: &BTreeSet<String>) -> String {
    let first: Vec<&str> = names.iter().take(MAX_NAMES).map(String::as_str).collect();
    match names.len().saturating_sub(MAX_NAMES) {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

/// Cuts a text at a number of characters.
fn bounded(text: String, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((at, _)) => text.get(..at).unwrap_or_default().to_owned(),
        None => text,
    }
}
