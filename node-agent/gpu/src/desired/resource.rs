//! One entry of `resources`: sharing, problems and rules of the devices that it selects.

use super::{
    devices::{DesiredDevice, DesiredDevices, DeviceProblem, DeviceProblemKind},
    error::DesiredDevicesError,
    rules::ResourceRules,
    selector::DeviceSelection,
};
use crate::{Assignment, Device, DeviceSharing, Gpu, MigInstance};
use gpunode_config::{MigStrategy, ResourceConfig, Sharing, SharingStrategy};

/// Prefix of a profile in the name of a MIG resource, as in NVIDIA's device plugin.
const MIG_RESOURCE: &str = "nvidia.com/mig-";

/// Lowest compute capability whose MPS has limits: Volta.
const MPS_CAPABILITY: (u32, u32) = (7, 0);

/// One entry of `resources` with its globs compiled.
pub struct ResourceEntry<'a> {
    config: &'a ResourceConfig,
    name: String,
    strategy: MigStrategy,
    selection: DeviceSelection<'a>,
    replicas: Vec<(DeviceSelection<'a>, u32)>,
}

impl<'a> ResourceEntry<'a> {
    /// Compiles `config` under the node's MIG strategy.
    pub fn new(config: &'a ResourceConfig, strategy: MigStrategy) -> Result<Self, DesiredDevicesError> {
        let name = config.advertised_name();
        let selection = DeviceSelection::of_entry(&name, config.devices.as_ref(), strategy)?;
        let per_device = config
            .sharing
            .iter()
            .flat_map(|sharing| sharing.replicas_per_device.iter().flatten());
        let replicas = per_device
            .map(|of| Ok((DeviceSelection::within_entry(&name, &of.devices)?, number(of.replicas))))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            config,
            name,
            strategy,
            selection,
            replicas,
        })
    }

    /// Returns true if the entry selects `device`.
    pub fn selects(&self, device: &Device) -> bool {
        self.selection.selects(device)
    }

    /// Returns true if the entry needs MIG devices of `gpu`, which has MIG enabled and none. Under `Mixed` no entry does.
    pub fn lacks_instances(&self, gpu: &Gpu) -> bool {
        match self.strategy {
            MigStrategy::None => self.selection.selects(&Device::full(gpu)),
            MigStrategy::Single => self.selection.expects_instances_of(gpu),
            MigStrategy::Mixed => false,
        }
    }

    /// Adds the devices that the entry selects to `desired`, or their problems. GPUs that are `stuck` on the way to their layout
    /// are a problem of an entry that has no device beside them.
    pub fn add_devices(
        &self,
        mut taken: Vec<Device>,
        without_instances: &[&Gpu],
        stuck: &[&Gpu],
        desired: &mut DesiredDevices,
    ) {
        taken.sort_by_key(Device::order);
        if let Some(problem) = self.instances_missing(without_instances) {
            desired.problems.push(problem);
        }
        if taken.is_empty()
            && let Some(problem) = self.layout_missing(stuck)
        {
            desired.problems.push(problem);
        }
        if self.strategy == MigStrategy::Single {
            if let Some(problem) = self.instances_unequal(&taken) {
                desired.problems.push(problem);
                return;
            }
            if !without_instances.is_empty() {
                return;
            }
        }
        for device in taken {
            match self.sharing_of(&device) {
                Ok(sharing) => self.add(device, sharing, desired),
                Err(problem) => desired.problems.push(problem),
            }
        }
    }

    fn add(&self, device: Device, sharing: DeviceSharing, desired: &mut DesiredDevices) {
        let placement = self.config.sharing.as_ref().map(Sharing::placement).unwrap_or_default();
        let fail_requests_greater_than_one = self.config.fail_requests_greater_than_one();
        let rules = ResourceRules {
            fail_requests_greater_than_one,
            placement,
            allocation: self.config.allocation(),
        };
        desired.rules.insert(self.name.clone(), rules);
        let assignment = Assignment {
            resource: self.name.clone(),
            sharing,
            gpu_uuid: device.part_of(),
        };
        desired.devices.push(DesiredDevice { device, assignment });
    }

    fn instances_missing(&self, without_instances: &[&Gpu]) -> Option<DeviceProblem> {
        let first = without_instances.first()?;
        let advertised = if self.strategy == MigStrategy::Single {
            "no device of this resource"
        } else {
            "none of them"
        };
        Some(DeviceProblem {
            resource: self.name.clone(),
            kind: DeviceProblemKind::MigWithoutInstances,
            message: format!(
                "resource {}: {} of its GPUs (first: GPU {}) have MIG enabled and no MIG device, so gpunode advertises \
                 {advertised}; create MIG instances or disable MIG on these GPUs",
                self.name,
                without_instances.len(),
                first.index
            ),
        })
    }

    fn layout_missing(&self, stuck: &[&Gpu]) -> Option<DeviceProblem> {
        let first = stuck.iter().find(|gpu| self.lacks_instances(gpu))?;
        Some(DeviceProblem {
            resource: self.name.clone(),
            kind: DeviceProblemKind::MigWithoutInstances,
            message: format!(
                "resource {}: gpunode advertises no device of this resource, because its GPUs (first: GPU {}) do not get the \
                 MIG layout of the configuration; condition MigLayout says why",
                self.name, first.index
            ),
        })
    }

    fn instances_unequal(&self, taken: &[Device]) -> Option<DeviceProblem> {
        let first = taken.first()?;
        let parts = |device: &Device| device.mig.as_ref().map(MigInstance::parts);
        let other = taken.iter().find(|device| parts(device) != parts(first))?;
        let describe = |device: &Device| match &device.mig {
            Some(mig) => format!("MIG device {} is {}", device.index(), mig.facts.profile),
            None => format!("GPU {} is not divided", device.index()),
        };
        Some(DeviceProblem {
            resource: self.name.clone(),
            kind: DeviceProblemKind::MigInstancesUnequal,
            message: format!(
                "resource {}: mig.strategy Single needs equal devices, but {} and {}, so gpunode advertises no device of \
                 this resource; divide the GPUs alike, select them into several resources, or use Mixed",
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
                    "resource {}: GPU {} ({}) is older than Volta, so MPS cannot limit its clients; share it with TimeSlicing",
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
                            "resource {}: GPU {} has {} of memory, less than one unit of {unit}; lower sharing.unit",
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
pub fn add_by_profile(device: Device, desired: &mut DesiredDevices) {
    let Some(mig) = &device.mig else { return };
    let resource = format!("{MIG_RESOURCE}{}", mig.facts.profile.replace('+', "."));
    desired.rules.entry(resource.clone()).or_default();
    let assignment = Assignment {
        resource,
        sharing: DeviceSharing::Whole,
        gpu_uuid: device.part_of(),
    };
    desired.devices.push(DesiredDevice { device, assignment });
}

/// Returns a number of replicas; the loader has checked its range.
fn number(replicas: i32) -> u32 {
    u32::try_from(replicas).unwrap_or(1).max(1)
}
