//! Paths between GPUs, and to their host bridge and CPUs.

use gpunode_scenario::{Gpu, NvLink, NvLinkEnd, PcieLevel, ReturnCode};
use nvml_wrapper_sys::bindings::{
    nvmlGpuP2PCapsIndex_enum_NVML_P2P_CAPS_INDEX_NVLINK as P2P_NVLINK,
    nvmlGpuP2PCapsIndex_enum_NVML_P2P_CAPS_INDEX_UNKNOWN as P2P_UNKNOWN,
    nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_IOH_TOPOLOGY_NOT_SUPPORTED as P2P_TOPOLOGY,
    nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_NOT_SUPPORTED as P2P_NOT_SUPPORTED,
    nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_OK as P2P_OK,
    nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_GPU as REMOTE_GPU,
    nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH as REMOTE_SWITCH,
    nvmlNvLinkCapability_enum_NVML_NVLINK_CAP_COUNT as CAPABILITIES,
    nvmlNvLinkCapability_enum_NVML_NVLINK_CAP_P2P_ATOMICS as CAP_P2P_ATOMICS,
    nvmlNvLinkCapability_enum_NVML_NVLINK_CAP_P2P_SUPPORTED as CAP_P2P,
    nvmlNvLinkCapability_enum_NVML_NVLINK_CAP_VALID as CAP_VALID, nvmlPciInfo_t,
};

use crate::{inventory, library::Answer, node::Node};

/// CPUs of one simulated NUMA node; node N has CPUs 16 N to 16 N + 15.
const CPUS_PER_NUMA_NODE: usize = 16;
/// The board with Grace CPUs.
const GRACE_BOARD: &str = "NVIDIA GB200";
/// The first NUMA node after those of the two CPUs.
const FIRST_MEMORY_NODE: u32 = 2;
/// PCI device id of the `NVSwitches` of DGX A100; no other is told apart.
const SWITCH_DEVICE_ID: u16 = 0x1af1;

/// The PCIe path between two GPUs.
pub(crate) fn common_ancestor(gpu: &Gpu, peer: &Gpu) -> Answer<PcieLevel> {
    usize::try_from(peer.index)
        .ok()
        .and_then(|peer| gpu.pcie_levels.get(peer))
        .copied()
        .ok_or(ReturnCode::Unknown)
}

/// The places of the other GPUs at exactly `level`.
pub(crate) fn nearest(node: &Node, gpu: &Gpu, level: u32) -> Vec<usize> {
    node.listed()
        .filter(|(_, peer)| peer.index != gpu.index)
        .filter(|(_, peer)| common_ancestor(gpu, peer).is_ok_and(|found| found as u32 == level))
        .map(|(place, _)| place)
        .collect()
}

/// Returns the peer-to-peer status of two GPUs for `capability`.
pub(crate) fn p2p_status(gpu: &Gpu, peer: &Gpu, capability: u32) -> Answer<u32> {
    if capability >= P2P_UNKNOWN {
        return Err(ReturnCode::InvalidArgument);
    }
    let linked = nvlinked(gpu, peer);
    Ok(if linked {
        P2P_OK
    } else if capability == P2P_NVLINK {
        P2P_NOT_SUPPORTED
    } else if common_ancestor(gpu, peer)? == PcieLevel::System {
        // Peer traffic does not pass the interconnect between sockets.
        P2P_TOPOLOGY
    } else {
        P2P_OK
    })
}

fn nvlinked(gpu: &Gpu, peer: &Gpu) -> bool {
    gpu.links.iter().any(|link| match &link.remote {
        NvLinkEnd::Gpu { index } => *index == peer.index,
        // All GPUs on a switch reach each other through it.
        switch @ NvLinkEnd::Switch { .. } => peer.links.iter().any(|other| other.remote == *switch),
    })
}

/// The NVLink behind a port, if anything is connected to it.
pub(crate) fn port(gpu: &Gpu, port: u32) -> Answer<Option<&NvLink>> {
    let ports = gpu.board.nvlink.ok_or(ReturnCode::NotSupported)?;
    if port >= ports.links {
        return Err(ReturnCode::InvalidArgument);
    }
    Ok(usize::try_from(port).ok().and_then(|port| gpu.links.get(port)))
}

/// The NVLink behind a port; `NOT_SUPPORTED` where nothing is connected.
pub(crate) fn active(gpu: &Gpu, number: u32) -> Answer<&NvLink> {
    port(gpu, number)?.ok_or(ReturnCode::NotSupported)
}

/// A link between two GPUs is down while either of them is divided or lost.
pub(crate) fn may_be_up(node: &Node, gpu: &Gpu, link: &NvLink) -> Answer<bool> {
    let NvLinkEnd::Gpu { index } = &link.remote else {
        return Ok(true);
    };
    let peer = node.state()?.gpu(*index);
    let divided = |gpu: &Gpu| gpu.mig.is_some();
    let driver = node.driver()?;
    let mut listed = node.listed().filter_map(|(place, _)| driver.gpus.get(place));
    let is_peer_divided = listed.any(|peer| peer.index == *index && divided(peer));
    Ok(!(divided(gpu) || is_peer_divided || peer.lost || peer.unlisted))
}

/// Returns whether a connected port has the capability.
pub(crate) fn capability(gpu: &Gpu, number: u32, capability: u32) -> Answer<u32> {
    active(gpu, number)?;
    match capability {
        CAP_P2P | CAP_P2P_ATOMICS | CAP_VALID => Ok(1),
        other if other < CAPABILITIES => Ok(0),
        _ => Err(ReturnCode::InvalidArgument),
    }
}

/// PCI identity of the far end.
pub(crate) fn remote_pci_info(node: &Node, link: &NvLink) -> Answer<nvmlPciInfo_t> {
    match &link.remote {
        NvLinkEnd::Switch { pci_bus_id } => inventory::pci_info(pci_bus_id, SWITCH_DEVICE_ID),
        NvLinkEnd::Gpu { index } => {
            let place = inventory::find(node, |gpu| gpu.index == *index)?;
            inventory::gpu_pci_info(node.gpu(place).ok_or(ReturnCode::Unknown)?)
        }
    }
}

/// Kind of the far end.
pub(crate) fn remote_device_type(link: &NvLink) -> u32 {
    match link.remote {
        NvLinkEnd::Gpu { .. } => REMOTE_GPU,
        NvLinkEnd::Switch { .. } => REMOTE_SWITCH,
    }
}

/// The CPUs near a GPU, as a bit set of `words` words.
pub(crate) fn cpu_affinity(gpu: &Gpu, words: u32) -> Answer<Vec<libc::c_ulong>> {
    let first = numa_node(gpu)? * CPUS_PER_NUMA_NODE;
    bit_set(first..first + CPUS_PER_NUMA_NODE, words)
}

/// The NUMA node near a GPU, as a bit set of `words` words.
pub(crate) fn memory_affinity(gpu: &Gpu, words: u32) -> Answer<Vec<libc::c_ulong>> {
    let node = numa_node(gpu)?;
    bit_set(node..node + 1, words)
}

/// The NUMA node that the GPU's own memory is, without CPUs: on Grace alone, where these follow the nodes of the CPUs.
pub(crate) fn memory_node(gpu: &Gpu) -> Answer<u32> {
    if gpu.board.name == GRACE_BOARD {
        Ok(FIRST_MEMORY_NODE + gpu.index)
    } else {
        Err(ReturnCode::NotSupported)
    }
}

fn numa_node(gpu: &Gpu) -> Answer<usize> {
    usize::try_from(gpu.numa_node).map_err(|_| ReturnCode::NotSupported)
}

fn bit_set(bits: std::ops::Range<usize>, words: u32) -> Answer<Vec<libc::c_ulong>> {
    let words = usize::try_from(words).map_err(|_| ReturnCode::InvalidArgument)?;
    let width = libc::c_ulong::BITS as usize;
    if words == 0 {
        return Err(ReturnCode::InvalidArgument);
    }
    if words * width < bits.end {
        return Err(ReturnCode::InsufficientSize);
    }
    let mut set = vec![0; words];
    for bit in bits {
        if let Some(word) = set.get_mut(bit / width) {
            *word |= 1 << (bit % width);
        }
    }
    Ok(set)
}
