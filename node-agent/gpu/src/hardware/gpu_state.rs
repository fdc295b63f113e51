//! Mode and instances of a GPU, as the driver shows them.

use super::gpu_layout::GpuLayout;
use gpunode_mig::{GpuInstanceProfile, MigGeometry, PlacedInstance, largest_fitting};

/// MIG of one GPU that supports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuMigState {
    /// True if MIG is on.
    pub enabled: bool,
    /// Mode after the next reset or boot; differs from `enabled` while a change of the mode is pending.
    pub pending: bool,
    /// True for boards before Hopper, on which a change of the mode resets the GPU. They keep the mode over a reboot; later
    /// boards forget it (NVIDIA's MIG user guide, "Enable MIG Mode").
    pub mode_needs_reset: bool,
    /// Virtual machines that the GPU belongs to, or has.
    pub virtualization: GpuVirtualization,
    /// Profiles and slices.
    pub geometry: MigGeometry,
    /// GPU instances by place; none while MIG is off.
    pub instances: Vec<GpuInstance>,
}

/// A GPU instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuInstance {
    /// NVML's id, which later instances get again.
    pub id: u32,
    /// Profile and place.
    pub placed: PlacedInstance,
    /// Its compute instances by id.
    pub compute: Vec<ComputeInstance>,
}

/// A compute instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComputeInstance {
    /// NVML's id within the GPU instance.
    pub id: u32,
    /// UUID of the MIG device; none if the driver does not tell.
    pub uuid: Option<String>,
    /// True if it has all compute slices of the GPU instance.
    pub fills: bool,
}

/// Virtual machines that a GPU belongs to, or has (`nvmlGpuVirtualizationMode_t`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GpuVirtualization {
    /// A GPU of this machine.
    #[default]
    None,
    /// This machine is virtual and has the GPU for itself.
    Passthrough,
    /// This machine is virtual and has a part of a GPU, or its GPU is cut for virtual machines.
    Virtual,
}

impl GpuMigState {
    /// Returns mode and instances, in the order of their places.
    pub fn layout(&self) -> GpuLayout {
        let mut instances = self.placed();
        instances.sort_unstable();
        GpuLayout {
            enabled: self.enabled,
            instances,
        }
    }

    /// Returns the largest profile of which one more instance could be created now; none if nothing fits, or if MIG is off.
    pub fn largest_fitting(&self) -> Option<&GpuInstanceProfile> {
        largest_fitting(&self.geometry, &self.placed()).filter(|_| self.enabled)
    }

    fn placed(&self) -> Vec<PlacedInstance> {
        self.instances.iter().map(|instance| instance.placed).collect()
    }

    /// Returns the instance at a place with a profile.
    pub fn instance(&self, placed: &PlacedInstance) -> Option<&GpuInstance> {
        self.instances.iter().find(|instance| instance.placed == *placed)
    }
}

impl GpuInstance {
    /// Returns true if one compute instance has all of it, as in every layout.
    pub fn is_whole(&self) -> bool {
        matches!(self.compute.as_slice(), [only] if only.fills)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpunode_mig::{MigBoard, parse_instances};

    #[test]
    fn largest_profile_fits_beside_all_instances_and_none_while_mig_is_off() {
        let geometry = MigBoard::named("A100-80GB").unwrap().geometry;
        let fits = |enabled: bool, instances: &[&str]| {
            let instances = parse_instances(instances, &geometry).unwrap().into_iter();
            let state = GpuMigState {
                enabled,
                pending: enabled,
                mode_needs_reset: true,
                virtualization: GpuVirtualization::None,
                geometry: geometry.clone(),
                instances: instances
                    .map(|placed| GpuInstance {
                        id: 1,
                        placed,
                        compute: Vec::new(),
                    })
                    .collect(),
            };
            state.largest_fitting().map(|profile| profile.name.clone())
        };
        assert_eq!(fits(true, &[]).as_deref(), Some("7g.80gb"));
        assert_eq!(fits(true, &["4g.40gb@0"]).as_deref(), Some("3g.40gb"));
        assert_eq!(fits(true, &["1g.10gb@0", "3g.40gb@4"]).as_deref(), Some("2g.20gb"));
        assert_eq!(fits(true, &["7g.80gb@0"]), None);
        assert_eq!(fits(false, &[]), None);
    }
}
