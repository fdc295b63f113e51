//! Devices whose assignment is not the desired one or that others hold, and the event that each waits for.

use super::{
    companions::{self, companion_name, describe_held_back, held_back_companions},
    held::is_share_of,
    observation::{ContainerShares, PendingChange},
    slices::oversized,
    state::AllocatorState,
};
use crate::{Assignment, CompanionDevice, DeviceSharing, device_of, is_companion};
use std::collections::BTreeSet;

/// Returns the devices that [`pending_devices`] names, by index.
pub fn pending_changes(state: &AllocatorState) -> Vec<PendingChange> {
    let mut pending: Vec<PendingChange> = pending_devices(state)
        .into_iter()
        .map(|uuid| describe(state, uuid))
        .collect();
    pending.sort_by_key(|of| {
        let device = state.devices.get(&of.device);
        let name = state.companions.get(&of.device).map(CompanionDevice::name);
        (
            device.is_none(),
            device.map(crate::Device::order),
            name,
            of.device.clone(),
        )
    });
    pending
}

/// Returns the UUIDs of the devices whose assignment is not the desired one, that have too many time slices, or that containers
/// have from another plugin.
pub fn pending_devices(state: &AllocatorState) -> BTreeSet<&str> {
    let mut pending = changing_devices(state);
    let others = state.held_by_others.iter().map(String::as_str);
    pending.extend(others.filter(|uuid| !state.awaits_device(uuid)));
    pending.extend(held_back_companions(state));
    pending
}

/// Returns the UUIDs of the devices whose assignment is not the desired one, or that have too many time slices.
pub fn changing_devices(state: &AllocatorState) -> BTreeSet<&str> {
    if !state.is_observed() {
        return BTreeSet::new();
    }
    let changing = state
        .assigned
        .iter()
        .filter(|(uuid, now)| state.is_to_change(uuid, now))
        .map(|(uuid, _)| uuid);
    let coming = state.desired.keys().filter(|uuid| !state.assigned.contains_key(*uuid));
    let resized = oversized(state).map(|(uuid, ..)| uuid);
    changing.chain(coming).map(String::as_str).chain(resized).collect()
}

/// Returns true if only the kubelet's checkpoint keeps a device from its change. The kubelet writes the checkpoint after
/// each device list, so another list brings it up to date.
pub fn waits_for_checkpoint(state: &AllocatorState) -> bool {
    let of_changes = pending_devices(state).into_iter().any(|uuid| {
        let together = with_overlapping(state, uuid);
        let only_checkpoint = |own: Option<&Assignment>| {
            let own_of = |device: &str| own.filter(|_| device == uuid);
            !together
                .iter()
                .any(|device| state.held.holds_of(device, own_of(device)))
                && together
                    .iter()
                    .any(|device| state.held.checkpoint_holds_of(device, own_of(device)))
        };
        // Own shares are a reason to wait only for a device that has too many, and those that are as desired hardly ever.
        only_checkpoint(None) || only_checkpoint(state.desired_assignment(uuid))
    });
    of_changes || companions::waits_for_checkpoint(state)
}

/// Returns the assignment of a device that has its desired one.
fn in_service<'a>(state: &'a AllocatorState, uuid: &str) -> Option<&'a Assignment> {
    let now = state.assigned.get(uuid);
    now.filter(|now| state.desired_assignment(uuid) == Some(*now))
}

/// Returns the device and those that overlap it; also those that only may, unless it is in service.
fn with_overlapping<'a>(state: &'a AllocatorState, uuid: &'a str) -> BTreeSet<&'a str> {
    if in_service(state, uuid).is_some() {
        state.overlapping(uuid).chain([uuid]).collect()
    } else {
        state.maybe_overlapping(uuid).chain([uuid]).collect()
    }
}

fn describe(state: &AllocatorState, uuid: &str) -> PendingChange {
    if let Some(held_back) = describe_held_back(state, uuid) {
        return held_back;
    }
    let now = state.assigned.get(uuid);
    let next = state.desired_assignment(uuid);
    let whole_or_part = with_overlapping(state, uuid);
    // Shares that are no reason to wait: its own if others hold it, and those that it has already as desired.
    let own = match in_service(state, uuid) {
        Some(now) => Some(now).filter(|_| state.held_by_others.contains(uuid)),
        None => state.already_as_desired(uuid),
    };
    let own_of = |device: &str| own.filter(|_| device == uuid);
    let holds = |holding: &ContainerShares, id: &String| {
        let is_own = own.is_some_and(|of| is_share_of(of, uuid, &holding.resource, id));
        whole_or_part.contains(device_of(id)) && !is_own
    };
    let holding = state
        .held
        .observed()
        .iter()
        .filter(|holding| holding.ids.iter().any(|id| holds(holding, id)));
    let claims = whole_or_part
        .iter()
        .flat_map(|device| state.claims.of_device(device, &state.devices));
    let holding = holding.chain(claims);
    let pods: BTreeSet<String> = holding.map(|of| format!("{}/{}", of.namespace, of.pod)).collect();
    let until = if !pods.is_empty() {
        "the last pod that holds it ends"
    } else if whole_or_part
        .iter()
        .any(|device| state.held.holds_of(device, own_of(device)))
    {
        "the kubelet shows whether a container got its last allocated shares"
    } else if whole_or_part
        .iter()
        .any(|device| state.held.checkpoint_holds_of(device, own_of(device)))
    {
        "the kubelet's checkpoint no longer has a container that holds it, such as an init container"
    } else {
        "the kubelet can allocate none of its shares"
    };
    let name = device_name(state, uuid);
    let shares = if is_companion(uuid) { "shares" } else { "replicas" };
    let text = |of| AssignmentText(of, shares);
    let too_many = oversized(state).find(|(device, ..)| *device == uuid);
    let message = match (now, next) {
        (Some(now), Some(_)) if own == Some(now) => format!(
            "{name} is {} and also held by a pod of another plugin; no container gets a share of it until {until}",
            text(now)
        ),
        (Some(now), Some(next)) if now == next => match too_many {
            Some((_, held, number)) => format!(
                "{name} wants {}, and pods hold {held}; waits until pods with {} of them end",
                text(now),
                held.saturating_sub(number as usize)
            ),
            None => format!("{name} is {}", text(now)),
        },
        (Some(now), Some(next)) => format!(
            "{name} stays {} until {until}, then it becomes {}",
            text(now),
            text(next)
        ),
        (Some(now), None) if state.present.contains(uuid) => {
            format!(
                "{name} stays {} until {until}, then {}",
                text(now),
                if is_companion(uuid) {
                    "this device goes"
                } else {
                    "no resource has it"
                }
            )
        }
        (Some(now), None) => format!(
            "{name} has left the node; it stays {}, unhealthy, until {until}",
            text(now)
        ),
        (None, Some(next)) => format!("{name} has no resource until {until}, then it becomes {}", text(next)),
        (None, None) => format!("{name} has no resource"),
    };
    PendingChange {
        device: uuid.to_owned(),
        message,
        pods: pods.into_iter().collect(),
        // One that comes is held by pods of somebody else.
        switches: now.is_some() && state.switches(uuid),
    }
}

/// Returns the name of a device for people.
fn device_name(state: &AllocatorState, uuid: &str) -> String {
    match state.devices.get(uuid) {
        Some(device) => format!("GPU {}", device.index()),
        None if is_companion(uuid) => companion_name(state, uuid),
        None => uuid.to_owned(),
    }
}

/// An assignment as text, and its word for time slices.
struct AssignmentText<'a>(&'a Assignment, &'static str);

impl std::fmt::Display for AssignmentText<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Assignment { resource, sharing, .. } = self.0;
        match sharing {
            DeviceSharing::Whole => write!(f, "{resource}"),
            DeviceSharing::TimeSlicing { replicas } => write!(f, "{resource} ({replicas} {})", self.1),
            DeviceSharing::Memory { unit, units } => write!(f, "{resource} ({units} units of {unit})"),
            DeviceSharing::Mps { replicas } => write!(f, "{resource} ({replicas} shares under MPS)"),
        }
    }
}
