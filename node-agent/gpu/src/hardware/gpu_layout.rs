//! Mode and instances of a GPU, as they are wanted or were before.

use gpunode_mig::PlacedInstance;
use serde::{Deserialize, Serialize};

/// Mode of a GPU and its GPU instances, each with a place. Each GPU instance has one compute instance that fills it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuLayout {
    /// True if MIG is on.
    pub enabled: bool,
    /// Instances in the order in which they are created; none if MIG is off.
    pub instances: Vec<PlacedInstance>,
}
