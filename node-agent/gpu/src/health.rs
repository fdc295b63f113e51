//! Which devices are broken and by what evidence they are whole again; a pure state machine.
//!
//! Every fault stands for itself: a milder one takes no graver one's place, and each goes by its own evidence, never
//! because time passed. A GPU's faults count for its MIG devices too, those of a MIG device for that one alone.

mod probe;

use crate::{Resolution, xid};
use gpunode_config::{HealthRules as Rules, Recovery};
use gpunode_crds::FaultReason;
use jiff::Timestamp;
pub use probe::{GpuProbe, MigProbe, ProbeResult};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// One thing that is wrong with one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// What is wrong.
    #[serde(rename = "trouble")]
    pub reason: FaultReason,
    /// The XID; of several that the catalog does not have, the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xid: Option<i32>,
    /// When it began.
    pub since: Timestamp,
    /// Since when the device has not been whole, be it for another fault that is over.
    #[serde(rename = "broken_since")]
    unhealthy_since: Timestamp,
    /// When the driver reported it last.
    latest: Timestamp,
    /// Its place among what was observed, so that a probe from before it proves nothing, whatever the clock does.
    seen: u64,
    /// What has been seen since that may have cured it.
    cure: Cure,
}

/// How much was started anew, in rising order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
enum Cure {
    #[default]
    None,
    Reset,
    Boot,
}

/// What tells one run of the machine and of the driver from the next; empty is what is not known, which is no evidence.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunId {
    /// The kernel's boot id.
    pub boot: String,
    /// Anything that changes when the driver is loaded anew.
    pub driver: String,
}

/// What was observed.
#[derive(Clone, Debug)]
pub enum HealthObservation {
    /// The driver reported an XID of the device with this UUID, a GPU or a MIG device.
    Xid(String, i32),
    /// A GPU was looked at.
    Probe(GpuProbe),
    /// This run of machine and driver is the one now.
    Run(RunId),
    /// The devices with these UUIDs were reset: a GPU and its MIG devices.
    Reset(Vec<String>),
    /// Whether the MPS control daemon of the device with this UUID runs.
    MpsDaemon(String, bool),
    /// A person says that what began before is over.
    Recovered(Timestamp),
}

/// A fault that began or ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultTransition {
    /// UUID of the GPU or MIG device.
    pub device: String,
    /// The fault.
    pub fault: Fault,
    /// Whether it began; it ended otherwise.
    pub began: bool,
}

/// The faults of a node's devices. Serialised, it is what survives a restart of the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceFaults {
    faults: BTreeMap<String, Vec<Fault>>,
    run: Option<RunId>,
    seen: u64,
    /// Devices with a call that failed for the first time.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    doubtful: BTreeSet<String>,
}

impl DeviceFaults {
    /// To be asked before a probe begins: what is observed from here on is not disproved by that probe.
    pub fn ticket(&self) -> u64 {
        self.seen
    }

    /// The gravest of what is wrong with a GPU, or with a MIG device or its GPU: of all the devices with these UUIDs.
    pub fn gravest<'a>(&'a self, uuids: &[&str]) -> Option<&'a Fault> {
        let faults = uuids.iter().filter_map(|uuid| self.faults.get(*uuid)).flatten();
        faults.min_by_key(|fault| (std::cmp::Reverse(fault.resolution()), fault.since))
    }

    /// Since when one of the devices with these UUIDs has not been whole. A fault that comes beside others or after them begins
    /// nothing anew.
    pub fn unhealthy_since(&self, uuids: &[&str]) -> Option<Timestamp> {
        let faults = uuids.iter().filter_map(|uuid| self.faults.get(*uuid)).flatten();
        faults.map(|fault| fault.unhealthy_since).min()
    }

    /// The GPUs and MIG devices with which something is wrong, by UUID, each with its faults.
    pub fn devices(&self) -> impl Iterator<Item = (&str, &[Fault])> {
        self.faults
            .iter()
            .map(|(device, faults)| (device.as_str(), faults.as_slice()))
    }

    /// Whether a call about this device failed that counts only if it fails again at the next look.
    pub fn doubts(&self, device: &str) -> bool {
        self.doubtful.contains(device)
    }

    /// Whether this is wrong with this very device.
    pub fn has(&self, device: &str, reason: FaultReason) -> bool {
        self.faults
            .get(device)
            .is_some_and(|faults| faults.iter().any(|fault| fault.reason == reason))
    }

    /// Whether this is another boot of the machine than the last one.
    pub fn is_other_boot(&self, run: &RunId) -> bool {
        self.run
            .as_ref()
            .is_some_and(|before| is_other(&before.boot, &run.boot))
    }

    /// Forgets the faults of devices that are no more; says of how many.
    pub fn forget(&mut self, is_gone: impl Fn(&str) -> bool) -> usize {
        let before = self.faults.len();
        self.faults.retain(|device, _| !is_gone(device));
        self.doubtful.retain(|device| !is_gone(device));
        before - self.faults.len()
    }

    /// Takes in what was observed; says which faults began and ended by it.
    pub fn observe(&mut self, observation: HealthObservation, rules: &Rules, now: Timestamp) -> Vec<FaultTransition> {
        let verified = rules.recovery() == Recovery::Verified;
        match observation {
            HealthObservation::Xid(device, number) if xid::counts(number, rules) => self
                .begin(device, FaultReason::Xid, Some(number), now)
                .into_iter()
                .collect(),
            HealthObservation::Xid(..) => Vec::new(),
            HealthObservation::Probe(probe) => self.probed(&probe, verified, now),
            HealthObservation::Run(run) => {
                self.ran(run);
                Vec::new()
            }
            HealthObservation::Reset(devices) => {
                let hit = self.faults.iter_mut().filter(|(device, _)| devices.contains(device));
                for fault in hit.flat_map(|(_, faults)| faults) {
                    fault.cure = fault.cure.max(Cure::Reset);
                }
                Vec::new()
            }
            HealthObservation::MpsDaemon(device, false) => self
                .begin(device, FaultReason::MpsDaemonDied, None, now)
                .into_iter()
                .collect(),
            HealthObservation::MpsDaemon(device, true) => {
                self.end(&device, |fault| verified && fault.reason == FaultReason::MpsDaemonDied)
            }
            HealthObservation::Recovered(at) => {
                let devices: Vec<_> = self.faults.keys().cloned().collect();
                // What lies ahead was noted by a clock that has been set back since.
                let is_before = |fault: &Fault| fault.latest < at || fault.latest > now;
                devices.iter().flat_map(|device| self.end(device, is_before)).collect()
            }
        }
    }

    fn probed(&mut self, probe: &GpuProbe, verified: bool, now: Timestamp) -> Vec<FaultTransition> {
        let mut transitions = Vec::new();
        let is_sure = self.is_sure(&probe.gpu, probe.result == ProbeResult::Fails);
        for (reason, shown) in probe.findings() {
            if shown && reason == FaultReason::NotAnswering && !is_sure {
                continue;
            }
            if shown {
                transitions.extend(self.begin(probe.gpu.clone(), reason, None, now));
            } else if verified {
                transitions.extend(self.end(&probe.gpu, |fault| fault.reason == reason));
            }
        }
        if verified {
            transitions.extend(self.end(&probe.gpu, |fault| probe.disproves(fault, probe.processes)));
        }
        for instance in &probe.instances {
            let is_sure = self.is_sure(&instance.uuid, !instance.answers);
            if !instance.answers && is_sure {
                transitions.extend(self.begin(instance.uuid.clone(), FaultReason::NotAnswering, None, now));
            } else if instance.answers && verified {
                // That the GPU answers says nothing of its instance, which has to answer too.
                transitions.extend(self.end(&instance.uuid, |fault| {
                    fault.reason == FaultReason::NotAnswering || probe.disproves(fault, instance.processes)
                }));
            }
        }
        transitions
    }

    /// Whether what a look says of a device's calls is beyond doubt: one that fails has to fail in two looks in a row.
    fn is_sure(&mut self, device: &str, fails: bool) -> bool {
        let failed = self.doubtful.remove(device);
        if fails && !failed && !self.has(device, FaultReason::NotAnswering) {
            self.doubtful.insert(device.to_owned());
            return false;
        }
        true
    }

    fn ran(&mut self, mut run: RunId) {
        let cure = match &self.run {
            Some(before) if is_other(&before.boot, &run.boot) => Cure::Boot,
            Some(before) if is_other(&before.driver, &run.driver) => Cure::Reset,
            _ => Cure::None,
        };
        if let Some(before) = self.run.take().filter(|_| cure != Cure::Boot) {
            // What is not known this time is compared when it is known again.
            let known = |now: String, before: String| if now.is_empty() { before } else { now };
            run = RunId {
                boot: known(run.boot, before.boot),
                driver: known(run.driver, before.driver),
            };
        }
        for fault in self.faults.values_mut().flatten() {
            fault.cure = fault.cure.max(cure);
        }
        self.run = Some(run);
    }

    fn begin(
        &mut self,
        device: String,
        reason: FaultReason,
        xid: Option<i32>,
        now: Timestamp,
    ) -> Option<FaultTransition> {
        self.seen = self.seen.saturating_add(1);
        let known = |xid: &Option<i32>| xid.filter(|xid| xid::describe(*xid).is_some());
        let faults = self.faults.entry(device.clone()).or_default();
        let same = |fault: &&mut Fault| fault.reason == reason && known(&fault.xid) == known(&xid);
        if let Some(fault) = faults.iter_mut().find(same) {
            if reason == FaultReason::Xid {
                (fault.latest, fault.seen, fault.cure) = (now, self.seen, Cure::None);
            }
            return None;
        }
        let unhealthy_since = faults.iter().map(|fault| fault.unhealthy_since).min().unwrap_or(now);
        let fault = Fault {
            reason,
            xid,
            since: now,
            unhealthy_since,
            latest: now,
            seen: self.seen,
            cure: Cure::None,
        };
        faults.push(fault.clone());
        Some(FaultTransition {
            device,
            fault,
            began: true,
        })
    }

    fn end(&mut self, device: &str, over: impl Fn(&Fault) -> bool) -> Vec<FaultTransition> {
        let Some(faults) = self.faults.get_mut(device) else {
            return Vec::new();
        };
        let ended: Vec<_> = faults.extract_if(.., |fault| over(fault)).collect();
        if faults.is_empty() {
            self.faults.remove(device);
        }
        let device = device.to_owned();
        ended
            .into_iter()
            .map(|fault| FaultTransition {
                device: device.clone(),
                fault,
                began: false,
            })
            .collect()
    }
}

/// Whether two that are known differ.
fn is_other(before: &str, now: &str) -> bool {
    !before.is_empty() && !now.is_empty() && before != now
}

impl Fault {
    /// What cures it.
    pub fn resolution(&self) -> Resolution {
        match self.reason {
            FaultReason::Xid => self
                .xid
                .and_then(xid::describe)
                .map_or(Resolution::ResetGpu, |(_, action)| action),
            FaultReason::Lost | FaultReason::RebootPending => Resolution::RestartMachine,
            FaultReason::NvLinkDown => Resolution::CheckLinks,
            FaultReason::MpsDaemonDied => Resolution::RestartApp,
            _ => Resolution::ResetGpu,
        }
    }

    /// When it is over, for people: the end of a sentence.
    pub fn waits_for(&self, rules: &Rules) -> &'static str {
        if rules.recovery() == Recovery::Manual {
            return "the annotation gpunode.dev/recovered of the node says so";
        }
        match (self.reason, self.resolution()) {
            (FaultReason::MpsDaemonDied, _) => "an MPS control daemon runs",
            (FaultReason::Xid, Resolution::Ignore | Resolution::RestartApp) => {
                "no process and no pod is on the device, or the driver says that it needs nothing"
            }
            (FaultReason::Xid, Resolution::RestartMachine | Resolution::RestartVm) => {
                "the machine was restarted, or the driver says that the GPU needs nothing"
            }
            (FaultReason::Xid, _) => "the GPU was reset, or the driver says that it needs nothing",
            _ => "the driver no longer shows it",
        }
    }
}

#[cfg(test)]
mod tests;
