//! The limits that instances on one GPU share, and what still fits beside them.

use crate::{
    geometry::{MigGeometry, PlacedInstance},
    profile::GpuInstanceProfile,
};
use std::cmp::Reverse;
use thiserror::Error;

/// The reason for which instances cannot be on one GPU together.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum PlacementObstacle {
    /// More instances of a profile than its `max_count`.
    #[error("a GPU has at most {most} x {profile}, and {wanted} are wanted")]
    TooMany {
        /// Its name.
        profile: String,
        /// Instances wanted.
        wanted: u32,
        /// The most that the board allows.
        most: u32,
    },
    /// Two instances that need the same media engines.
    #[error("{first} and {second} need the same media engines, which a GPU has once")]
    MediaEngines {
        /// Name of a profile.
        first: String,
        /// Name of a profile, which may be the same.
        second: String,
    },
    /// More compute slices than there are.
    #[error("it needs {needed} compute slices, and a GPU has {total}")]
    ComputeSlices {
        /// Slices of all instances.
        needed: u32,
        /// Slices of the GPU.
        total: u32,
    },
    /// More memory slices than there are.
    #[error("it needs {needed} memory slices, and a GPU has {total}")]
    MemorySlices {
        /// Slices of all instances.
        needed: u32,
        /// Slices of the GPU.
        total: u32,
    },
    /// Enough slices, but none of the possible placements are disjoint.
    #[error("there are enough slices, but wherever its instances may begin, two of them overlap")]
    Positions,
    /// It would fit, were it not for instances that stay.
    #[error("it fits a GPU that is free, but not around what is in use: {instances}")]
    InUse {
        /// Instances of which each alone is in the way; if there is none, all that are in use.
        instances: String,
    },
}

/// Instances on a GPU, by profile.
#[derive(Clone, Debug)]
pub(crate) struct Occupancy<'a> {
    geometry: &'a MigGeometry,
    /// In the order of the profiles.
    counts: Vec<u32>,
    /// Compute slices that they have.
    compute: u64,
    /// Memory slices that they have.
    memory: u64,
}

impl<'a> Occupancy<'a> {
    /// Counts `counts` instances of each profile, and `foreign` ones of profiles that the geometry lacks. Nobody knows
    /// the compute slices of the latter: they count as many as memory slices.
    pub(crate) fn new(geometry: &'a MigGeometry, counts: Vec<u32>, foreign: &[PlacedInstance]) -> Self {
        let foreign: u64 = foreign.iter().map(|instance| u64::from(instance.placement.size)).sum();
        let (mut compute, mut memory) = (foreign, foreign);
        for (profile, count) in geometry.profiles.iter().zip(&counts) {
            compute += u64::from(profile.slices) * u64::from(*count);
            memory += u64::from(profile.memory_slices()) * u64::from(*count);
        }
        Self {
            geometry,
            counts,
            compute,
            memory,
        }
    }

    /// Counts the instances on a GPU.
    fn of(geometry: &'a MigGeometry, instances: &[PlacedInstance]) -> Self {
        let is_foreign = |instance: &&PlacedInstance| geometry.profile(instance.profile).is_none();
        let foreign: Vec<PlacedInstance> = instances.iter().filter(is_foreign).copied().collect();
        Self::new(geometry, geometry.counts(instances), &foreign)
    }

    /// Returns the first limit that they exceed. Their places are not looked at.
    pub(crate) fn obstacle(&self) -> Option<PlacementObstacle> {
        let MigGeometry {
            memory_slices,
            compute_slices,
            profiles,
        } = self.geometry;
        let with_count = || profiles.iter().zip(&self.counts);
        if let Some((profile, count)) = with_count().find(|(profile, count)| **count > profile.max_count) {
            return Some(PlacementObstacle::TooMany {
                profile: profile.name.clone(),
                wanted: *count,
                most: profile.max_count,
            });
        }
        // Two instances of a profile show if it excludes itself.
        let there: Vec<_> = with_count()
            .flat_map(|(profile, count)| {
                std::iter::repeat_n(profile, usize::from(*count > 0) + usize::from(*count > 1))
            })
            .collect();
        for (index, first) in there.iter().enumerate() {
            let mut others = there.iter().skip(index + 1);
            if let Some(second) = others.find(|second| first.media().excludes(second.media())) {
                return Some(PlacementObstacle::MediaEngines {
                    first: first.name.clone(),
                    second: second.name.clone(),
                });
            }
        }
        let needed = |slices: u64| u32::try_from(slices).unwrap_or(u32::MAX);
        if self.compute > u64::from(*compute_slices) {
            return Some(PlacementObstacle::ComputeSlices {
                needed: needed(self.compute),
                total: *compute_slices,
            });
        }
        (self.memory > u64::from(*memory_slices)).then(|| PlacementObstacle::MemorySlices {
            needed: needed(self.memory),
            total: *memory_slices,
        })
    }

    /// Returns the number of instances of each profile that fit beside them, each profile for itself, where the memory
    /// slices in `used` are taken. In the order of the profiles.
    pub(crate) fn capacities(&self, used: u64) -> Vec<u32> {
        (0..self.geometry.profiles.len())
            .map(|index| self.capacity(index, used))
            .collect()
    }

    fn capacity(&self, index: usize, used: u64) -> u32 {
        let Some(profile) = self.geometry.profiles.get(index) else {
            return 0;
        };
        let with_count = self.geometry.profiles.iter().zip(&self.counts);
        let mut there = with_count.filter(|(_, count)| **count > 0);
        if there.any(|(other, _)| other.media().excludes(profile.media())) {
            return 0;
        }
        let once = profile.media().excludes(profile.media());
        let by_media = if once { 1 } else { u32::MAX };
        let own = self.counts.get(index).copied().unwrap_or_default();
        let by_count = profile.max_count.saturating_sub(own);
        let compute = u64::from(self.geometry.compute_slices).saturating_sub(self.compute);
        let by_compute = compute.checked_div(u64::from(profile.slices));
        let by_compute = by_compute.map_or(u32::MAX, |count| u32::try_from(count).unwrap_or(u32::MAX));
        // Of ranges of one size, taking each that is free from the left gives the most.
        let mut ranges = profile.placements.clone();
        ranges.sort_unstable();
        let mut used = used;
        let mut by_memory = 0;
        for range in ranges {
            if range.mask() & used == 0 {
                used |= range.mask();
                by_memory += 1;
            }
        }
        by_media.min(by_count).min(by_compute).min(by_memory)
    }
}

/// Returns the places of the profiles in the list, the largest first.
pub(crate) fn largest_first(geometry: &MigGeometry) -> Vec<usize> {
    let mut order: Vec<_> = geometry
        .profiles
        .iter()
        .enumerate()
        .map(|(index, profile)| (Reverse(profile.magnitude()), index))
        .collect();
    order.sort_unstable();
    order.into_iter().map(|(_, index)| index).collect()
}

/// Returns the memory slices of instances as bits.
pub(crate) fn used_slices<'a>(instances: impl IntoIterator<Item = &'a PlacedInstance>) -> u64 {
    let masks = instances.into_iter().map(|instance| instance.placement.mask());
    masks.fold(0, |used, mask| used | mask)
}

/// Returns the number of instances of each profile that could be created beside `instances`, each profile for itself,
/// in the order of the profiles: the answer of `nvmlDeviceGetGpuInstanceRemainingCapacity`.
pub fn remaining_capacity(geometry: &MigGeometry, instances: &[PlacedInstance]) -> Vec<u32> {
    Occupancy::of(geometry, instances).capacities(used_slices(instances))
}

/// Returns the largest profile of which one more instance could be created beside `instances`: the one with the most compute
/// slices, of these the one with the most memory slices. None if nothing fits.
pub fn largest_fitting<'a>(geometry: &'a MigGeometry, instances: &[PlacedInstance]) -> Option<&'a GpuInstanceProfile> {
    let (occupancy, used) = (Occupancy::of(geometry, instances), used_slices(instances));
    let mut order = largest_first(geometry).into_iter();
    let index = order.find(|index| occupancy.capacity(*index, used) > 0)?;
    geometry.profiles.get(index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{boards::MigBoard, profile::SlicePlacement};

    fn obstacle(board: &str, wanted: &[(&str, u32)]) -> Option<String> {
        let geometry = MigBoard::named(board).unwrap().geometry;
        let count = |name: &str| {
            wanted
                .iter()
                .find(|(wanted, _)| *wanted == name)
                .map_or(0, |(_, count)| *count)
        };
        let counts = geometry.profiles.iter().map(|profile| count(&profile.name)).collect();
        let obstacle = Occupancy::new(&geometry, counts, &[]).obstacle();
        obstacle.map(|obstacle| obstacle.to_string())
    }

    #[test]
    fn each_limit_is_named_with_its_numbers() {
        for (board, wanted, expected) in [
            (
                "A100-80GB",
                [("4g.40gb", 2), ("1g.10gb", 1)],
                "a GPU has at most 1 x 4g.40gb, and 2 are wanted",
            ),
            (
                "A100-80GB",
                [("2g.20gb", 3), ("1g.10gb", 2)],
                "it needs 8 compute slices, and a GPU has 7",
            ),
            (
                "A100-80GB",
                [("3g.40gb", 2), ("1g.10gb", 1)],
                "it needs 9 memory slices, and a GPU has 8",
            ),
            (
                "A30",
                [("1g.6gb+me", 1), ("2g.12gb+me", 1)],
                "1g.6gb+me and 2g.12gb+me need the same media engines, which a GPU has once",
            ),
            (
                "RTX-PRO-6000",
                [("1g.24gb", 1), ("1g.24gb+me.all", 1)],
                "1g.24gb and 1g.24gb+me.all need the same media engines, which a GPU has once",
            ),
        ] {
            assert_eq!(obstacle(board, &wanted).as_deref(), Some(expected));
        }
        assert_eq!(
            obstacle("RTX-PRO-6000", &[("1g.24gb+me.all", 1), ("1g.24gb-me", 3)]),
            None
        );
        assert_eq!(obstacle("A100-80GB", &[("1g.10gb", 3), ("4g.40gb", 1)]), None);
    }

    #[test]
    fn remaining_capacity_counts_slices_places_and_engines() {
        let geometry = MigBoard::named("A100-80GB").unwrap().geometry;
        let place = |profile, start, size| PlacedInstance {
            profile,
            placement: SlicePlacement { start, size },
        };
        // 1g, 1g+me, 1g with double memory, 2g, 3g, 4g, 7g.
        assert_eq!(remaining_capacity(&geometry, &[]), [7, 1, 4, 3, 2, 1, 1]);
        assert_eq!(remaining_capacity(&geometry, &[place(5, 0, 4)]), [3, 1, 2, 1, 1, 0, 0]);
        assert_eq!(
            remaining_capacity(&geometry, &[place(9, 0, 4), place(9, 4, 4)]),
            [0; 7],
            "one compute slice is left, and no memory"
        );
        assert_eq!(remaining_capacity(&geometry, &[place(20, 6, 1)]), [6, 0, 3, 3, 1, 1, 0]);
        assert_eq!(
            remaining_capacity(&geometry, &[place(99, 0, 4)]),
            [3, 1, 2, 1, 1, 0, 0],
            "a profile that the board lacks"
        );
    }
}
