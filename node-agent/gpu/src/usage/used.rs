//! The processes of a container, and what they use of a device.
//!
//! A process is a container's if its cgroup is one of the pod, and if no other container of the pod holds the device or its cgroup
//! is that of the container. Samples of SM use also come from processes on no list, and from some that have ended since: those may
//! have been anybody's on the GPU, so nobody counts as idle then. The same is true if the driver counts the work of MPS clients for
//! their server.

use super::holder::UsageHolder;
use std::collections::BTreeMap;

/// Processes on one GPU, as the driver tells them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessesOnGpu {
    /// UUID of the GPU.
    pub gpu: String,
    /// Processes on it; the reason if the driver does not list them.
    pub processes: Result<Vec<ListedProcess>, NotTold>,
    /// Samples of SM use since the last read; the reason if the driver has none, as while MIG is on.
    pub samples: Result<Vec<SmSample>, NotTold>,
}

/// Reason why the driver does not tell something.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotTold(pub String);

/// A process on a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListedProcess {
    /// Process id.
    pub pid: u32,
    /// Ids of GPU instance and compute instance; none without MIG.
    pub instance: Option<(u32, u32)>,
    /// Memory that it uses; none if the driver does not tell.
    pub memory_bytes: Option<u64>,
}

/// A sample of the use of the streaming multiprocessors (SM) by a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmSample {
    /// Process id.
    pub pid: u32,
    /// Part of the time, in percent.
    pub percent: u32,
}

/// Owner of a process that runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessOwner {
    /// UID of its pod; none for a process of the host.
    pub pod_uid: Option<String>,
    /// Name of its container; none if it was not looked up, or not found.
    pub container: Option<String>,
    /// True for an MPS server that gpunode runs.
    pub is_mps_server: bool,
}

/// Processes on one device.
#[derive(Clone, Copy, Debug)]
pub struct DeviceProcesses<'a> {
    /// Those on its GPU; none if the GPU did not answer.
    pub gpu: Option<&'a ProcessesOnGpu>,
    /// Ids of GPU instance and compute instance of a MIG device.
    pub instance: Option<(u32, u32)>,
    /// True if MPS shares the device.
    pub is_mps: bool,
    /// Owners of processes, by process id.
    pub owners: &'a BTreeMap<u32, ProcessOwner>,
}

/// The share of a device that a container uses.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UsedShare {
    pub processes: Option<usize>,
    pub memory_bytes: Option<u64>,
    pub sm_ratio: Option<f64>,
    /// True if it uses the device, or may do so; none if nobody can tell.
    pub is_active: Option<bool>,
    /// Reason for figures that are missing.
    pub problem: Option<String>,
}

/// Relation of a process to a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relation {
    Own,
    /// It may be the container's.
    Unclear,
    Other,
}

/// Returns what a container uses of a device. `is_only` if no other container of its pod holds the device.
pub fn used_share(holder: &UsageHolder, is_only: bool, on: &DeviceProcesses<'_>) -> UsedShare {
    let missing = |problem: &str| UsedShare {
        problem: Some(problem.to_owned()),
        ..UsedShare::default()
    };
    let Some(uid) = &holder.pod_uid else {
        return missing("the kubelet's checkpoint does not have its pod");
    };
    let Some(gpu) = on.gpu else {
        return missing("the GPU does not answer");
    };
    let relation = |pid: u32| match on.owners.get(&pid) {
        None => Relation::Unclear,
        Some(owner) if owner.is_mps_server && on.is_mps => Relation::Unclear,
        Some(owner) if owner.pod_uid.as_ref() != Some(uid) => Relation::Other,
        Some(_) if is_only => Relation::Own,
        Some(owner) => match &owner.container {
            Some(name) if *name == holder.holder.container => Relation::Own,
            Some(_) => Relation::Other,
            None => Relation::Unclear,
        },
    };
    let processes = match &gpu.processes {
        Ok(processes) => processes,
        Err(reason) => return missing(&format!("the driver does not list processes: {reason}")),
    };
    let on_device = processes
        .iter()
        .filter(|process| on.instance.is_none() || process.instance == on.instance);
    // A process may be on several lists, with all its memory on each.
    let mut memory: BTreeMap<u32, Option<u64>> = BTreeMap::new();
    let mut is_unclear = false;
    for process in on_device {
        match relation(process.pid) {
            Relation::Own => {
                let known = memory.entry(process.pid).or_insert(process.memory_bytes);
                *known = known.zip(process.memory_bytes).map(|(one, other)| one.max(other));
            }
            // A process that has ended uses nothing, and a server has no memory of its clients.
            Relation::Unclear => is_unclear |= on.owners.get(&process.pid).is_some_and(|owner| !owner.is_mps_server),
            Relation::Other => {}
        }
    }
    if is_unclear {
        return missing("nothing tells which container of the pod its processes belong to");
    }
    let sum = |sum: Option<u64>, of: &Option<u64>| Some(sum?.saturating_add((*of)?));
    let memory_bytes = memory.values().fold(Some(0), sum);
    let mut used = UsedShare {
        processes: Some(memory.len()),
        memory_bytes,
        problem: memory_bytes
            .is_none()
            .then(|| "the driver does not tell the memory of processes".to_owned()),
        ..UsedShare::default()
    };
    match &gpu.samples {
        Ok(samples) if on.instance.is_none() => {
            let of = |wanted: Relation| {
                let of_relation = samples.iter().filter(move |sample| relation(sample.pid) == wanted);
                of_relation.fold(0, |sum: u32, sample| sum.saturating_add(sample.percent))
            };
            let (own, unclear) = (of(Relation::Own), of(Relation::Unclear));
            used.is_active = Some(own > 0 || unclear > 0);
            let is_of_server = |sample: &SmSample| on.owners.get(&sample.pid).is_some_and(|owner| owner.is_mps_server);
            if on.is_mps && samples.iter().any(is_of_server) {
                used.problem = Some("the driver counts the SM use of MPS clients for their server".to_owned());
            } else {
                used.sm_ratio = Some(f64::from(own.min(100)) / 100.0);
            }
        }
        samples => {
            used.is_active = Some(!memory.is_empty());
            let reason = samples.as_ref().err();
            let reason = reason.map_or("it is a MIG device", |NotTold(reason)| reason.as_str());
            let problem = || format!("the driver does not tell the SM use of processes: {reason}");
            used.problem.get_or_insert_with(problem);
        }
    }
    used
}
