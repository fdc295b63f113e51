//! Use of devices by the containers that hold them, beside what they were given.
//!
//! | module | what it does |
//! |---|---|
//! | `given` | what a container was given |
//! | `holder` | the holders of devices, with the UIDs of their pods |
//! | `used` | which processes are a container's, and what they use |
//! | `idle` | how long a container has not used a device |

mod given;
mod holder;
mod idle;
#[cfg(test)]
mod tests;
mod used;

use crate::{Assignment, Device, DeviceSharing};
use given::given_share;
use gpunode_crds::{ContainerUsage, MAX_USAGE_ENTRIES};
pub use holder::{UsageHolder, usage_holders};
pub use idle::IdleClocks;
use idle::IdleKey;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};
use used::{DeviceProcesses, used_share};
pub use used::{ListedProcess, NotTold, ProcessOwner, ProcessesOnGpu, SmSample};

/// One read of a node.
#[derive(Clone, Copy, Debug)]
pub struct UsageInputs<'a> {
    /// Holders of devices.
    pub holders: &'a [UsageHolder],
    /// Devices of the node.
    pub devices: &'a [Device],
    /// Assignments of devices, by UUID.
    pub assigned: &'a BTreeMap<String, Assignment>,
    /// Processes on the GPUs that answered.
    pub gpus: &'a [ProcessesOnGpu],
    /// Owners of processes, by process id; those that have ended have none.
    pub owners: &'a BTreeMap<u32, ProcessOwner>,
}

/// Returns what each container uses of each device that it holds, by namespace, pod, container and device, and the number of further
/// ones. Devices that the node does not have are left out, such as those of companions.
pub fn container_usage(inputs: UsageInputs<'_>, clocks: &mut IdleClocks, now: Instant) -> (Vec<ContainerUsage>, usize) {
    let mut usage = Vec::new();
    let mut seen = BTreeSet::new();
    for of in inputs.holders {
        let holder = &of.holder;
        let Some(device) = inputs.devices.iter().find(|device| device.uuid == holder.device) else {
            continue;
        };
        let assignment = inputs.assigned.get(&device.uuid);
        let sharing = assignment.map_or(DeviceSharing::Whole, |assignment| assignment.sharing);
        let given = given_share(&sharing, device.memory, holder.count);
        let processes = DeviceProcesses {
            gpu: inputs.gpus.iter().find(|gpu| gpu.gpu == device.gpu_uuid),
            instance: device
                .mig
                .as_ref()
                .map(|mig| (mig.facts.gpu_instance, mig.facts.compute_instance)),
            is_mps: matches!(sharing, DeviceSharing::Mps { .. }),
            owners: inputs.owners,
        };
        let of_pod = inputs.holders.iter().filter(|other| {
            other.pod_uid == of.pod_uid
                && other.holder.device == holder.device
                && other.holder.container != holder.container
        });
        let used = used_share(of, of_pod.count() == 0, &processes);
        let key: IdleKey = (of.pod_uid.clone(), holder.container.clone(), device.uuid.clone());
        seen.insert(key.clone());
        let idle = clocks.observe(key, used.is_active, now);
        usage.push(ContainerUsage {
            namespace: holder.namespace.clone(),
            pod: holder.pod.clone(),
            container: holder.container.clone(),
            device: device.uuid.clone(),
            gpu: device.index(),
            processes: used.processes,
            memory_used_bytes: used.memory_bytes,
            memory_given_bytes: given.memory_bytes,
            sm_used_ratio: used.sm_ratio,
            sm_given_ratio: given.sm_ratio,
            idle_seconds: idle.map(|time| time.as_secs()),
            problem: used.problem,
        });
    }
    clocks.retain(&seen);
    let order = |of: &ContainerUsage| {
        (
            of.namespace.clone(),
            of.pod.clone(),
            of.container.clone(),
            of.device.clone(),
        )
    };
    usage.sort_by_key(order);
    let omitted = usage.len().saturating_sub(MAX_USAGE_ENTRIES);
    usage.truncate(MAX_USAGE_ENTRIES);
    (usage, omitted)
}
