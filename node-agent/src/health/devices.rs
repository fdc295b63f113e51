//! The node's devices as people know them: the name of each, and the pods that hold it. Pure.

use crate::driver::hardware::Hardware;
use gpunode_gpu::{Device, DeviceHolder, Gpu};
use std::{collections::BTreeSet, sync::Arc};

/// The devices of the last reading.
pub struct KnownDevices(pub Option<Arc<Hardware>>);

impl KnownDevices {
    fn gpus(&self) -> &[Gpu] {
        self.0
            .as_deref()
            .and_then(Hardware::inventory)
            .map_or(&[], |inventory| &inventory.gpus)
    }

    /// Returns the UUID of a GPU's MIG device by its ids of GPU instance and compute instance.
    pub fn part(&self, gpu: &str, instance: (u32, u32)) -> Option<&str> {
        let parts = &self.gpus().iter().find(|of| of.uuid == gpu)?.mig_devices;
        let found = parts
            .iter()
            .find(|mig| (mig.facts.gpu_instance, mig.facts.compute_instance) == instance)?;
        Some(&found.facts.uuid)
    }

    /// Returns whether the node has this GPU or MIG device. While some GPU is unreadable, every device may be that one.
    pub fn has(&self, device: &str) -> bool {
        let reading = self.0.as_deref().and_then(|hardware| hardware.reading.as_ref());
        if reading.is_none_or(|reading| !reading.unreadable.is_empty()) {
            return true;
        }
        let is_it = |gpu: &Gpu| gpu.uuid == device || gpu.mig_devices.iter().any(|mig| mig.facts.uuid == device);
        self.gpus().iter().any(is_it)
    }

    /// Returns a name such as `GPU 3`, or `GPU 3:1` for a MIG device of it.
    pub fn name(&self, device: &str) -> String {
        self.index(device).map_or_else(
            || "a GPU that has left the node".to_owned(),
            |index| format!("GPU {index}"),
        )
    }

    /// Returns the index, such as `3`, or `3:1` for a MIG device.
    pub fn index(&self, device: &str) -> Option<String> {
        let inventory = self.0.as_deref().and_then(Hardware::inventory)?;
        let devices = Device::all(inventory);
        let known = devices.iter().find(|known| known.uuid == device);
        known.map(Device::index)
    }

    /// Returns the pods that hold a device or one of its MIG devices, as `NAMESPACE/NAME`.
    pub fn pods(&self, device: &str, holders: &[DeviceHolder]) -> BTreeSet<String> {
        let parts = self
            .gpus()
            .iter()
            .filter(|gpu| gpu.uuid == device)
            .flat_map(|gpu| &gpu.mig_devices);
        let hit: BTreeSet<&str> = parts.map(|mig| mig.facts.uuid.as_str()).chain([device]).collect();
        let holders = holders.iter().filter(|holder| hit.contains(holder.device.as_str()));
        holders
            .map(|holder| format!("{}/{}", holder.namespace, holder.pod))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::{hardware::DriverState, nvml::DriverReading};
    use gpunode_gpu::{Inventory, MigDevice, MigInstance};

    #[test]
    fn what_has_left_the_node_is_not_there() {
        let mig_devices = vec![MigInstance {
            facts: MigDevice {
                uuid: "MIG-1".to_owned(),
                ..MigDevice::default()
            },
            ..MigInstance::default()
        }];
        let gpus = vec![Gpu {
            uuid: "GPU-1".to_owned(),
            mig_devices,
            ..Gpu::default()
        }];
        let reading = DriverReading {
            inventory: Inventory {
                gpus,
                ..Inventory::default()
            },
            ..DriverReading::default()
        };
        let hardware = Hardware {
            reading: Some(reading),
            driver: DriverState::Answers,
            ..Hardware::default()
        };
        let devices = KnownDevices(Some(Arc::new(hardware)));
        assert_eq!(
            ["GPU-1", "MIG-1", "GPU-2"].map(|device| devices.has(device)),
            [true, true, false]
        );
        assert!(KnownDevices(None).has("GPU-2"), "no reading yet");
    }
}
