//! GPUs of the node: look-ups, and the PCI identity that NVML shows.

use gpunode_scenario::{Gpu, ReturnCode};
use nvml_wrapper_sys::bindings::{nvmlPciInfo_t, nvmlPciInfoExt_v1_t};

use crate::{
    handle::{DeviceHandle, compute_number},
    library::Answer,
    node::Node,
};

/// PCI vendor of NVIDIA, in the low half of NVML's device ids.
const VENDOR: u32 = 0x10de;

/// A PCI address; NVML knows functions only as 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PciAddress {
    domain: u32,
    bus: u32,
    device: u32,
}

impl PciAddress {
    /// Reads the forms that `nvmlDeviceGetHandleByPciBusId` takes: `domain:bus:device.function`,
    /// `domain:bus:device` and `bus:device.function`, in hexadecimal.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (address, function) = match text.split_once('.') {
            Some((address, function)) => (address, Some(function)),
            None => (text, None),
        };
        if function.is_some_and(|function| hexadecimal(function) != Some(0)) {
            return None;
        }
        let parts: Vec<_> = address.split(':').map(hexadecimal).collect();
        match (parts.as_slice(), function) {
            ([Some(domain), Some(bus), Some(device)], _) => Some(PciAddress {
                domain: *domain,
                bus: *bus,
                device: *device,
            }),
            ([Some(bus), Some(device)], Some(_)) => Some(PciAddress {
                domain: 0,
                bus: *bus,
                device: *device,
            }),
            _ => None,
        }
    }

    /// `00000000:07:00.0`, the form of NVML since version 3 of the call.
    fn long(self) -> String {
        format!("{:08X}:{:02X}:{:02X}.0", self.domain, self.bus, self.device)
    }

    /// `0000:07:00.0`, the form of older versions.
    fn short(self) -> String {
        format!("{:04X}:{:02X}:{:02X}.0", self.domain, self.bus, self.device)
    }
}

fn hexadecimal(text: &str) -> Option<u32> {
    u32::from_str_radix(text, 16).ok()
}

/// The place of the GPU that `found` accepts.
pub(crate) fn find(node: &Node, found: impl Fn(&Gpu) -> bool) -> Answer<usize> {
    let mut listed = node.listed();
    listed
        .find(|(_, gpu)| found(gpu))
        .map(|(place, _)| place)
        .ok_or(ReturnCode::NotFound)
}

/// Fails if any GPU is lost. A search for a UUID or a serial number looks at one GPU after the other, and `nvml.h` lets it
/// answer `GPU_IS_LOST` "if any GPU has fallen off the bus"; here also when the one that it looks for comes first.
pub(crate) fn search(node: &Node) -> Answer {
    let state = node.state()?;
    let lost = node.listed().find_map(|(_, gpu)| state.gpu(gpu.index).lost_answer());
    lost.map_or(Ok(()), Err)
}

/// The handle of the MIG device with a UUID. Drivers before 470 find no MIG device by it.
pub(crate) fn find_mig(node: &Node, uuid: &str) -> Answer<Option<DeviceHandle>> {
    if uuid.contains('/') {
        return Ok(None);
    }
    let driver = node.driver()?;
    Ok(node.listed().find_map(|(place, _)| {
        let mut devices = driver.gpus.get(place)?.mig_devices();
        let (instance, compute) = devices.find(|(_, compute)| compute.uuid == uuid)?;
        Some(DeviceHandle::of_mig(
            place,
            compute_number(instance.id, compute.id, compute.serial),
        ))
    }))
}

/// The place of the GPU at a PCI address.
pub(crate) fn find_by_address(node: &Node, text: &str) -> Answer<usize> {
    let wanted = PciAddress::parse(text).ok_or(ReturnCode::InvalidArgument)?;
    find(node, |gpu| PciAddress::parse(&gpu.pci_bus_id) == Some(wanted))
}

/// The first fields of `nvmlPciInfo_t` as version 1 of the call had them.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct PciInfoV1 {
    bus_id: [libc::c_char; 16],
    domain: u32,
    bus: u32,
    device: u32,
    pci_device_id: u32,
}

/// And version 2.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct PciInfoV2 {
    start: PciInfoV1,
    pci_sub_system_id: u32,
}

/// PCI identity at an address, as version 3 of the call shows it.
pub(crate) fn pci_info(bus_id: &str, device_id: u16) -> Answer<nvmlPciInfo_t> {
    let address = PciAddress::parse(bus_id).ok_or(ReturnCode::Unknown)?;
    let id = u32::from(device_id) << 16 | VENDOR;
    Ok(nvmlPciInfo_t {
        busIdLegacy: c_string(&address.short()),
        domain: address.domain,
        bus: address.bus,
        device: address.device,
        pciDeviceId: id,
        // No table of subsystem ids exists: a board is its own reference design.
        pciSubSystemId: id,
        busId: c_string(&address.long()),
    })
}

/// PCI identity of a GPU.
pub(crate) fn gpu_pci_info(gpu: &Gpu) -> Answer<nvmlPciInfo_t> {
    pci_info(&gpu.pci_bus_id, gpu.pci_device_id)
}

/// The same with the PCI class. The caller has set `version`.
pub(crate) fn gpu_pci_info_ext(gpu: &Gpu, version: u32) -> Answer<nvmlPciInfoExt_v1_t> {
    let info = gpu_pci_info(gpu)?;
    Ok(nvmlPciInfoExt_v1_t {
        version,
        domain: info.domain,
        bus: info.bus,
        device: info.device,
        pciDeviceId: info.pciDeviceId,
        pciSubSystemId: info.pciSubSystemId,
        baseClass: gpu.board.pci_class() >> 16,
        subClass: gpu.board.pci_class() >> 8 & 0xff,
        busId: info.busId,
    })
}

impl From<nvmlPciInfo_t> for PciInfoV1 {
    fn from(info: nvmlPciInfo_t) -> Self {
        PciInfoV1 {
            bus_id: info.busIdLegacy,
            domain: info.domain,
            bus: info.bus,
            device: info.device,
            pci_device_id: info.pciDeviceId,
        }
    }
}

impl From<nvmlPciInfo_t> for PciInfoV2 {
    fn from(info: nvmlPciInfo_t) -> Self {
        PciInfoV2 {
            start: info.into(),
            pci_sub_system_id: info.pciSubSystemId,
        }
    }
}

/// ASCII text in a fixed buffer, cut if need be, with a NUL at its end.
pub(crate) fn c_string<const N: usize>(text: &str) -> [libc::c_char; N] {
    let mut buffer = [0; N];
    for (to, from) in buffer.iter_mut().zip(text.bytes().take(N.saturating_sub(1))) {
        *to = libc::c_char::try_from(from).unwrap_or_default();
    }
    buffer
}
