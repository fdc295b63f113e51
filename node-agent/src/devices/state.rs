//! State of the node's devices: the allocator, the MPS control daemons and the health, and the snapshot of all three
//! for the kubelet, the disk and status. Pure.

use crate::{
    cdi::state::CdiState,
    devices::{advertised::AdvertisedList, injection::InjectionRules},
    health::node_health::NodeHealth,
    mps::answers::{DaemonAnswers, daemons, unavailable},
    store::assignments::{Assignments, ClaimedFiles},
};
use gpunode_cdi::DevicesInUse;
use gpunode_crds::MpsDaemon;
use gpunode_gpu::{
    AdvertisedResource, Allocator, CompanionDevice, DesiredCompanions, DesiredDevices, DeviceFaults, DeviceHolder,
    FaultReason, KubeletObservation, PendingChange, is_companion,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

/// Pause between two equal lists while a device waits only for the kubelet's checkpoint: a list makes the kubelet drop
/// old entries from it.
const RESEND: Duration = Duration::from_secs(10);

/// Age from which status reports an observation as too old. The advertised lists stay anyway.
const OVERDUE: Duration = Duration::from_secs(30);

/// Reason to withhold devices before the first answers of the MPS control daemons.
const DAEMONS_UNKNOWN: &str = "it is not known yet whether an MPS control daemon still runs on it";

/// Reason to give out no further share beside NVIDIA's DRA driver.
const LEFT_TO_DRA: &str = "NVIDIA's DRA driver serves the GPUs of the node";

/// Reason for unknown holders before the kubelet's first answer.
pub const NO_ANSWER_YET: &str = "the kubelet has not reported yet which pod holds which device";

/// Mutable state of all devices, kept under one lock.
#[derive(Debug, Default)]
pub struct DeviceState {
    /// Assigned, advertised and held devices, and pending changes.
    pub allocator: Allocator,
    /// Answers of the MPS control daemons, and the time since boot of reading them.
    answers: Option<(DaemonAnswers, Duration)>,
    /// The health applied last.
    health: Arc<NodeHealth>,
    /// Ways in which containers get their devices.
    injection: Arc<InjectionRules>,
    /// State of the CDI file, applied last.
    cdi: Arc<CdiState>,
    /// Start of the last successful observation.
    observed: Option<Instant>,
    /// True if the observation after that failed.
    failing: bool,
    /// Reason for unknown holders, as status reports it.
    holders_unknown: Option<String>,
    stale_since: Option<Instant>,
    /// Number of repeated lists by resource.
    resends: BTreeMap<String, u64>,
}

/// State of all devices at one moment.
#[derive(Clone, Debug, Default)]
pub struct DeviceSnapshot {
    /// Assignments, which must be on disk before the lists are advertised.
    pub assignments: Assignments,
    /// Files that containers of companions may have, which must be on disk as well.
    pub claimed_files: ClaimedFiles,
    /// Companions that are desired, or assigned and known.
    pub companions: BTreeMap<String, CompanionDevice>,
    /// Advertised lists of the resources.
    pub advertised: Vec<AdvertisedList>,
    /// Resources whose first list waits for the CDI file or the disk: the kubelet cannot have accepted them.
    pub unpublished: Vec<String>,
    /// Changes that wait for the holders of devices.
    pub pending_changes: Vec<PendingChange>,
    /// Holders of devices.
    pub holders: Vec<DeviceHolder>,
    /// Ids of the devices that containers hold or may hold, of any plugin.
    pub held_devices: BTreeSet<String>,
    /// Reasons why no strategy can hand a device over, by UUID.
    pub not_injectable: BTreeMap<String, String>,
    /// The MPS control daemons of the node.
    pub daemons: Vec<MpsDaemon>,
    /// True if `daemons` is complete. A missing daemon counts as gone only then.
    pub daemons_known: bool,
    /// Reason for unknown holders. Before the first observation it blocks all lists.
    pub holders_unknown: Option<String>,
}

impl DeviceState {
    /// Returns the state of a node on which an earlier agent left `assignments` and files of companions.
    pub fn restore(assignments: Assignments, claimed_files: ClaimedFiles) -> Self {
        Self {
            allocator: Allocator::restore(assignments, claimed_files),
            ..Self::default()
        }
    }

    /// Sets the desired devices after a change of configuration or hardware.
    pub fn set_desired(&mut self, desired: DesiredDevices, now: Instant) {
        self.allocator.set_desired(desired, now);
        self.update_unavailable();
    }

    /// Sets the desired companions after a change of configuration or files. `existing` are the claimed files that exist.
    pub fn set_companions(&mut self, desired: &DesiredCompanions, existing: &BTreeSet<String>, now: Instant) {
        self.allocator.set_companions(desired, existing, now);
        self.update_unavailable();
    }

    /// Sets whether the pods on devices that switch are evicted; returns true if this changes anything.
    pub fn withdraw_switching(&mut self, withdraws: bool) -> bool {
        self.allocator.withdraw_switching(withdraws)
    }

    /// Takes in the kubelet's answer about holders.
    pub fn observe(&mut self, observation: KubeletObservation) {
        let now = observation.started;
        self.allocator.observe(observation);
        self.observed = Some(now);
        (self.failing, self.holders_unknown) = (false, None);
        if !self.allocator.waits_for_checkpoint() {
            self.stale_since = None;
        } else if now.saturating_duration_since(*self.stale_since.get_or_insert(now)) >= RESEND {
            self.stale_since = Some(now);
            for resource in self.waiting_resources() {
                *self.resends.entry(resource).or_default() += 1;
            }
        }
        self.update_unavailable();
    }

    /// Takes in a failed observation of `now`; returns true if this changes anything. The earlier observation stays.
    pub fn not_observed(&mut self, reason: &str, now: Instant) -> bool {
        let age = self.observed.map(|then| now.saturating_duration_since(then));
        let holders_unknown = match age {
            None => Some(reason.to_owned()),
            Some(age) if age >= OVERDUE => Some(format!(
                "the kubelet has not reported for over {OVERDUE:?} which pod holds which device; the advertised devices stay as they are: {reason}"
            )),
            Some(_) => None,
        };
        self.failing = true;
        let changes = self.holders_unknown != holders_unknown;
        self.holders_unknown = holders_unknown;
        changes
    }

    /// Takes in the answers of the MPS control daemons at `now` since boot; returns true if this changes anything.
    pub fn set_daemon_answers(&mut self, answers: DaemonAnswers, now: Duration) -> bool {
        let before = self.answers.is_some().then(|| self.daemons());
        self.answers = Some((answers, now));
        let changes = before.as_ref() != Some(&self.daemons());
        if changes {
            self.update_unavailable();
        }
        changes
    }

    /// Takes in that the answers cannot be read: no daemon counts as answering. Returns true if this changes anything.
    pub fn set_daemons_silent(&mut self) -> bool {
        let Some((answers, now)) = self.answers.clone() else {
            return false;
        };
        self.set_daemon_answers(answers.into_keys().map(|device| (device, None)).collect(), now)
    }

    /// Applies the health of all devices; returns true if it is another one than before.
    pub fn set_health(&mut self, health: &Arc<NodeHealth>) -> bool {
        let is_new = !Arc::ptr_eq(&self.health, health);
        if is_new {
            self.health = health.clone();
            self.update_unavailable();
        }
        is_new
    }

    /// Sets the ways in which later containers get their devices; returns true if they are other ones than before.
    pub fn set_injection(&mut self, rules: &InjectionRules) -> bool {
        let is_new = *self.injection != *rules;
        if is_new {
            self.injection = Arc::new(rules.clone());
            self.update_unavailable();
        }
        is_new
    }

    /// Applies the state of the CDI file; returns true if it is another one than before.
    pub fn set_cdi(&mut self, cdi: &CdiState) -> bool {
        let is_new = *self.cdi != *cdi;
        if is_new {
            self.cdi = Arc::new(cdi.clone());
            self.update_unavailable();
        }
        is_new
    }

    /// Returns the ways in which containers get their devices now, and the state of the CDI file.
    pub fn injection(&self) -> (Arc<InjectionRules>, Arc<CdiState>) {
        (self.injection.clone(), self.cdi.clone())
    }

    /// Returns the UUIDs of the assigned GPUs and MIG devices.
    fn assigned_gpus(&self) -> impl Iterator<Item = &String> {
        self.allocator.assigned().keys().filter(|id| !is_companion(id))
    }

    /// Returns the reason why no strategy can hand an assigned device over, by UUID.
    fn not_injectable(&self) -> BTreeMap<String, String> {
        let assigned = self.assigned_gpus();
        assigned
            .filter_map(|uuid| Some((uuid.clone(), self.injection.not_injectable(uuid, &self.cdi)?)))
            .collect()
    }

    /// Returns true if MPS control daemons run, must run, or may run.
    pub fn has_daemons(&self) -> bool {
        self.answers.is_none() || !self.daemons().is_empty()
    }

    /// Returns true if the holders of devices are known.
    pub fn knows_holders(&self) -> bool {
        self.allocator.is_observed() && self.holders_unknown.is_none()
    }

    /// Returns true if something waits for the next observation.
    pub fn is_busy(&self) -> bool {
        !self.allocator.is_observed() || self.failing || self.allocator.needs_observation()
    }

    /// Returns a snapshot of the state.
    pub fn snapshot(&self) -> DeviceSnapshot {
        let with_resend = |resource: AdvertisedResource| {
            let resend = self.resends.get(&resource.name).copied().unwrap_or_default();
            AdvertisedList {
                resource: Arc::new(resource),
                resend,
            }
        };
        let holders = self.allocator.holders();
        // A resource of which nobody holds anything is left to the DRA driver: with another plugin's capacity on the node, even
        // of 0, a scheduler may not turn to that driver.
        let is_kept = |resource: &AdvertisedResource| {
            let is_held = || holders.iter().any(|holder| holder.resource == resource.name);
            !self.health.served_by_dra
                || resource.is_companion
                || resource.shares.iter().any(|share| share.healthy)
                || is_held()
        };
        let advertised = self.allocator.advertised().into_iter().filter(is_kept);
        let before_first_answer = || (!self.allocator.is_observed()).then(|| NO_ANSWER_YET.to_owned());
        DeviceSnapshot {
            advertised: advertised.map(with_resend).collect(),
            unpublished: Vec::new(),
            holders,
            held_devices: self.allocator.held_devices(),
            not_injectable: self.not_injectable(),
            daemons: self.daemons(),
            daemons_known: self.answers.is_some(),
            pending_changes: self.allocator.pending_changes(),
            assignments: self.allocator.assigned().clone(),
            claimed_files: self.allocator.claimed_files().clone(),
            companions: self.allocator.companions().clone(),
            holders_unknown: self.holders_unknown.clone().or_else(before_first_answer),
        }
    }

    /// Returns the resources of the devices with pending changes; all resources if one of these devices has none yet.
    fn waiting_resources(&self) -> BTreeSet<String> {
        let assigned = self.allocator.assigned();
        let of_device = |pending: PendingChange| Some(assigned.get(&pending.device)?.resource.clone());
        let waiting: Option<BTreeSet<String>> = self.allocator.pending_changes().into_iter().map(of_device).collect();
        waiting.unwrap_or_else(|| self.allocator.advertised().into_iter().map(|list| list.name).collect())
    }

    /// Returns the MPS control daemons of the node.
    pub fn daemons(&self) -> Vec<MpsDaemon> {
        let mps = self.allocator.mps_devices().into_iter().collect();
        let none = (DaemonAnswers::new(), Duration::ZERO);
        let (answers, now) = self.answers.as_ref().unwrap_or(&none);
        daemons(&mps, answers, *now)
    }

    /// Updates the reasons to withhold devices. Runs after each change of allocator, daemons or health: a device that
    /// has just entered or left MPS must not be allocated by the old state of its daemon.
    fn update_unavailable(&mut self) {
        let mut reasons = match &mut self.answers {
            None => self
                .assigned_gpus()
                .map(|device| (device.clone(), DAEMONS_UNKNOWN.to_owned()))
                .collect(),
            Some((answers, _)) => {
                // Its daemon may have started since the last read, and must end before another resource gets the
                // device.
                for device in self.allocator.mps_devices() {
                    answers.entry(device).or_insert(None);
                }
                unavailable(&self.daemons())
            }
        };
        reasons.extend(self.health.reasons());
        let assigned: Vec<&String> = self.assigned_gpus().collect();
        let of_all = |reason: &String| {
            let of_each = assigned.iter().map(|device| ((*device).clone(), reason.clone()));
            of_each.collect::<BTreeMap<_, _>>()
        };
        reasons.extend(self.health.unavailable.iter().flat_map(of_all));
        let mut paused: BTreeMap<String, String> = self.health.paused_reasons().collect();
        paused.extend(self.health.paused.iter().flat_map(of_all));
        // What containers got stays valid: the runtime has injected it.
        paused.extend(self.not_injectable());
        let dra = self.health.served_by_dra.then(|| LEFT_TO_DRA.to_owned());
        paused.extend(dra.iter().flat_map(of_all));
        self.allocator.set_unavailable(reasons);
        self.allocator.set_paused(paused);
    }
}

impl DeviceSnapshot {
    /// Returns this snapshot for a moment at which the kubelet still has the lists `published`.
    pub fn before_publication(self, published: Vec<AdvertisedList>) -> Self {
        let has_list = |name: &str| published.iter().any(|list| list.resource.name == name);
        let names = self.advertised.iter().map(|list| &list.resource.name);
        let unpublished = names.filter(|name| !has_list(name)).cloned().collect();
        Self {
            advertised: published,
            unpublished,
            ..self
        }
    }

    /// Returns the devices that the CDI file has to name.
    pub fn devices_in_use(&self) -> DevicesInUse {
        DevicesInUse {
            assigned: gpus(self.assignments.keys()),
            held: gpus(self.held_devices.iter()),
            is_complete: self.holders_unknown.is_none(),
        }
    }

    /// Returns true if a device or its GPU is withheld for a fault other than a dead MPS daemon.
    pub fn is_faulty(&self, device: &str, health: &NodeHealth) -> bool {
        let gpu = self
            .assignments
            .get(device)
            .and_then(|assignment| assignment.gpu_uuid.as_deref());
        let mut faults = health.faults.iter().flat_map(DeviceFaults::devices);
        faults.any(|(faulty, faults)| {
            (faulty == device || Some(faulty) == gpu)
                && faults
                    .iter()
                    .any(|fault| fault.withholds() && fault.reason != FaultReason::MpsDaemonDied)
        })
    }
}

/// Returns the ids of GPUs and MIG devices.
fn gpus<'a>(ids: impl Iterator<Item = &'a String>) -> BTreeSet<String> {
    ids.filter(|id| !is_companion(id)).cloned().collect()
}

#[cfg(test)]
pub mod tests;
