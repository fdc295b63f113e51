//! Reads the links between the GPUs of a node.

use super::raw::{self, RemoteDevice};
use gpunode_gpu::{Gpu, GpuLink, LinkLevel};
use nvml_wrapper::{Device, enum_wrappers::device::TopologyLevel, struct_wrappers::device::PciInfo};

/// Maximum number of NVLinks of a GPU (`NVML_NVLINK_MAX_LINKS` of NVML 13).
const MAX_NVLINKS: u32 = 36;

/// PCI domain, bus and device.
type PciAddress = (u32, u32, u32);

/// Remote ends of the active NVLinks of one GPU.
#[derive(Default)]
struct NvLinks {
    direct: Vec<PciAddress>,
    to_switch: u32,
}

/// Returns the links of each GPU to the others; `devices` are the same GPUs. A call that fails leaves a link unknown. `begin`
/// receives the UUID of each GPU before calls about it.
pub fn between(gpus: &[Gpu], devices: &[Device<'_>], begin: impl Fn(Option<&str>)) -> Vec<Vec<GpuLink>> {
    let ends: Vec<(Option<PciAddress>, NvLinks)> = gpus
        .iter()
        .zip(devices)
        .map(|(gpu, device)| {
            begin(Some(&gpu.uuid));
            (device.pci_info().ok().map(|pci| address(&pci)), active_nvlinks(device))
        })
        .collect();
    let all = || gpus.iter().zip(devices).zip(&ends);
    all()
        .map(|((gpu, device), (_, own))| {
            begin(Some(&gpu.uuid));
            all()
                .filter(|((peer, _), _)| peer.index != gpu.index)
                .map(|((peer, other), (at, theirs))| GpuLink {
                    peer: peer.index,
                    level: level(device, other),
                    nvlinks: Some(nvlinks(own, theirs, *at)).filter(|count| *count > 0),
                })
                .collect()
        })
        .collect()
}

fn nvlinks(own: &NvLinks, theirs: &NvLinks, at: Option<PciAddress>) -> u32 {
    let direct = own.direct.iter().filter(|end| Some(**end) == at).count();
    u32::try_from(direct)
        .unwrap_or(u32::MAX)
        .saturating_add(own.to_switch.min(theirs.to_switch))
}

fn active_nvlinks(device: &Device<'_>) -> NvLinks {
    let mut links = NvLinks::default();
    for number in 0..MAX_NVLINKS {
        let link = device.link_wrapper_for(number);
        // A number without an answer is no end: the numbers of a board's NVLinks may have gaps.
        if !link.is_active().unwrap_or_default() {
            continue;
        }
        match raw::remote_device_type(device, number) {
            Some(RemoteDevice::Switch) => links.to_switch += 1,
            Some(RemoteDevice::Other) => {}
            // Drivers before 465 lack the call; a link without an answer counts as direct.
            Some(RemoteDevice::Gpu) | None => links
                .direct
                .extend(link.remote_pci_info().ok().map(|pci| address(&pci))),
        }
    }
    links
}

fn address(pci: &PciInfo) -> PciAddress {
    (pci.domain, pci.bus, pci.device)
}

fn level(one: &Device<'_>, other: &Device<'_>) -> LinkLevel {
    match one.nvml().topology_common_ancestor(one, other) {
        Ok(TopologyLevel::Internal) => LinkLevel::Internal,
        Ok(TopologyLevel::Single) => LinkLevel::Pix,
        Ok(TopologyLevel::Multiple) => LinkLevel::Pxb,
        Ok(TopologyLevel::HostBridge) => LinkLevel::Phb,
        Ok(TopologyLevel::Node) => LinkLevel::Node,
        Ok(TopologyLevel::System) => LinkLevel::Sys,
        Err(_) => LinkLevel::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn direct_links_count_for_their_end_and_switched_ones_for_every_gpu() {
        let (here, there, elsewhere) = ((0, 6, 0), (0, 7, 0), (0, 8, 0));
        let direct = NvLinks {
            direct: vec![there, there, elsewhere],
            to_switch: 0,
        };
        let back = NvLinks {
            direct: vec![here, here],
            to_switch: 0,
        };
        assert_eq!(nvlinks(&direct, &back, Some(there)), 2);
        assert_eq!(nvlinks(&direct, &back, None), 0);
        let switched = |to_switch| NvLinks {
            direct: Vec::new(),
            to_switch,
        };
        assert_eq!(nvlinks(&switched(12), &switched(11), Some(there)), 11);
        assert_eq!(nvlinks(&switched(12), &switched(0), Some(there)), 0);
    }
}
