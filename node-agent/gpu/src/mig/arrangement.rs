//! The instances that a GPU gets for its layout, and those of them that stay.

use crate::{GpuInstance, GpuMigState};
use gpunode_mig::{MigLayout, NoPlacement, PlacedInstance, PlacedLayout, PresentInstance, place, solve};

/// Most instances in use of which each choice is tried. No board has more than seven instances.
const MAX_CHOSEN: usize = 7;

/// Places `wanted` on a GPU. Of all sets of instances that could stay, those stay that have the most instances in use, then the
/// most instances, then those that leave room for the largest profile. An instance without compute instances can stay, one with
/// several cannot.
pub fn arrange(
    state: &GpuMigState,
    wanted: &MigLayout,
    is_in_use: impl Fn(&GpuInstance) -> bool,
) -> Result<PlacedLayout, NoPlacement> {
    let could_stay = state
        .instances
        .iter()
        .filter(|instance| instance.is_whole() || instance.compute.is_empty());
    let (mut used, mut idle): (Vec<PlacedInstance>, Vec<PlacedInstance>) = (Vec::new(), Vec::new());
    for instance in could_stay {
        let is_wanted = wanted.count_of(instance.placed.profile) > 0;
        if is_wanted && used.len() < MAX_CHOSEN && is_in_use(instance) {
            used.push(instance.placed);
        } else {
            idle.push(instance.placed);
        }
    }
    used.sort_unstable();
    for count in (0..=used.len()).rev() {
        let best = choices(&used, count)
            .filter_map(|chosen| around(state, wanted, &used, &idle, &chosen))
            // Of equal ones the first.
            .reduce(|best, next| if worth(&next) > worth(&best) { next } else { best });
        if let Some(best) = best {
            return Ok(best);
        }
    }
    solve(&state.geometry, wanted, &[])
}

fn worth(placed: &PlacedLayout) -> (usize, &[u32]) {
    (placed.kept.len(), &placed.room)
}

/// Places the layout around `chosen`, which stay. None if it does not fit, or has fewer instances of a profile than `chosen`.
fn around(
    state: &GpuMigState,
    wanted: &MigLayout,
    used: &[PlacedInstance],
    idle: &[PlacedInstance],
    chosen: &[PlacedInstance],
) -> Option<PlacedLayout> {
    let is_surplus = |instance: &PlacedInstance| {
        let same = chosen.iter().filter(|other| other.profile == instance.profile).count();
        u32::try_from(same).is_ok_and(|same| same > wanted.count_of(instance.profile))
    };
    if chosen.iter().any(is_surplus) {
        return None;
    }
    let present: Vec<PresentInstance> = used
        .iter()
        .chain(idle)
        .map(|instance| PresentInstance {
            instance: *instance,
            in_use: chosen.contains(instance),
        })
        .collect();
    place(&state.geometry, wanted, &present)
}

/// Returns all sets of `count` instances.
fn choices(instances: &[PlacedInstance], count: usize) -> impl Iterator<Item = Vec<PlacedInstance>> {
    let sets = 0..1_u32 << instances.len();
    let of_size = sets.filter(move |set| set.count_ones() as usize == count);
    of_size.map(move |set| {
        let numbered = instances.iter().enumerate();
        let chosen = numbered.filter(move |(at, _)| set >> at & 1 == 1);
        chosen.map(|(_, instance)| *instance).collect()
    })
}

#[cfg(test)]
mod tests;
