//! What one entry of `resources` makes of the devices that it selects.

use super::{
    DesiredDevice, DesiredDevices, DesiredDevicesError, DeviceProblem, DeviceProblemKind, ResourceRules,
    selection::Selection,
};
use crate::{Assignment, Device, DeviceSharing, Gpu};
use gpunode_config::{MigStrategy, ResourceConfig, Sharing, SharingStrategy};

/// Before the profile in the name of a resource of MIG devices, as in NVIDIA's device plugin.
const MIG_RESOURCE: &str = "nvidia.com/mig-";

/// Least compute capability for MPS with limits: Volta.
const MPS_CAPABILITY: (u32, u32) = (7, 0);

/// An entry, ready to be asked.
pub struct Entry<'a> {
    config: &'a ResourceConfig,
    name: String,
    strategy: MigStrategy,
    selection: Selection<'a>,
    replicas: Vec<(Selection<'a>, u32)>,
}

impl<'a> Entry<'a> {
    /// `config` under the node's MIG strategy.
    pub fn new(config: &'a ResourceConfig, strategy: MigStrategy) -> Result<Self, DesiredDevicesError> {
        let name = config.advertised_name();
        let selection = Selection::of_entry(&name, config.devices.as_ref(), strategy)?;
        let per_device = config
            .sharing
            .iter()
            .flat_map(|sharing| sharing.replicas_per_device.iter().flatten());
        let replicas = per_device
            .map(|of| Ok((Selection::within_entry(&name, &of.devices)?, number(of.replicas))))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            config,
            name,
            strategy,
            selection,
            replicas,
        })
    }

    /// Whether it selects `device`.
    pub fn selects(&self, device: &Device) -> bool {
        self.selection.selects(device)
    }

    /// Whether it selects `gpu`, which is divided by MIG into nothing. Under `Mixed` that is one more GPU without MIG
    /// devices and nobody's problem.
    pub fn lacks_instances(&self, gpu: &Gpu) -> bool {
        match self.strategy {
            MigStrategy::None => self.selection.selects(&Device::full(gpu)),
            MigStrategy::Single => self.selection.expects_instances_of(gpu),
            MigStrategy::Mixed => false,
        }
    }

    /// Adds what is offered of the devices that were taken, and the problems that there are.
    pub fn offer(&self, mut taken: Vec<Device>, hollow: &[&Gpu], wanted: &mut DesiredDevices) {
        taken.sort_by_key(Device::order);
        if let Some(problem) = self.without_instances(hollow) {
            wanted.problems.push(problem);
        }
        if self.strategy == MigStrategy::Single {
            if let Some(problem) = self.unequal(&taken) {
                wanted.problems.push(problem);
                return;
            }
            if !hollow.is_empty() {
                return;
            }
        }
        for device in taken {
            match self.sharing_of(&device) {
                Ok(sharing) => self.add(device, sharing, wanted),
                Err(problem) => wanted.problems.push(problem),
            }
        }
    }

    fn add(&self, device: Device, sharing: DeviceSharing, wanted: &mut DesiredDevices) {
        let placement = self.config.sharing.as_ref().map(Sharing::placement).unwrap_or_default();
        let fail_requests_greater_than_one = self.config.fail_requests_greater_than_one();
        let rules = ResourceRules {
            fail_requests_greater_than_one,
            placement,
            allocation: self.config.allocation(),
        };
        wanted.rules.insert(self.name.clone(), rules);
        let assignment = Assignment {
            resource: self.name.clone(),
            sharing,
            gpu_uuid: device.part_of(),
        };
        wanted.devices.push(DesiredDevice { device, assignment });
    }

    fn without_instances(&self, hollow: &[&Gpu]) -> Option<DeviceProblem> {
        let first = hollow.first()?;
        let offered = if self.strategy == MigStrategy::Single {
            "nothing of it is offered"
        } else {
            "it is not offered"
        };
        Some(DeviceProblem {
            resource: self.name.clone(),
            kind: DeviceProblemKind::MigWithoutInstances,
            message: format!(
                "offer {}: {} of its GPUs (the first is GPU {}) have MIG enabled and no MIG device, so {offered}; create \
                 instances or disable MIG there",
                self.name,
                hollow.len(),
                first.index
            ),
        })
    }

    fn unequal(&self, taken: &[Device]) -> Option<DeviceProblem> {
        let first = taken.first()?;
        let attributes = |device: &Device| device.mig.as_ref().map(|mig| mig.attributes);
        let other = taken.iter().find(|device| attributes(device) != attributes(first))?;
        let describe = |device: &Device| match &device.mig {
            Some(mig) => format!("MIG device {} is {}", device.index(), mig.profile),
            None => format!("GPU {} is whole", device.index()),
        };
        Some(DeviceProblem {
            resource: self.name.clone(),
            kind: DeviceProblemKind::MigInstancesUnequal,
            message: format!(
                "offer {}: mig.strategy Single needs equal devices, and {} while {}, so nothing of it is offered; divide \
                 the GPUs alike, select them into several resources, or use Mixed",
                self.name,
                describe(first),
                describe(other)
            ),
        })
    }

    fn sharing_of(&self, device: &Device) -> Result<DeviceSharing, DeviceProblem> {
        let sharing = self.config.sharing.as_ref();
        let replicas = || {
            let own = self
                .replicas
                .iter()
                .find(|(selection, _)| selection.selects(device))
                .map(|(_, replicas)| *replicas);
            own.or_else(|| sharing.and_then(|sharing| sharing.replicas).map(number))
                .unwrap_or(1)
        };
        match self.config.strategy() {
            SharingStrategy::None => Ok(DeviceSharing::Whole),
            SharingStrategy::TimeSlicing => Ok(DeviceSharing::TimeSlicing { replicas: replicas() }),
            SharingStrategy::Mps if device.compute_capability < Some(MPS_CAPABILITY) => Err(DeviceProblem {
                resource: self.name.clone(),
                kind: DeviceProblemKind::MpsUnsupported,
                message: format!(
                    "offer {}: GPU {} ({}) cannot limit MPS clients, which Volta and newer can; share it by TimeSlicing",
                    self.name,
                    device.index(),
                    device.product
                ),
            }),
            SharingStrategy::Mps => Ok(DeviceSharing::Mps { replicas: replicas() }),
            SharingStrategy::Memory => {
                let unit = sharing.map(Sharing::unit).unwrap_or_default();
                let units = device
                    .memory
                    .0
                    .checked_div(unit.0)
                    .and_then(|units| u32::try_from(units).ok())
                    .unwrap_or(0);
                if units == 0 {
                    return Err(DeviceProblem {
                        resource: self.name.clone(),
                        kind: DeviceProblemKind::MemoryBelowUnit,
                        message: format!(
                            "offer {}: GPU {} has {} of memory, less than one unit of {unit}; lower sharing.unit",
                            self.name,
                            device.index(),
                            device.memory
                        ),
                    });
                }
                Ok(DeviceSharing::Memory { unit, units })
            }
        }
    }
}

/// Adds a MIG device that no entry selects, under NVIDIA's name for its profile.
pub fn offer_by_profile(device: Device, wanted: &mut DesiredDevices) {
    let Some(mig) = &device.mig else { return };
    let resource = format!("{MIG_RESOURCE}{}", mig.profile.replace('+', "."));
    wanted.rules.entry(resource.clone()).or_default();
    let assignment = Assignment {
        resource,
        sharing: DeviceSharing::Whole,
        gpu_uuid: device.part_of(),
    };
    wanted.devices.push(DesiredDevice { device, assignment });
}

/// A number of replicas, which the loader has bounded.
fn number(replicas: i32) -> u32 {
    u32::try_from(replicas).unwrap_or(1).max(1)
}
