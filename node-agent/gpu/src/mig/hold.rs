//! Devices that no container may get because of layouts.

use crate::Device;
use std::collections::BTreeSet;

/// Devices of one GPU that no container may get.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceHold {
    /// True for the GPU as a whole, with its MIG devices.
    pub gpu: bool,
    /// UUIDs of MIG devices.
    pub devices: BTreeSet<String>,
}

/// Holds of a node, and its GPUs that have a layout in the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayoutHolds {
    /// UUIDs of held MIG devices, and of GPUs that are held with their MIG devices.
    pub devices: BTreeSet<String>,
    /// UUIDs of the GPUs that have a layout, or are on the way to it.
    pub laid_out: BTreeSet<String>,
    /// Those of them that do not get on: something blocks the change, or it failed.
    pub stuck: BTreeSet<String>,
}

impl LayoutHolds {
    /// Adds the hold of a GPU.
    pub fn add(&mut self, gpu: &str, hold: &DeviceHold) {
        self.devices.extend(hold.devices.iter().cloned());
        self.devices.extend(hold.gpu.then(|| gpu.to_owned()));
    }

    /// Returns true if no container may get a device.
    pub fn has(&self, device: &Device) -> bool {
        [&device.uuid, &device.gpu_uuid]
            .into_iter()
            .any(|uuid| self.devices.contains(uuid))
    }
}
