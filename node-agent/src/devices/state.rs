//! What the agent knows of the devices of its node: the allocator, the MPS control daemons behind it, and what follows from
//! both for the kubelet, for the disk and for status. Pure.

use crate::{
    devices::offer::AdvertisedList,
    health::node_health::NodeHealth,
    mps::answers::{DaemonAnswers, daemons, held_back},
    store::assignments::Assignments,
};
use gpunode_crds::MpsDaemon;
use gpunode_gpu::{
    AdvertisedResource, Allocator, DesiredDevices, DeviceHolder, FaultReason, KubeletObservation, PendingChange,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

/// Pause between two equal lists while a device waits for the kubelet's checkpoint alone: the kubelet forgets what is in it
/// when it is sent a list.
const RESEND: Duration = Duration::from_secs(10);

/// How old what the kubelet said may be before status says so. What is offered stays all the same.
const OVERDUE: Duration = Duration::from_secs(30);

/// Why nothing is given out before the first look at the MPS control daemons.
const NOT_LOOKED: &str = "it is not known yet whether an MPS control daemon still runs on it";

/// Why holders are not known before the first answer.
pub const NOT_ASKED: &str = "the kubelet has not said yet which pod holds which device";

/// Everything that changes together.
#[derive(Debug, Default)]
pub struct DeviceState {
    /// Who holds what, what is offered, what waits.
    pub allocator: Allocator,
    /// What the MPS control daemons answered, and when they were looked at, since boot.
    answers: Option<(DaemonAnswers, Duration)>,
    /// Which devices are broken.
    node_health: NodeHealth,
    /// When the last observation was started.
    observed: Option<Instant>,
    /// Whether the one after that failed.
    failing: bool,
    /// What is to be said of it.
    unknown: Option<String>,
    stale_since: Option<Instant>,
    /// How often the list of each resource was sent again.
    resends: BTreeMap<String, u64>,
}

/// What the books say at one moment.
#[derive(Clone, Debug, Default)]
pub struct DeviceSnapshot {
    /// What has to be on disk before the offers are made.
    pub assignments: Assignments,
    /// What is offered to pods.
    pub offers: Vec<AdvertisedList>,
    /// Devices that wait for their holders.
    pub waiting: Vec<PendingChange>,
    /// Who holds what.
    pub holders: Vec<DeviceHolder>,
    /// Which devices are broken.
    pub node_health: NodeHealth,
    /// The MPS control daemons of the node.
    pub daemons: Vec<MpsDaemon>,
    /// Whether these are all: who says that there is none takes it from its clients.
    pub daemons_known: bool,
    /// Why it is not known who holds what. Before the first observation that keeps everything from being offered.
    pub unknown: Option<String>,
}

impl DeviceState {
    /// The books of a node on which an earlier agent left `assignments`.
    pub fn restore(assignments: Assignments) -> Self {
        Self {
            allocator: Allocator::restore(assignments),
            ..Self::default()
        }
    }

    /// Takes a new configuration or other hardware into account.
    pub fn want(&mut self, wanted: DesiredDevices) {
        self.allocator.set_desired(wanted);
        self.hold_back();
    }

    /// Takes in what the kubelet says about who holds what.
    pub fn observe(&mut self, observation: KubeletObservation) {
        let now = observation.started;
        self.allocator.observe(observation);
        self.observed = Some(now);
        (self.failing, self.unknown) = (false, None);
        if !self.allocator.waits_for_checkpoint() {
            self.stale_since = None;
        } else if now.saturating_duration_since(*self.stale_since.get_or_insert(now)) >= RESEND {
            self.stale_since = Some(now);
            for resource in self.stuck() {
                *self.resends.entry(resource).or_default() += 1;
            }
        }
        self.hold_back();
    }

    /// Takes in why the kubelet does not say who holds what by `now`; tells whether that changes anything. What it said before
    /// stays.
    pub fn not_observed(&mut self, reason: &str, now: Instant) -> bool {
        let age = self.observed.map(|then| now.saturating_duration_since(then));
        let unknown = match age {
            None => Some(reason.to_owned()),
            Some(age) if age >= OVERDUE => Some(format!(
                "the kubelet has not said for {OVERDUE:?} and longer which pod holds which device; what is offered stays as it is: {reason}"
            )),
            Some(_) => None,
        };
        self.failing = true;
        let changes = self.unknown != unknown;
        self.unknown = unknown;
        changes
    }

    /// Takes in what the MPS control daemons answered by `now`, since boot; tells whether that changes anything.
    pub fn see(&mut self, answers: DaemonAnswers, now: Duration) -> bool {
        let before = self.answers.is_some().then(|| self.daemons());
        self.answers = Some((answers, now));
        let changes = before.as_ref() != Some(&self.daemons());
        if changes {
            self.hold_back();
        }
        changes
    }

    /// Takes in that the daemons cannot be looked at: none of them counts as answering.
    pub fn not_seen(&mut self) -> bool {
        let Some((answers, now)) = self.answers.clone() else {
            return false;
        };
        self.see(answers.into_keys().map(|device| (device, None)).collect(), now)
    }

    /// Takes in which devices are broken; tells whether that changes anything.
    pub fn set_health(&mut self, node_health: NodeHealth) -> bool {
        let changes = self.node_health != node_health;
        self.node_health = node_health;
        if changes {
            self.hold_back();
        }
        changes
    }

    /// The same books with what an earlier agent left, before anything is given out. Which devices are broken stays.
    pub fn reopen(&mut self, left: Self) {
        let node_health = std::mem::take(&mut self.node_health);
        *self = left;
        self.set_health(node_health);
    }

    /// Whether MPS control daemons run, or have to, or may.
    pub fn has_daemons(&self) -> bool {
        self.answers.is_none() || !self.daemons().is_empty()
    }

    /// Whether it is known who holds what.
    pub fn knows_holders(&self) -> bool {
        self.allocator.is_observed() && self.unknown.is_none()
    }

    /// Whether something waits for what the kubelet says next.
    pub fn is_busy(&self) -> bool {
        !self.allocator.is_observed() || self.failing || self.allocator.needs_observation()
    }

    /// What the books say now.
    pub fn snapshot(&self) -> DeviceSnapshot {
        let offer = |list: AdvertisedResource| {
            let resend = self.resends.get(&list.name).copied().unwrap_or_default();
            AdvertisedList {
                list: Arc::new(list),
                resend,
            }
        };
        let not_asked = || (!self.allocator.is_observed()).then(|| NOT_ASKED.to_owned());
        DeviceSnapshot {
            offers: self.allocator.advertised().into_iter().map(offer).collect(),
            holders: self.allocator.holders(),
            node_health: self.node_health.clone(),
            daemons: self.daemons(),
            daemons_known: self.answers.is_some(),
            waiting: self.allocator.pending_changes(),
            assignments: self.allocator.assigned().clone(),
            unknown: self.unknown.clone().or_else(not_asked),
        }
    }

    /// Resources of the devices that wait. A device that is to come has none, and any list helps it.
    fn stuck(&self) -> BTreeSet<String> {
        let saved = self.allocator.assigned();
        let of_device = |waiting: PendingChange| Some(saved.get(&waiting.device)?.resource.clone());
        let stuck: Option<BTreeSet<String>> = self.allocator.pending_changes().into_iter().map(of_device).collect();
        stuck.unwrap_or_else(|| self.allocator.advertised().into_iter().map(|list| list.name).collect())
    }

    /// The MPS control daemons of the node.
    pub fn daemons(&self) -> Vec<MpsDaemon> {
        let mps = self.allocator.mps_devices().into_iter().collect();
        let none = (DaemonAnswers::new(), Duration::ZERO);
        let (answers, now) = self.answers.as_ref().unwrap_or(&none);
        daemons(&mps, answers, *now)
    }

    /// After each change of the allocator, of the daemons or of what is broken: a device that has just become or ceased to be
    /// one of MPS must not be given out with what its daemon was before.
    fn hold_back(&mut self) {
        let mut reasons = match &mut self.answers {
            None => self
                .allocator
                .assigned()
                .keys()
                .map(|device| (device.clone(), NOT_LOOKED.to_owned()))
                .collect(),
            Some((answers, _)) => {
                // Its daemon may have started since the last look, and then it has to end before the device is another's.
                for device in self.allocator.mps_devices() {
                    answers.entry(device).or_insert(None);
                }
                held_back(&self.daemons())
            }
        };
        reasons.extend(self.node_health.reasons());
        if let Some(reason) = &self.node_health.all {
            reasons.extend(
                self.allocator
                    .assigned()
                    .keys()
                    .map(|device| (device.clone(), reason.clone())),
            );
        }
        self.allocator.set_unavailable(reasons);
    }
}

impl DeviceSnapshot {
    /// Whether a device is broken, or its GPU: more is wrong with it than that its MPS daemon has died.
    pub fn is_broken(&self, device: &str) -> bool {
        let gpu = self
            .assignments
            .get(device)
            .and_then(|assignment| assignment.gpu_uuid.as_deref());
        let mut faults = self.node_health.faults.iter().flat_map(|health| health.devices());
        faults.any(|(broken, faults)| {
            (broken == device || Some(broken) == gpu)
                && faults.iter().any(|fault| fault.reason != FaultReason::MpsDaemonDied)
        })
    }
}

#[cfg(test)]
pub mod tests;
