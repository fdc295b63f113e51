//! Finds the layout that fits and differs least from the wanted one.

use super::search::Neighbourhood;
use crate::{geometry::PlacedInstance, limits::largest_first, profile::GpuInstanceProfile};
use std::cmp::Reverse;

/// Returns the counts, in the order of the profiles, of the layout that fits around the instances in use and has the
/// most of the wanted instances; of these the one with the most memory, then compute slices. For each instance that it
/// lacks, it gets the largest smaller one without attributes that still fits.
pub(super) fn nearest(around: &Neighbourhood<'_>, wanted: &[u32]) -> Vec<u32> {
    let profiles = &around.geometry.profiles;
    let weighed = |counts: &Vec<u32>| {
        let sum = |slices: &dyn Fn(usize) -> u32| -> u64 {
            let parts = counts.iter().enumerate();
            parts
                .map(|(index, count)| u64::from(*count) * u64::from(slices(index)))
                .sum()
        };
        let memory = |index: usize| profiles.get(index).map_or(0, GpuInstanceProfile::memory_slices);
        let compute = |index: usize| profiles.get(index).map_or(0, |profile| profile.slices);
        Reverse((sum(&|_| 1), sum(&memory), sum(&compute)))
    };
    let mut candidates = Vec::new();
    sub_layouts(around, wanted, &mut Vec::new(), free_slices(around), &mut candidates);
    candidates.sort_by_cached_key(weighed);
    let fitting = candidates.into_iter().find(|counts| around.arrange(counts).is_some());
    let kept = fitting.unwrap_or_else(|| vec![0; profiles.len()]);
    with_smaller(around, wanted, &kept)
}

/// Returns the compute and memory slices that are not in use.
fn free_slices(around: &Neighbourhood<'_>) -> (u32, u32) {
    let size = |instance: &PlacedInstance| instance.placement.size;
    let compute = around.in_use.iter().map(|instance| {
        let profile = around.geometry.profile(instance.profile);
        profile.map_or(size(instance), |profile| profile.slices)
    });
    let memory = around.in_use.iter().map(size);
    (
        around.geometry.compute_slices.saturating_sub(compute.sum()),
        around.geometry.memory_slices.saturating_sub(memory.sum()),
    )
}

/// Collects all counts from those in use up to the wanted ones for which there are enough free slices. `chosen` has the
/// counts of the first profiles, `free` the compute and memory slices that they leave.
fn sub_layouts(
    around: &Neighbourhood<'_>,
    wanted: &[u32],
    chosen: &mut Vec<u32>,
    free: (u32, u32),
    found: &mut Vec<Vec<u32>>,
) {
    let index = chosen.len();
    let in_use = around.counts_in_use.get(index).copied().unwrap_or_default();
    let (Some(profile), Some(wanted_here)) = (around.geometry.profiles.get(index), wanted.get(index)) else {
        found.push(chosen.clone());
        return;
    };
    let least = (*wanted_here).min(in_use);
    let most = (*wanted_here).min(profile.max_count.max(in_use));
    for count in least..=most {
        let added = count.saturating_sub(in_use);
        let compute = free.0.checked_sub(added.saturating_mul(profile.slices));
        let memory = free.1.checked_sub(added.saturating_mul(profile.memory_slices()));
        let (Some(compute), Some(memory)) = (compute, memory) else {
            break;
        };
        chosen.push(count);
        sub_layouts(around, wanted, chosen, (compute, memory), found);
        chosen.pop();
    }
}

/// Adds smaller instances for those that `kept` lacks, for the largest first.
fn with_smaller(around: &Neighbourhood<'_>, wanted: &[u32], kept: &[u32]) -> Vec<u32> {
    let profiles = &around.geometry.profiles;
    let order = largest_first(around.geometry);
    let mut result = kept.to_vec();
    for index in &order {
        let counts = profiles.get(*index).zip(wanted.get(*index).zip(kept.get(*index)));
        let Some((profile, (wanted, kept))) = counts else {
            continue;
        };
        for _ in *kept..*wanted {
            let next = order.iter().find_map(|other| {
                let candidate = profiles.get(*other)?;
                let is_smaller = candidate.is_base() && candidate.magnitude() <= profile.magnitude();
                if other == index || !is_smaller {
                    return None;
                }
                let mut counts = result.clone();
                *counts.get_mut(*other)? += 1;
                around.arrange(&counts).is_some().then_some(counts)
            });
            let Some(next) = next else { break };
            result = next;
        }
    }
    result
}
