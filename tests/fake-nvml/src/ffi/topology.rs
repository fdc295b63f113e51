//! Paths between GPUs, NVLinks, CPUs and memory nearby, fabric.

use std::ffi::{c_uint, c_ulong};

use gpunode_scenario::ReturnCode;
use nvml_wrapper_sys::bindings::{
    nvmlGpuFabricInfo_t, nvmlGpuFabricInfo_v2_t, nvmlGpuFabricInfo_v3_t, nvmlPciInfo_t, nvmlReturn_t,
};

use super::{
    on_gpu,
    pointer::{Out, OutArray, struct_version},
};
use crate::{
    fabric,
    handle::DeviceHandle,
    inventory::PciInfoV2,
    library::{self, Answer},
    links,
    node::GpuCall,
};

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetTopologyCommonAncestor(
    device: DeviceHandle,
    peer: DeviceHandle,
    level: Out<c_uint>,
) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetTopologyCommonAncestor", device, |gpu| {
        let peer = library::gpu("nvmlDeviceGetTopologyCommonAncestor", peer)?;
        level.set(links::common_ancestor(gpu.hardware()?, peer.hardware()?)? as u32)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetTopologyNearestGpus(
    device: DeviceHandle,
    level: c_uint,
    count: Out<c_uint>,
    devices: OutArray<DeviceHandle>,
) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetTopologyNearestGpus", device, |gpu| {
        let mut nearest: Vec<_> = links::nearest(gpu.node(), gpu.hardware()?, level)
            .into_iter()
            .map(DeviceHandle::of_gpu)
            .collect();
        match usize::try_from(count.get()?) {
            // The caller asks how many there are.
            Ok(0) => count.set(c_uint::try_from(nearest.len()).unwrap_or_default()),
            // Unlike elsewhere in NVML, asking for fewer is no error.
            Ok(room) => {
                nearest.truncate(room);
                count.set(c_uint::try_from(nearest.len()).unwrap_or_default())?;
                devices.set(room, &nearest)
            }
            Err(_) => Err(ReturnCode::InvalidArgument),
        }
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceOnSameBoard(
    device: DeviceHandle,
    peer: DeviceHandle,
    same: Out<std::ffi::c_int>,
) -> nvmlReturn_t {
    on_gpu("nvmlDeviceOnSameBoard", device, |gpu| {
        let peer = library::gpu("nvmlDeviceOnSameBoard", peer)?;
        same.set(i32::from(peer.index() == gpu.index()))
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetP2PStatus(
    device: DeviceHandle,
    peer: DeviceHandle,
    capability: c_uint,
    status: Out<c_uint>,
) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetP2PStatus", device, |gpu| {
        let peer = library::gpu("nvmlDeviceGetP2PStatus", peer)?;
        status.set(links::p2p_status(gpu.hardware()?, peer.hardware()?, capability)?)
    })
}

/// A call of `function` on an `NVLink` of a GPU.
fn on_link(function: &str, device: DeviceHandle, link: c_uint, body: impl FnOnce(&GpuCall) -> Answer) -> nvmlReturn_t {
    on_gpu(function, device, |gpu| match gpu.state().failing_links.get(&link) {
        Some(code) => Err(*code),
        None => body(gpu),
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetNvLinkState(device: DeviceHandle, link: c_uint, active: Out<c_uint>) -> nvmlReturn_t {
    on_link("nvmlDeviceGetNvLinkState", device, link, |gpu| {
        let hardware = gpu.hardware()?;
        let is_up = match links::port(hardware, link)? {
            Some(port) => links::may_be_up(gpu.node(), hardware, port)? && !fabric::keeps_down(gpu, port)?,
            None => false,
        };
        active.set(u32::from(is_up && !gpu.state().links_down.contains(&link)))
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetNvLinkVersion(device: DeviceHandle, link: c_uint, version: Out<c_uint>) -> nvmlReturn_t {
    on_link("nvmlDeviceGetNvLinkVersion", device, link, |gpu| {
        version.set(links::active(gpu.hardware()?, link)?.version)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetNvLinkCapability(
    device: DeviceHandle,
    link: c_uint,
    capability: c_uint,
    result: Out<c_uint>,
) -> nvmlReturn_t {
    on_link("nvmlDeviceGetNvLinkCapability", device, link, |gpu| {
        result.set(links::capability(gpu.hardware()?, link, capability)?)
    })
}

fn remote_pci_info(gpu: &GpuCall, link: c_uint) -> Answer<nvmlPciInfo_t> {
    links::remote_pci_info(gpu.node(), links::active(gpu.hardware()?, link)?)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetNvLinkRemotePciInfo(
    device: DeviceHandle,
    link: c_uint,
    pci: Out<PciInfoV2>,
) -> nvmlReturn_t {
    on_link("nvmlDeviceGetNvLinkRemotePciInfo", device, link, |gpu| {
        pci.set(remote_pci_info(gpu, link)?.into())
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetNvLinkRemotePciInfo_v2(
    device: DeviceHandle,
    link: c_uint,
    pci: Out<nvmlPciInfo_t>,
) -> nvmlReturn_t {
    on_link("nvmlDeviceGetNvLinkRemotePciInfo_v2", device, link, |gpu| {
        pci.set(remote_pci_info(gpu, link)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetNvLinkRemoteDeviceType(
    device: DeviceHandle,
    link: c_uint,
    remote: Out<c_uint>,
) -> nvmlReturn_t {
    on_link("nvmlDeviceGetNvLinkRemoteDeviceType", device, link, |gpu| {
        remote.set(links::remote_device_type(links::active(gpu.hardware()?, link)?))
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetNumaNodeId(device: DeviceHandle, node: Out<c_uint>) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetNumaNodeId", device, |gpu| {
        node.set(links::memory_node(gpu.hardware()?)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetCpuAffinity(device: DeviceHandle, words: c_uint, cpus: OutArray<c_ulong>) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetCpuAffinity", device, |gpu| {
        let set = links::cpu_affinity(gpu.hardware()?, words)?;
        cpus.set(set.len(), &set)
    })
}

/// Both scopes are the same here: a socket is one NUMA node.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetCpuAffinityWithinScope(
    device: DeviceHandle,
    words: c_uint,
    cpus: OutArray<c_ulong>,
    _scope: c_uint,
) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetCpuAffinityWithinScope", device, |gpu| {
        let set = links::cpu_affinity(gpu.hardware()?, words)?;
        cpus.set(set.len(), &set)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMemoryAffinity(
    device: DeviceHandle,
    words: c_uint,
    nodes: OutArray<c_ulong>,
    _scope: c_uint,
) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetMemoryAffinity", device, |gpu| {
        let set = links::memory_affinity(gpu.hardware()?, words)?;
        nodes.set(set.len(), &set)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetGpuFabricInfo(device: DeviceHandle, info: Out<nvmlGpuFabricInfo_t>) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetGpuFabricInfo", device, |gpu| info.set(fabric::info(gpu)?))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetGpuFabricInfoV(device: DeviceHandle, info: Out<nvmlGpuFabricInfo_v3_t>) -> nvmlReturn_t {
    on_gpu("nvmlDeviceGetGpuFabricInfoV", device, |gpu| {
        let version = info.version()?;
        if version == struct_version::<nvmlGpuFabricInfo_v2_t>(2) {
            info.as_version().set(fabric::info_v2(gpu, version)?)
        } else {
            info.require_version(3)?;
            info.set(fabric::info_v3(gpu, version)?)
        }
    })
}
