//! Slices and profiles of one GPU, and instances on them.

use crate::profile::{GpuInstanceProfile, SlicePlacement};
use serde::{Deserialize, Serialize};

/// Slices and profiles of one GPU: from its board's table, or from NVML.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigGeometry {
    /// Memory slices, at most 64. A placement is a range of them.
    pub memory_slices: u32,
    /// Compute slices. The driver chooses which of them an instance gets.
    pub compute_slices: u32,
    /// Profiles in the order of the driver, base profiles before those with attributes.
    pub profiles: Vec<GpuInstanceProfile>,
}

/// A GPU instance and its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PlacedInstance {
    /// Its memory slices. First, so that instances are ordered by place.
    pub placement: SlicePlacement,
    /// Profile id.
    pub profile: u32,
}

/// An instance that is on the GPU now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PresentInstance {
    /// Profile and place.
    pub instance: PlacedInstance,
    /// True if it must stay, such as while a process uses it.
    pub in_use: bool,
}

impl MigGeometry {
    /// Returns the profile with an id.
    pub fn profile(&self, id: u32) -> Option<&GpuInstanceProfile> {
        self.profiles.iter().find(|profile| profile.id == id)
    }

    /// Returns the place of a profile in the list, by its name.
    pub(crate) fn index_of(&self, name: &str) -> Option<usize> {
        self.profiles.iter().position(|profile| profile.name == name)
    }

    /// Returns the names of all profiles, for messages.
    pub(crate) fn profile_names(&self) -> String {
        let names: Vec<&str> = self.profiles.iter().map(|profile| profile.name.as_str()).collect();
        names.join(", ")
    }

    /// Returns the name of an instance with its first memory slice, such as `4g.40gb@0`.
    pub fn instance_name(&self, instance: &PlacedInstance) -> String {
        let start = instance.placement.start;
        match self.profile(instance.profile) {
            Some(profile) => format!("{}@{start}", profile.name),
            None => format!("profile {}@{start}", instance.profile),
        }
    }

    /// Counts instances by profile, in the order of the profiles. Instances of other profiles are left out.
    pub(crate) fn counts(&self, instances: &[PlacedInstance]) -> Vec<u32> {
        let count = |profile: &GpuInstanceProfile| {
            let same = instances.iter().filter(|instance| instance.profile == profile.id);
            u32::try_from(same.count()).unwrap_or(u32::MAX)
        };
        self.profiles.iter().map(count).collect()
    }
}
