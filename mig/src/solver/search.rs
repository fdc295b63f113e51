//! Finds the best places for numbers of instances, by a complete search that solves each partial problem once.

use crate::{
    geometry::{MigGeometry, PlacedInstance, PresentInstance},
    limits::{Occupancy, largest_first, used_slices},
};
use std::collections::HashMap;

/// A GPU and the instances on it.
pub(super) struct Neighbourhood<'a> {
    pub(super) geometry: &'a MigGeometry,
    /// Instances that must stay, by place.
    pub(super) in_use: Vec<PlacedInstance>,
    /// The others.
    pub(super) idle: Vec<PlacedInstance>,
    /// Numbers of instances that must stay, in the order of the profiles.
    pub(super) counts_in_use: Vec<u32>,
    /// Instances that must stay and whose profiles the geometry lacks.
    pub(super) foreign: Vec<PlacedInstance>,
}

/// Places of the instances that are not in use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Arrangement {
    /// Idle instances among `placed`.
    pub(super) kept: u32,
    /// Instances of each profile that still fit, each profile for itself, the largest profile first.
    pub(super) room: Vec<u32>,
    /// In no order.
    pub(super) placed: Vec<PlacedInstance>,
}

impl<'a> Neighbourhood<'a> {
    pub(super) fn new(geometry: &'a MigGeometry, present: &[PresentInstance]) -> Self {
        let (in_use, idle): (Vec<&PresentInstance>, Vec<_>) = present.iter().partition(|present| present.in_use);
        let instances = |present: Vec<&PresentInstance>| {
            let mut instances: Vec<PlacedInstance> = present.into_iter().map(|present| present.instance).collect();
            instances.sort_unstable();
            instances
        };
        let in_use = instances(in_use);
        let is_foreign = |instance: &&PlacedInstance| geometry.profile(instance.profile).is_none();
        Self {
            geometry,
            counts_in_use: geometry.counts(&in_use),
            foreign: in_use.iter().filter(is_foreign).copied().collect(),
            in_use,
            idle: instances(idle),
        }
    }

    /// Returns the best arrangement in which there are `wanted` instances of each profile, those in use included, and
    /// no others but those in use. None if there is none.
    pub(super) fn arrange(&self, wanted: &[u32]) -> Option<Arrangement> {
        self.search(wanted).and_then(|mut search| search.best_arrangement())
    }

    /// Prepares the search. None if the numbers exceed a limit of the GPU.
    pub(super) fn search(&self, wanted: &[u32]) -> Option<PlacementSearch<'_>> {
        let in_use = || wanted.iter().zip(&self.counts_in_use);
        let totals = in_use().map(|(wanted, in_use)| *wanted.max(in_use)).collect();
        let occupancy = Occupancy::new(self.geometry, totals, &self.foreign);
        if occupancy.obstacle().is_some() {
            return None;
        }
        let order = largest_first(self.geometry);
        let missing: Vec<u32> = in_use()
            .map(|(wanted, in_use)| wanted.saturating_sub(*in_use))
            .collect();
        let tasks = order.iter().filter_map(|index| {
            let profile = self.geometry.profiles.get(*index)?;
            let mut places: Vec<PlacedInstance> = profile
                .placements
                .iter()
                .map(|placement| PlacedInstance {
                    placement: *placement,
                    profile: profile.id,
                })
                .collect();
            places.sort_unstable();
            Some(SearchTask {
                count: *missing.get(*index)?,
                places,
            })
        });
        Some(PlacementSearch {
            tasks: tasks.filter(|task| task.count > 0).collect(),
            idle: &self.idle,
            used: used_slices(&self.in_use),
            occupancy,
            order,
            known: HashMap::new(),
        })
    }
}

/// Instances of one profile that need a place.
struct SearchTask {
    count: u32,
    places: Vec<PlacedInstance>,
}

/// A search for places. What it has left to do depends on its state alone: the number of instances is given, so every
/// complete arrangement has the same compute slices and media engines, and differs in memory slices only.
pub(super) struct PlacementSearch<'a> {
    /// The largest profile first.
    tasks: Vec<SearchTask>,
    idle: &'a [PlacedInstance],
    /// Memory slices in use.
    used: u64,
    /// All instances, once they are placed.
    occupancy: Occupancy<'a>,
    /// Profiles, the largest first.
    order: Vec<usize>,
    known: HashMap<SearchState, Option<Arrangement>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct SearchState {
    task: usize,
    /// Instances of the task that have a place.
    done: u32,
    /// First place of the task that may be taken: the order of equal instances does not count.
    from: usize,
    used: u64,
}

impl PlacementSearch<'_> {
    pub(super) fn best_arrangement(&mut self) -> Option<Arrangement> {
        self.best(SearchState {
            task: 0,
            done: 0,
            from: 0,
            used: self.used,
        })
    }

    /// Returns the number of partial problems that were solved.
    #[cfg(test)]
    pub(super) fn states(&self) -> usize {
        self.known.len()
    }

    fn best(&mut self, state: SearchState) -> Option<Arrangement> {
        if let Some(known) = self.known.get(&state) {
            return known.clone();
        }
        let found = self.solve(state);
        self.known.insert(state, found.clone());
        found
    }

    fn solve(&mut self, state: SearchState) -> Option<Arrangement> {
        let Some(task) = self.tasks.get(state.task) else {
            let capacities = self.occupancy.capacities(state.used);
            let room = self.order.iter().filter_map(|index| capacities.get(*index).copied());
            return Some(Arrangement {
                room: room.collect(),
                ..Arrangement::default()
            });
        };
        if state.done == task.count {
            return self.best(SearchState {
                task: state.task + 1,
                done: 0,
                from: 0,
                used: state.used,
            });
        }
        let places = task.places.iter().enumerate().skip(state.from);
        let free: Vec<(usize, PlacedInstance)> = places
            .filter(|(_, place)| place.placement.mask() & state.used == 0)
            .map(|(index, place)| (index, *place))
            .collect();
        let mut best: Option<Arrangement> = None;
        for (index, place) in free {
            let rest = self.best(SearchState {
                done: state.done + 1,
                from: index + 1,
                used: state.used | place.placement.mask(),
                ..state
            });
            let Some(mut rest) = rest else { continue };
            rest.kept += u32::from(self.idle.contains(&place));
            let is_better = |best: &Arrangement| (rest.kept, &rest.room) > (best.kept, &best.room);
            if best.as_ref().is_none_or(is_better) {
                rest.placed.push(place);
                best = Some(rest);
            }
        }
        best
    }
}
