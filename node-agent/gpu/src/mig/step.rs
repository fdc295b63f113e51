//! The next call of the driver on the way to a layout. The state alone decides, so that any process can go on where another
//! one was killed.

use crate::{GpuInstance, GpuLayout, GpuMigState};
use gpunode_mig::PlacedInstance;
use std::fmt;

/// One call of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MigStep {
    /// Destroys a compute instance.
    DestroyCompute {
        /// Id of its GPU instance.
        gpu_instance: u32,
        /// Its id.
        compute_instance: u32,
    },
    /// Destroys a GPU instance without compute instances.
    Destroy {
        /// Its id.
        gpu_instance: u32,
    },
    /// Turns MIG on or off, on a GPU without instances.
    SetMode(bool),
    /// Creates a GPU instance at a place.
    Create(PlacedInstance),
    /// Creates the compute instance that fills a GPU instance.
    CreateCompute {
        /// Id of the GPU instance.
        gpu_instance: u32,
    },
}

impl fmt::Display for MigStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DestroyCompute {
                gpu_instance,
                compute_instance,
            } => write!(
                f,
                "destroy compute instance {compute_instance} of GPU instance {gpu_instance}"
            ),
            Self::Destroy { gpu_instance } => write!(f, "destroy GPU instance {gpu_instance}"),
            Self::SetMode(true) => f.write_str("turn MIG on"),
            Self::SetMode(false) => f.write_str("turn MIG off"),
            Self::Create(placed) => write!(
                f,
                "create a GPU instance of profile {} at slice {}",
                placed.profile, placed.placement.start
            ),
            Self::CreateCompute { gpu_instance } => {
                write!(f, "create the compute instance of GPU instance {gpu_instance}")
            }
        }
    }
}

/// Returns the next step from `state` to `wanted`; none once they are equal. What goes goes first, then the mode changes, then
/// instances come, in the order of `wanted`.
pub fn next_step(wanted: &GpuLayout, state: &GpuMigState) -> Option<MigStep> {
    let stays = |instance: &&GpuInstance| wanted.enabled && wanted.instances.contains(&instance.placed);
    if let Some(leaving) = state.instances.iter().find(|instance| !stays(instance)) {
        return Some(match leaving.compute.first() {
            Some(compute) => MigStep::DestroyCompute {
                gpu_instance: leaving.id,
                compute_instance: compute.id,
            },
            None => MigStep::Destroy {
                gpu_instance: leaving.id,
            },
        });
    }
    let is_partial = |instance: &&GpuInstance| !instance.is_whole() && !instance.compute.is_empty();
    if let Some(partial) = state.instances.iter().find(is_partial) {
        return partial.compute.first().map(|compute| MigStep::DestroyCompute {
            gpu_instance: partial.id,
            compute_instance: compute.id,
        });
    }
    if state.enabled != wanted.enabled {
        return Some(MigStep::SetMode(wanted.enabled));
    }
    wanted.instances.iter().find_map(|placed| match state.instance(placed) {
        None => Some(MigStep::Create(*placed)),
        Some(instance) if instance.compute.is_empty() => Some(MigStep::CreateCompute {
            gpu_instance: instance.id,
        }),
        Some(_) => None,
    })
}
