//! Fills in what a probe cannot know by itself: links that went down, and processes of pods. Pure.

use super::{devices::KnownDevices, store::SavedHealth};
use crate::driver::nvml::probe::{LinkEnds, ProbeTarget};
use gpunode_gpu::{DeviceHolder, FaultReason, Gpu, GpuProbe};
use std::collections::BTreeSet;

/// Returns the target of a probe. `links_read` are the GPUs whose NVLinks this process has read.
pub fn target(gpu: &Gpu, ticket: u64, saved: &SavedHealth, links_read: &BTreeSet<String>) -> ProbeTarget {
    let instances = gpu.mig_devices.iter().map(|mig| (mig.index, mig.facts.uuid.clone()));
    let instances: Vec<(u32, String)> = instances.collect();
    let processes = instances
        .iter()
        .map(|(_, uuid)| uuid)
        .chain([&gpu.uuid])
        .any(|device| saved.health.has_fault(device, FaultReason::Xid));
    let links = saved
        .links
        .get(&gpu.uuid)
        .filter(|_| links_read.contains(&gpu.uuid))
        .cloned();
    ProbeTarget {
        gpu: gpu.uuid.clone(),
        pci_bus_id: gpu.pci_bus_id.clone(),
        ticket,
        instances,
        links,
        link_ends: saved.link_ends.get(&gpu.uuid).cloned().unwrap_or_default(),
        fabric: gpu.fabric.clone(),
        processes,
    }
}

/// Compares the NVLinks of a GPU that are up with those before. `links` is none while links do not count.
pub fn compare_links(
    probe: &mut GpuProbe,
    links: Option<Vec<u32>>,
    saved: &mut SavedHealth,
    links_read: &mut BTreeSet<String>,
) {
    let Some(links) = links else {
        // Links that were up before count again once links do.
        links_read.remove(&probe.gpu);
        return;
    };
    if links_read.insert(probe.gpu.clone()) {
        // Links that an earlier agent saw count, too.
        let before = saved.links.entry(probe.gpu.clone()).or_default();
        probe.link_down = Some(before.iter().any(|link| !links.contains(link)));
        before.extend(links);
        before.sort_unstable();
        before.dedup();
    }
}

/// Saves the other ends of NVLinks; a link that was not read keeps its own.
pub fn save_link_ends(gpu: &str, ends: LinkEnds, saved: &mut SavedHealth) {
    if ends.is_empty() {
        return;
    }
    let known = saved.link_ends.entry(gpu.to_owned()).or_default();
    known.retain(|(link, _)| ends.iter().all(|(read, _)| read != link));
    known.extend(ends);
    known.sort_unstable();
}

/// Adds the pods that hold a GPU to its processes: the driver may hide processes of containers, so a GPU that a pod holds
/// never counts as idle. `known_holders` gives none while the kubelet does not tell the holders.
pub fn count_pods(
    probe: &mut GpuProbe,
    devices: &KnownDevices,
    known_holders: impl FnOnce() -> Option<Vec<DeviceHolder>>,
) {
    let instances = probe
        .instances
        .iter_mut()
        .map(|instance| (&instance.uuid, &mut instance.processes));
    let all = instances.chain([(&probe.gpu, &mut probe.processes)]);
    let mut counted = all
        .filter_map(|(device, processes)| Some((device, (*processes)?, processes)))
        .peekable();
    if counted.peek().is_none() {
        return;
    }
    let holders = known_holders();
    for (device, count, processes) in counted {
        *processes = holders
            .as_ref()
            .map(|holders| count + devices.pods(device, holders).len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_link_stays_until_it_is_read_again() {
        let ends = |ends: &[(u32, &str)]| -> LinkEnds {
            ends.iter()
                .map(|(link, bus_id)| (*link, (*bus_id).to_owned()))
                .collect()
        };
        let mut saved = SavedHealth::default();
        save_link_ends("GPU-1", ends(&[(0, "a"), (1, "b")]), &mut saved);
        save_link_ends("GPU-1", ends(&[]), &mut saved);
        save_link_ends("GPU-1", ends(&[(2, "c"), (1, "c")]), &mut saved);
        assert_eq!(saved.link_ends["GPU-1"], ends(&[(0, "a"), (1, "c"), (2, "c")]));
        let gpu = Gpu {
            uuid: "GPU-1".to_owned(),
            ..Gpu::default()
        };
        let target = target(&gpu, 0, &saved, &BTreeSet::new());
        assert_eq!(target.link_ends.len(), 3);
    }
}
