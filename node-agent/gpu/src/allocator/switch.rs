//! The step of a device from no assignment, or from its present one, to the desired one.

use super::{companions::has_room, state::AllocatorState};
use crate::{Assignment, device_of, is_companion};
use std::{collections::BTreeSet, time::Instant};

/// Switches each device to its desired assignment if the kubelet takes none of its shares for healthy, so that it can allocate
/// none and an allocation that it began before is refused or fits, and if no container holds a share of it but those of the
/// desired assignment, which another plugin gave out while gpunode was away.
/// `started` is the start of the observation.
pub fn switch(state: &mut AllocatorState, allocatable: &BTreeSet<(String, String)>, started: Instant) {
    let healthy: BTreeSet<(&str, &str)> = allocatable
        .iter()
        .map(|(resource, id)| (resource.as_str(), device_of(id)))
        .collect();
    let free = |uuid: &str, of: &Assignment| {
        !healthy.contains(&(of.resource.as_str(), uuid)) && !state.is_taken(uuid, state.already_as_desired(uuid))
    };
    let changes: Vec<(String, Option<Assignment>)> = state
        .assigned
        .iter()
        .filter(|(uuid, now)| state.is_to_change(uuid, now) && state.is_proven(uuid, started) && free(uuid, now))
        .map(|(uuid, _)| (uuid.clone(), state.desired.get(uuid).cloned()))
        .collect();
    for (uuid, next) in changes {
        state.resizes.former.remove(&uuid);
        match next {
            Some(next) if !has_place(state, &uuid, &next) => {}
            Some(next) => _ = state.assigned.insert(uuid, next),
            None => _ = state.assigned.remove(&uuid),
        }
    }
}

/// Returns true if a resource can take a device in: it has no device of the other kind, GPU or companion, and of companions no more
/// shares than its list has room for.
fn has_place(state: &AllocatorState, uuid: &str, next: &Assignment) -> bool {
    let is_other =
        |(other, of): (&String, &Assignment)| of.resource == next.resource && is_companion(other) != is_companion(uuid);
    let has_room = || !is_companion(uuid) || has_room(state, uuid, &next.resource, &next.sharing);
    !state.assigned.iter().any(is_other) && has_room()
}

/// Assigns each desired device without an assignment, if no overlapping device has one and containers hold no share of it
/// but those of the desired assignment.
pub fn adopt(state: &mut AllocatorState) {
    if !state.is_observed() {
        return;
    }
    for (uuid, assignment) in &state.desired {
        let blocked = state.assigned.contains_key(uuid)
            || state
                .maybe_overlapping(uuid)
                .any(|other| state.assigned.contains_key(other))
            || state.is_taken(uuid, Some(assignment))
            || !has_place(state, uuid, assignment);
        if !blocked {
            state.assigned.insert(uuid.clone(), assignment.clone());
        }
    }
    // A resource that lost its last such device has nothing to withhold.
    state.withheld.retain(|resource| {
        state
            .assigned
            .values()
            .any(|of| of.resource == *resource && of.sharing.one_device_per_container())
    });
}
