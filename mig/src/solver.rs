//! Places a layout around instances that must stay, or says why that fails and what fits instead.
//!
//! | module | what it does |
//! |---|---|
//! | `search` | finds the best places for numbers of instances |
//! | `nearest` | finds the layout that fits and differs least from the wanted one |

mod nearest;
mod search;
#[cfg(test)]
mod tests;

use crate::{
    geometry::{MigGeometry, PlacedInstance, PresentInstance},
    layout::MigLayout,
    limits::{Occupancy, PlacementObstacle},
};
use nearest::nearest;
use search::{Arrangement, Neighbourhood};
use thiserror::Error;

/// The instances of a layout and their places. Each list is ordered by place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlacedLayout {
    /// Instances of the layout that are there already and keep their place.
    pub kept: Vec<PlacedInstance>,
    /// Instances of the layout that have to be created.
    pub created: Vec<PlacedInstance>,
    /// Instances that the layout does not have, or has fewer of, and that must stay.
    pub surplus: Vec<PlacedInstance>,
    /// Instances that have to be destroyed first.
    pub removed: Vec<PlacedInstance>,
    /// Instances of each profile that still fit, each profile for itself, the largest profile first.
    pub room: Vec<u32>,
}

impl PlacedLayout {
    /// Returns the instances that are on the GPU afterwards, by place.
    pub fn instances(&self) -> Vec<PlacedInstance> {
        let mut all = [self.kept.as_slice(), &self.created, &self.surplus].concat();
        all.sort_unstable();
        all
    }
}

/// A layout that a GPU cannot have.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{obstacle}; {}", nearest_text(.nearest))]
pub struct NoPlacement {
    /// The reason.
    pub obstacle: PlacementObstacle,
    /// The layout that fits and differs least: as many of the wanted instances as fit, then smaller ones for those that
    /// do not.
    pub nearest: MigLayout,
}

fn nearest_text(nearest: &MigLayout) -> String {
    if nearest.is_empty() {
        "nothing of it fits".to_owned()
    } else {
        format!("the nearest layout that fits is {nearest}")
    }
}

/// Places the instances of a layout on a GPU with `present` instances. Those in use stay; they count as wanted as far
/// as the layout has their profile. Of all possibilities it takes the one that keeps the most other instances; of these
/// the one that leaves room for the largest profile, then for the most of it, and so on with smaller profiles; of these
/// the one with the largest instances at the lowest slices. The same arguments always have the same result.
///
/// The places are searched completely: with at most 12 memory slices, at most some thousand partial solutions differ.
pub fn solve(
    geometry: &MigGeometry,
    wanted: &MigLayout,
    present: &[PresentInstance],
) -> Result<PlacedLayout, NoPlacement> {
    if let Some(placed) = place(geometry, wanted, present) {
        return Ok(placed);
    }
    let counts = wanted.counts(geometry).map_err(|obstacle| NoPlacement {
        obstacle,
        nearest: MigLayout::default(),
    })?;
    Err(NoPlacement {
        obstacle: obstacle(geometry, &counts, present),
        nearest: MigLayout::of_counts(geometry, &nearest(&Neighbourhood::new(geometry, present), &counts)),
    })
}

/// Places a layout as [`solve`] does. None if it does not fit: it does not look for the reason, which takes longer.
pub fn place(geometry: &MigGeometry, wanted: &MigLayout, present: &[PresentInstance]) -> Option<PlacedLayout> {
    let around = Neighbourhood::new(geometry, present);
    let counts = wanted.counts(geometry).ok()?;
    let arrangement = around.arrange(&counts)?;
    Some(placed(&around, &counts, &arrangement))
}

/// Sorts the instances of an arrangement by what becomes of them.
fn placed(around: &Neighbourhood<'_>, wanted: &[u32], arrangement: &Arrangement) -> PlacedLayout {
    let mut result = PlacedLayout {
        room: arrangement.room.clone(),
        ..PlacedLayout::default()
    };
    let mut missing = wanted.to_vec();
    for instance in &around.in_use {
        let index = around
            .geometry
            .profiles
            .iter()
            .position(|profile| profile.id == instance.profile);
        if let Some(index) = index
            && let Some(missing) = missing.get_mut(index)
            && *missing > 0
        {
            *missing -= 1;
            result.kept.push(*instance);
        } else {
            result.surplus.push(*instance);
        }
    }
    let (kept, created): (Vec<_>, Vec<_>) = arrangement
        .placed
        .iter()
        .copied()
        .partition(|instance| around.idle.contains(instance));
    result.kept.extend(kept);
    result.created = created;
    let stays = |instance: &&PlacedInstance| arrangement.placed.contains(instance);
    result.removed = around
        .idle
        .iter()
        .filter(|instance| !stays(instance))
        .copied()
        .collect();
    for list in [
        &mut result.kept,
        &mut result.created,
        &mut result.surplus,
        &mut result.removed,
    ] {
        list.sort_unstable();
    }
    result
}

/// Says why a layout that has no arrangement has none: first the GPU's own limits, then the instances in use.
fn obstacle(geometry: &MigGeometry, wanted: &[u32], present: &[PresentInstance]) -> PlacementObstacle {
    if let Some(limit) = Occupancy::new(geometry, wanted.to_vec(), &[]).obstacle() {
        return limit;
    }
    if Neighbourhood::new(geometry, &[]).arrange(wanted).is_none() {
        return PlacementObstacle::Positions;
    }
    let without = |index: usize| {
        let mut others = present.to_vec();
        others.remove(index);
        Neighbourhood::new(geometry, &others).arrange(wanted).is_some()
    };
    let in_use = || present.iter().enumerate().filter(|(_, present)| present.in_use);
    let mut in_the_way: Vec<_> = in_use().filter(|(index, _)| without(*index)).collect();
    if in_the_way.is_empty() {
        in_the_way = in_use().collect();
    }
    let names: Vec<String> = in_the_way
        .iter()
        .map(|(_, present)| geometry.instance_name(&present.instance))
        .collect();
    PlacementObstacle::InUse {
        instances: names.join(", "),
    }
}
