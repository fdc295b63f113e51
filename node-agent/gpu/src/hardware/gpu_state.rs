//! Mode and instances of a GPU, as the driver shows them.

use super::gpu_layout::GpuLayout;
use gpunode_mig::{MigGeometry, PlacedInstance};

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
        let mut instances: Vec<PlacedInstance> = self.instances.iter().map(|instance| instance.placed).collect();
        instances.sort_unstable();
        GpuLayout {
            enabled: self.enabled,
            instances,
        }
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
