//! The devices that a container gets for the ids that the kubelet picked.

use super::{
    companions::companion_obstacle,
    device_shares::{Availability, DeviceShares, advertised_devices},
    refusal::AllocationRefusal,
    state::AllocatorState,
};
use crate::{CompanionDevice, Device, DeviceSharing, device_of, is_companion};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

/// Time after an allocation within which the kubelet may hand its devices on to another container of the pod without a new
/// observation: it does so within one admission (`pkg/kubelet/cm/devicemanager/manager.go`, `Allocate`).
const HAND_ON_WINDOW: Duration = Duration::from_secs(1);

/// The devices that a container gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocatedDevices {
    /// GPUs and MIG devices with the number of shares of each, by index; none if the container gets companions.
    pub devices: Vec<(Device, u32)>,
    /// Companions, by file.
    pub companions: Vec<CompanionDevice>,
    /// Sharing of the devices; that of the first one during a change.
    pub sharing: DeviceSharing,
}

/// Checks a request of that time for the shares `ids`. Returns the devices that the container gets, or the reason to refuse
/// it.
pub fn check(
    state: &AllocatorState,
    resource: &str,
    ids: &BTreeSet<&str>,
    requested: Instant,
    unseen: Option<&str>,
) -> Result<AllocatedDevices, AllocationRefusal> {
    let name = || resource.to_owned();
    if ids.is_empty() {
        return Err(AllocationRefusal::Empty { resource: name() });
    }
    let mut advertised = advertised_devices(state, resource);
    let places: BTreeMap<&str, usize> = advertised.iter().enumerate().map(|(at, of)| (of.uuid, at)).collect();
    let mut asked: BTreeMap<usize, u32> = BTreeMap::new();
    let mut unknown = Vec::new();
    for id in ids {
        let place = places.get(device_of(id)).copied();
        let share = place.and_then(|at| {
            let of = advertised.get_mut(at)?;
            let number = of.sharing.any_number(of.uuid, id).filter(|number| of.has(*number))?;
            Some((at, of.held.get_mut(number as usize)))
        });
        match share {
            Some((at, held)) => {
                // The request counts as the only holder of its shares.
                if let Some(held) = held {
                    *held = false;
                }
                *asked.entry(at).or_default() += 1;
            }
            None => unknown.push((*id).to_owned()),
        }
    }
    if !unknown.is_empty() {
        return Err(AllocationRefusal::Unknown {
            resource: name(),
            ids: unknown,
        });
    }
    let given: Vec<(&DeviceShares<'_>, u32)> = asked
        .into_iter()
        .filter_map(|(at, count)| Some((advertised.get(at)?, count)))
        .collect();
    let replicated = |of: &DeviceShares<'_>| {
        matches!(
            of.sharing,
            DeviceSharing::TimeSlicing { .. } | DeviceSharing::Mps { .. }
        )
    };
    let one_only = state
        .rules
        .get(resource)
        .is_some_and(|rules| rules.fail_requests_greater_than_one);
    if one_only && ids.len() > 1 && given.iter().any(|(of, _)| replicated(of)) {
        return Err(AllocationRefusal::MoreThanOne {
            resource: name(),
            asked: ids.len(),
        });
    }
    let unavailable = |of: &DeviceShares<'_>| {
        let reason = state
            .unavailable_reason(of.uuid)
            .or_else(|| state.paused_reason(of.uuid));
        reason.or(match of.availability {
            _ if state.awaits_device(of.uuid) => Some("the agent does not know the devices of the node yet"),
            Availability::Unavailable if is_companion(of.uuid) => Some("a file of it is gone, or a change of it waits"),
            Availability::Unavailable => Some("the driver no longer lists it"),
            _ if is_companion(of.uuid) && of.companion.is_none() => Some("the configuration no longer has it"),
            Availability::Draining | Availability::Allocatable => None,
        })
    };
    let refusal = |of: &DeviceShares<'_>| {
        let reason = unavailable(of).map(str::to_owned);
        reason
            .or_else(|| {
                let is_held = state.held_by_others.contains(of.uuid);
                is_held.then(|| "a container has it from another plugin".to_owned())
            })
            .or_else(|| companion_obstacle(state, of.uuid).map(|obstacle| obstacle.to_string()))
            .or_else(|| {
                // Of a device that gains files, those that are on disk are enough, if each glob has one.
                let device = of.companion?;
                let is_unsafe = state.files.safe_part(device).globs() != device.globs();
                is_unsafe.then(|| "its files are not on the agent's disk yet".to_owned())
            })
    };
    if let Some((of, reason)) = given.iter().find_map(|(of, _)| Some((of, refusal(of)?))) {
        return Err(AllocationRefusal::Unavailable {
            resource: name(),
            device: of.uuid.to_owned(),
            reason,
        });
    }
    check_holders(state, resource, ids, requested, unseen)?;
    if given.len() > 1 && given.iter().any(|(of, _)| of.sharing.one_device_per_container()) {
        return Err(split(resource, ids.len(), &advertised));
    }
    let sharing = given.first().map_or(DeviceSharing::Whole, |(of, _)| of.sharing);
    // An available device is present, and so known.
    let devices = given
        .iter()
        .filter_map(|(of, count)| Some((of.device?.clone(), *count)));
    let companions = given.iter().filter_map(|(of, _)| of.companion);
    Ok(AllocatedDevices {
        devices: devices.collect(),
        companions: companions.map(|device| state.files.safe_part(device)).collect(),
        sharing,
    })
}

/// Refuses shares that a container holds. Shares that were allocated and not observed since may come again: the kubelet
/// hands the devices of an init container on to the others of its pod, and those of a pod that it rejected to the next. Ages
/// are those at the request: the wait for an observation says nothing about the kubelet's intention.
fn check_holders(
    state: &AllocatorState,
    resource: &str,
    ids: &BTreeSet<&str>,
    requested: Instant,
    unseen: Option<&str>,
) -> Result<(), AllocationRefusal> {
    let since = |then: Instant| requested.saturating_duration_since(then);
    for id in ids {
        let share = (resource.to_owned(), (*id).to_owned());
        if let Some(pod) = state.held.holder(&share) {
            let (age, unseen) = (
                state.observed_at.map(since).unwrap_or_default(),
                unseen.map(str::to_owned),
            );
            return Err(AllocationRefusal::Held {
                resource: share.0,
                id: share.1,
                pod,
                age,
                unseen,
            });
        }
        if let Some(unseen) = unseen
            && let Some(age) = state.held.granted(&share).map(since)
            && age > HAND_ON_WINDOW
        {
            return Err(AllocationRefusal::Unproven {
                resource: share.0,
                id: share.1,
                age,
                unseen: unseen.to_owned(),
            });
        }
    }
    Ok(())
}

/// Returns the refusal of shares of several devices; in `advertised`, requested shares count as free.
fn split(resource: &str, asked: usize, advertised: &[DeviceShares<'_>]) -> AllocationRefusal {
    let count = |shares: usize| u32::try_from(shares).unwrap_or(u32::MAX);
    let ones = || advertised.iter().filter(|of| of.sharing.one_device_per_container());
    let most = ones().min_by_key(|of| (Reverse(of.free()), of.order()));
    AllocationRefusal::Split {
        resource: resource.to_owned(),
        asked: count(asked),
        free_total: count(ones().map(DeviceShares::free).sum::<usize>().max(asked)),
        most_free: count(most.map(DeviceShares::free).unwrap_or_default()),
        device_index: most.and_then(|of| of.device).map(Device::index).unwrap_or_default(),
    }
}
