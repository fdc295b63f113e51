//! Changes of the number of time slices of a device, which are no other sharing: ids stay, and containers keep what they hold.
//!
//! More slices are healthy at once. Of fewer, a device keeps those that containers hold. As many free slices of other devices
//! are withheld as it has too many: the sum that the scheduler sees is the one of the configuration, and stays so while one
//! container follows another. Thus a pod never comes for a share that was there a moment ago, and the next container gets
//! a device that has room.

use super::{
    companions::has_room,
    device_shares::{Availability, DeviceShares, advertised_devices},
    state::{AllocatorState, FormerSlices, Peak, Resizes},
};
use crate::{Assignment, DeviceSharing, device_of, is_companion};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::{Duration, Instant},
};

/// Time for which the sum of a resource stays after it became too large, and for which former slices are known: a kubelet
/// reports the sum every 10 s, and the scheduler binds pods by that report.
const SETTLE: Duration = Duration::from_secs(12);

/// Gives each device its desired number of time slices at once, where nothing else about it changes and its list has room.
pub fn resize(state: &mut AllocatorState) {
    for (uuid, desired) in &state.desired {
        let now = state.assigned.get(uuid);
        let is_resize =
            |now: &&Assignment| now.resource == desired.resource && desired.sharing.is_resize_of(&now.sharing);
        let Some(now) = now.filter(is_resize) else { continue };
        if is_companion(uuid) && !has_room(state, uuid, &desired.resource, &desired.sharing) {
            continue;
        }
        let slices = desired.sharing.shares()..now.sharing.shares();
        // Before the first observation the kubelet has had no list.
        if state.observed_at.is_some() {
            let numbers = &mut former_slices(&mut state.resizes, uuid, None).numbers;
            numbers.extend(slices);
            numbers.retain(|number| *number >= desired.sharing.shares());
        }
        state
            .assigned
            .entry(uuid.clone())
            .and_modify(|now| now.sharing = desired.sharing);
    }
}

/// Returns the former slices of a device, which were seen at `seen`.
fn former_slices<'a>(resizes: &'a mut Resizes, uuid: &str, seen: Option<Instant>) -> &'a mut FormerSlices {
    let former = resizes.former.entry(uuid.to_owned()).or_insert_with(|| FormerSlices {
        numbers: BTreeSet::new(),
        seen,
    });
    former.seen = seen;
    former
}

/// Notes the slices that devices have no longer though the kubelet has them or containers hold them, also those that an earlier
/// process offered. Forgets those of a device some time after the last of them: a list on its way may have them. Notes how
/// many slices are held.
pub fn observe(state: &mut AllocatorState, started: Instant, allocatable: &BTreeSet<(String, String)>) {
    let mut seen: BTreeMap<&str, BTreeSet<u32>> = BTreeMap::new();
    for (resource, id) in allocatable {
        let uuid = device_of(id);
        if let Some(of) = state.assigned.get(uuid)
            && of.resource == *resource
            && matches!(of.sharing, DeviceSharing::TimeSlicing { .. })
            && let Some(number) = of.sharing.any_number(uuid, id)
            && number >= of.sharing.shares()
        {
            seen.entry(uuid).or_default().insert(number);
        }
    }
    for (uuid, of) in &state.assigned {
        let beyond = state.held.slices_beyond(uuid, of);
        if !beyond.is_empty() {
            seen.entry(uuid).or_default().extend(beyond);
        }
    }
    for (uuid, numbers) in seen {
        former_slices(&mut state.resizes, uuid, Some(started))
            .numbers
            .extend(numbers);
    }
    let assigned = &state.assigned;
    state.resizes.former.retain(|uuid, former| {
        let of = assigned.get(uuid);
        let seen = *former.seen.get_or_insert(started);
        of.is_some_and(|of| matches!(of.sharing, DeviceSharing::TimeSlicing { .. }))
            && started.saturating_duration_since(seen) < SETTLE
    });
    let resources: BTreeSet<String> = state
        .assigned
        .values()
        .filter(|of| matches!(of.sharing, DeviceSharing::TimeSlicing { .. }))
        .map(|of| of.resource.clone())
        .collect();
    let counts: BTreeMap<String, SliceCount> = resources
        .into_iter()
        .map(|resource| {
            let count = SliceCount::of(&advertised_devices(state, &resource));
            (resource, count)
        })
        .collect();
    state.resizes.peaks.retain(|resource, _| counts.contains_key(resource));
    for (resource, SliceCount { held, devices, .. }) in counts {
        let new = Peak {
            held,
            devices,
            at: started,
        };
        let peak = state.resizes.peaks.entry(resource).or_insert(new);
        let is_over = held >= peak.held || started.saturating_duration_since(peak.at) >= SETTLE;
        if is_over || devices != peak.devices {
            *peak = new;
        }
    }
}

/// Returns the number of held slices of each device that has too many, with the number that it has.
pub fn oversized(state: &AllocatorState) -> impl Iterator<Item = (&str, usize, u32)> {
    state.assigned.iter().filter_map(|(uuid, of)| {
        let beyond = state.held.slices_beyond(uuid, of).len();
        // Each list asks this of each device.
        if beyond == 0 {
            return None;
        }
        let held = state.held.flags(uuid, of).into_iter().filter(|held| *held).count() + beyond;
        (held > of.sharing.shares() as usize).then_some((uuid.as_str(), held, of.sharing.shares()))
    })
}

/// Returns true if more slices of a resource are healthy than its devices have, and no container holds them.
pub fn is_settling(state: &AllocatorState) -> bool {
    state.resizes.peaks.keys().any(|resource| {
        let count = SliceCount::of(&advertised_devices(state, resource));
        peak(state, resource, &count) > count.total.max(count.held)
    })
}

/// Returns the free time slices that are healthy, by place of the device and number. None if all free ones are: no container
/// holds a slice that its device has no longer.
pub fn healthy_slices(
    state: &AllocatorState,
    resource: &str,
    devices: &[DeviceShares<'_>],
) -> Option<BTreeMap<usize, BTreeSet<u32>>> {
    let count = SliceCount::of(devices);
    let peak = peak(state, resource, &count);
    if devices.iter().all(|of| of.beyond.is_empty()) && peak <= count.total {
        return None;
    }
    let mut budget = count.total.max(peak).saturating_sub(count.held);
    let mut slices: Vec<FreeSlices> = devices
        .iter()
        .enumerate()
        .filter(|(_, of)| is_sliced(of))
        .map(|(at, of)| FreeSlices::of(at, of))
        .collect();
    // First where there is most room, then on the device with the least too many.
    while budget > 0
        && let Some(of) = slices
            .iter_mut()
            .filter(|of| !of.free.is_empty())
            .max_by_key(|of| (of.room, std::cmp::Reverse(of.at)))
    {
        of.take();
        budget -= 1;
    }
    Some(slices.into_iter().map(|of| (of.at, of.taken)).collect())
}

/// Returns the largest number of held slices of late; 0 if other devices counted then.
fn peak(state: &AllocatorState, resource: &str, count: &SliceCount) -> usize {
    let peak = state.resizes.peaks.get(resource);
    peak.filter(|peak| peak.devices == count.devices)
        .map_or(0, |peak| peak.held)
}

/// Sums over the devices of a resource whose time slices containers can get.
struct SliceCount {
    /// Slices of the configuration.
    total: usize,
    held: usize,
    devices: usize,
}

impl SliceCount {
    fn of(devices: &[DeviceShares<'_>]) -> Self {
        let sliced = || devices.iter().filter(|of| is_sliced(of));
        Self {
            total: sliced().map(|of| of.held.len()).sum(),
            held: sliced().map(DeviceShares::held_count).sum(),
            devices: sliced().count(),
        }
    }
}

fn is_sliced(of: &DeviceShares<'_>) -> bool {
    matches!(of.sharing, DeviceSharing::TimeSlicing { .. }) && of.availability == Availability::Allocatable
}

/// Free slices of one device.
struct FreeSlices {
    at: usize,
    /// Number of slices that it has beyond the held and taken ones; negative if those are too many.
    room: i64,
    /// Numbers of free slices, those that it has no longer last.
    free: VecDeque<u32>,
    taken: BTreeSet<u32>,
}

impl FreeSlices {
    fn of(at: usize, of: &DeviceShares<'_>) -> Self {
        let count = |shares: usize| i64::try_from(shares).unwrap_or(i64::MAX);
        let current = (0_u32..)
            .zip(&of.held)
            .filter(|(_, held)| !**held)
            .map(|(number, _)| number);
        let former = of.former.into_iter().flatten().copied();
        Self {
            at,
            room: count(of.held.len()) - count(of.held_count()),
            free: current
                .chain(former.filter(|number| !of.beyond.contains(number)))
                .collect(),
            taken: BTreeSet::new(),
        }
    }

    fn take(&mut self) {
        self.taken.extend(self.free.pop_front());
        self.room -= 1;
    }
}
