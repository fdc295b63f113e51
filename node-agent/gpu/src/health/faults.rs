//! The faults of a node's devices: which begin and end with an observation.

use super::{
    fault::{Cure, Fault, FaultTransition, is_ignored, needs_no_person},
    observation::{HealthObservation, RunId, is_other},
    probe::{GpuProbe, ProbeResult},
};
use gpunode_config::{HealthRules as Rules, Recovery, describe_xid, is_xid_fault};
use gpunode_crds::{FaultGrade, FaultReason};
use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

/// The faults of a node's devices. Its serialised form survives a restart of the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceFaults {
    #[serde(deserialize_with = "known_faults")]
    pub(super) faults: BTreeMap<String, Vec<Fault>>,
    run: Option<RunId>,
    /// Number of observations that began or renewed a fault.
    ticket: u64,
    /// Devices with a call that failed once.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    doubtful: BTreeSet<String>,
    /// Times since which a device has at least a grade.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    grades: BTreeMap<String, BTreeMap<FaultGrade, Timestamp>>,
    /// Recovery actions by device, where the driver reports one.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    recovery_actions: BTreeMap<String, u32>,
}

impl DeviceFaults {
    /// Returns the ticket for a probe that begins now: the probe does not disprove later observations.
    pub fn ticket(&self) -> u64 {
        self.ticket
    }

    /// Returns the gravest fault of the devices with these UUIDs: a GPU, or a MIG device and its GPU. Of one grade, a GPU that has
    /// not joined its fabric comes first, for which a startup taint waits. Of equally grave ones, a cause comes before the driver's
    /// wish for a reset or reboot, then the oldest.
    pub fn gravest<'a>(&'a self, uuids: &[&str]) -> Option<&'a Fault> {
        let faults = uuids.iter().filter_map(|uuid| self.faults.get(*uuid)).flatten();
        faults.min_by_key(|fault| {
            let waits_for_fabric = fault.reason == FaultReason::FabricNotReady;
            let graver = Reverse((fault.grade(), waits_for_fabric, fault.resolution()));
            (graver, fault.is_wish(), fault.since)
        })
    }

    /// Returns the time since which one of the devices with these UUIDs has at least this grade, by whatever faults.
    pub fn since(&self, uuids: &[&str], grade: FaultGrade) -> Option<Timestamp> {
        let of_device = |uuid: &&str| self.grades.get(*uuid)?.get(&grade).copied();
        uuids.iter().filter_map(of_device).min()
    }

    /// Returns the faulty GPUs and MIG devices by UUID, each with its faults.
    pub fn devices(&self) -> impl Iterator<Item = (&str, &[Fault])> {
        self.faults
            .iter()
            .map(|(device, faults)| (device.as_str(), faults.as_slice()))
    }

    /// Returns true if a call about this device failed once: it counts only if the next probe fails too.
    pub fn doubts(&self, device: &str) -> bool {
        self.doubtful.contains(device)
    }

    /// Returns true if this very device has a fault of this reason.
    pub fn has_fault(&self, device: &str, reason: FaultReason) -> bool {
        self.faults
            .get(device)
            .is_some_and(|faults| faults.iter().any(|fault| fault.reason == reason))
    }

    /// Returns true if the node has booted since the last observed run.
    pub fn is_other_boot(&self, run: &RunId) -> bool {
        self.run
            .as_ref()
            .is_some_and(|before| is_other(&before.boot, &run.boot))
    }

    /// Forgets the faults of devices that are gone. Returns the number of these devices.
    pub fn forget(&mut self, is_gone: impl Fn(&str) -> bool) -> usize {
        let before = self.faults.len();
        self.faults.retain(|device, _| !is_gone(device));
        self.doubtful.retain(|device| !is_gone(device));
        self.grades.retain(|device, _| !is_gone(device));
        self.recovery_actions.retain(|device, _| !is_gone(device));
        before - self.faults.len()
    }

    /// Takes an observation. Returns the faults that it begins and ends, and those that the rules ignore from now on.
    pub fn observe(&mut self, observation: HealthObservation, rules: &Rules, now: Timestamp) -> Vec<FaultTransition> {
        let devices: Vec<_> = self.faults.keys().cloned().collect();
        let ignored = |fault: &Fault| is_ignored(fault.reason, rules);
        let mut transitions: Vec<_> = devices.iter().flat_map(|device| self.end(device, ignored)).collect();
        transitions.extend(self.take(observation, rules, now));
        self.note_grades(now);
        transitions
    }

    fn take(&mut self, observation: HealthObservation, rules: &Rules, now: Timestamp) -> Vec<FaultTransition> {
        let verified = rules.recovery() == Recovery::Verified;
        match observation {
            HealthObservation::Xid(device, number) if is_xid_fault(number, rules) => self
                .begin(device, FaultReason::Xid, Some(number), now)
                .into_iter()
                .collect(),
            HealthObservation::Xid(..) => Vec::new(),
            HealthObservation::Probe(probe) => self.probed(&probe, rules, now),
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
            HealthObservation::Fabric(gpu, true) => self.end(&gpu, |fault| fault.reason == FaultReason::FabricNotReady),
            HealthObservation::Fabric(..) if is_ignored(FaultReason::FabricNotReady, rules) => Vec::new(),
            HealthObservation::Fabric(gpu, false) => self
                .begin(gpu, FaultReason::FabricNotReady, None, now)
                .into_iter()
                .collect(),
            HealthObservation::MpsDaemon(device, false) => self
                .begin(device, FaultReason::MpsDaemonDied, None, now)
                .into_iter()
                .collect(),
            HealthObservation::MpsDaemon(device, true) => {
                self.end(&device, |fault| verified && fault.reason == FaultReason::MpsDaemonDied)
            }
            HealthObservation::Recovered(at) => {
                let devices: Vec<_> = self.faults.keys().cloned().collect();
                // A time in the future was noted before the clock was set back.
                let is_before =
                    |fault: &Fault| !needs_no_person(fault.reason) && (fault.latest < at || fault.latest > now);
                devices.iter().flat_map(|device| self.end(device, is_before)).collect()
            }
        }
    }

    fn probed(&mut self, probe: &GpuProbe, rules: &Rules, now: Timestamp) -> Vec<FaultTransition> {
        let verified = rules.recovery() == Recovery::Verified;
        let mut transitions = Vec::new();
        if probe.result == ProbeResult::Responds {
            self.note_recovery_action(probe);
        }
        let is_sure = self.is_sure(&probe.gpu, probe.result == ProbeResult::Fails);
        for (reason, shown) in probe.findings() {
            let is_doubtful = reason == FaultReason::NotAnswering && !is_sure;
            if shown && (is_doubtful || is_ignored(reason, rules)) {
                continue;
            }
            if shown {
                transitions.extend(self.begin(probe.gpu.clone(), reason, None, now));
            } else if verified || needs_no_person(reason) {
                transitions.extend(self.end(&probe.gpu, |fault| fault.reason == reason));
            }
        }
        if verified && let Some(action) = probe.recovery_action {
            // Another request of the driver has begun above.
            transitions.extend(self.end(&probe.gpu, |fault| {
                fault.is_wish() && fault.recovery_action != Some(action)
            }));
        }
        if verified {
            transitions.extend(self.end(&probe.gpu, |fault| probe.disproves(fault, probe.processes, rules)));
        }
        for instance in &probe.instances {
            let is_sure = self.is_sure(&instance.uuid, !instance.answers);
            if !instance.answers && is_sure {
                transitions.extend(self.begin(instance.uuid.clone(), FaultReason::NotAnswering, None, now));
            } else if instance.answers && verified {
                // An answer of the GPU proves nothing about its MIG device, which has to answer itself.
                transitions.extend(self.end(&instance.uuid, |fault| {
                    fault.reason == FaultReason::NotAnswering || probe.disproves(fault, instance.processes, rules)
                }));
            }
        }
        transitions
    }

    /// Takes the recovery action of a GPU, which grades the XIDs of the GPU and of its MIG devices.
    fn note_recovery_action(&mut self, probe: &GpuProbe) {
        for device in probe
            .instances
            .iter()
            .map(|instance| &instance.uuid)
            .chain([&probe.gpu])
        {
            match probe.recovery_action {
                Some(action) => self.recovery_actions.insert(device.clone(), action),
                None => self.recovery_actions.remove(device),
            };
            for fault in self.faults.get_mut(device).into_iter().flatten() {
                if fault.reason == FaultReason::Xid {
                    fault.recovery_action = probe.recovery_action;
                }
            }
        }
    }

    /// Notes which grades devices have reached or left. A further fault does not move the time of a grade.
    fn note_grades(&mut self, now: Timestamp) {
        self.grades.retain(|device, _| self.faults.contains_key(device));
        for (device, faults) in &self.faults {
            let worst = faults.iter().map(Fault::grade).max();
            let times = self.grades.entry(device.clone()).or_default();
            for grade in [FaultGrade::Degraded, FaultGrade::NoNewWork, FaultGrade::Broken] {
                if Some(grade) <= worst {
                    times.entry(grade).or_insert(now);
                } else {
                    times.remove(&grade);
                }
            }
        }
    }

    /// Returns true if the probe's result for a device counts: a failing call counts only at the second probe in a row.
    fn is_sure(&mut self, device: &str, fails: bool) -> bool {
        let failed = self.doubtful.remove(device);
        if fails && !failed && !self.has_fault(device, FaultReason::NotAnswering) {
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
            // An unknown part keeps its last value, to be compared once it is known again.
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
        self.ticket = self.ticket.saturating_add(1);
        let recovery_action = match reason {
            FaultReason::Xid | FaultReason::RecoveryPending => self.recovery_actions.get(&device).copied(),
            _ => None,
        };
        let known = |xid: &Option<i32>| xid.filter(|xid| describe_xid(*xid).is_some());
        let faults = self.faults.entry(device.clone()).or_default();
        let same = |fault: &&mut Fault| {
            let is_other_wish = fault.is_wish() && fault.recovery_action != recovery_action;
            fault.reason == reason && known(&fault.xid) == known(&xid) && !is_other_wish
        };
        if let Some(fault) = faults.iter_mut().find(same) {
            if reason == FaultReason::Xid {
                (fault.latest, fault.ticket, fault.cure) = (now, self.ticket, Cure::None);
            }
            return None;
        }
        let fault = Fault {
            reason,
            xid,
            recovery_action,
            since: now,
            latest: now,
            ticket: self.ticket,
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

/// Reads faults, and leaves out those of a version that has other reasons.
fn known_faults<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, Vec<Fault>>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum SavedFault {
        Known(Fault),
        Unknown {},
    }
    let saved = BTreeMap::<String, Vec<SavedFault>>::deserialize(deserializer)?;
    let known = saved.into_iter().map(|(device, faults)| {
        let faults = faults.into_iter().filter_map(|fault| match fault {
            SavedFault::Known(fault) => Some(fault),
            SavedFault::Unknown {} => None,
        });
        (device, faults.collect::<Vec<_>>())
    });
    Ok(known.filter(|(_, faults)| !faults.is_empty()).collect())
}
