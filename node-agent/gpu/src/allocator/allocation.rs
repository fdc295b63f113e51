//! What a container is given for the ids that the kubelet picked, and what it is refused.

use super::{
    Allocator,
    offer::{AdvertisedDevice, Availability},
};
use crate::{Device, DeviceSharing, device_of};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

/// How long after an allocation the kubelet hands its devices on to another container of the same pod without being asked
/// for proof: it does that within one admission (`pkg/kubelet/cm/devicemanager/manager.go`, `Allocate`).
const HANDED_ON: Duration = Duration::from_secs(1);

/// What a container gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocatedDevices {
    /// The devices and how many shares of each, by index.
    pub devices: Vec<(Device, u32)>,
    /// How they are shared; that of the first where a change is under way.
    pub sharing: DeviceSharing,
}

/// Why a container gets nothing.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum AllocationRefusal {
    /// Nothing was asked for.
    #[error("allocate {resource}: the request names no device")]
    Empty {
        /// The resource.
        resource: String,
    },
    /// Ids that are in no list of this resource.
    #[error("allocate {resource}: unknown shares {}; they are not in the list that is in force", .ids.join(", "))]
    Unknown {
        /// The resource.
        resource: String,
        /// The ids.
        ids: Vec<String>,
    },
    /// A container has a share of these already.
    #[error(
        "allocate {resource}: {id} is held by pod {pod} already, as the kubelet said {age:.1?} ago, though it picked it \
         again; it is not given out twice{}", why(.unseen.as_deref())
    )]
    Held {
        /// The resource.
        resource: String,
        /// The id.
        id: String,
        /// The pod, as `NAMESPACE/NAME`.
        pod: String,
        /// How old that is.
        age: Duration,
        /// Why the kubelet could not be asked anew.
        unseen: Option<String>,
    },
    /// It was given out, and nobody says whether a container has it.
    #[error(
        "allocate {resource}: {id} was given out {age:.1?} ago, and whether a container holds it is not known; it is not \
         given out twice{}", why(Some(.unseen))
    )]
    Unproven {
        /// The resource.
        resource: String,
        /// The id.
        id: String,
        /// How long ago.
        age: Duration,
        /// Why the kubelet could not be asked.
        unseen: String,
    },
    /// `failRequestsGreaterThanOne`.
    #[error(
        "allocate {resource}: the container asks for {asked} replicas, and two replicas do not give twice the GPU; \
         ask for 1 (sharing.failRequestsGreaterThanOne is on)"
    )]
    MoreThanOne {
        /// The resource.
        resource: String,
        /// Shares asked for.
        asked: usize,
    },
    /// Shares of several devices, where a container's shares have to come from one.
    #[error("allocate {resource}: {}", split_message(*.asked, *.free_total, *.most_free, .device_index))]
    Split {
        /// The resource.
        resource: String,
        /// Shares asked for.
        asked: u32,
        /// Shares that are free on the node.
        free_total: u32,
        /// Most shares that are free on one device.
        most_free: u32,
        /// The device on which they are, such as `3` or `3:1`.
        device_index: String,
    },
    /// The device cannot be given out now.
    #[error("allocate {resource}: {device} cannot be given out now: {reason}")]
    Unavailable {
        /// The resource.
        resource: String,
        /// UUID of the device.
        device: String,
        /// Why.
        reason: String,
    },
}

impl Allocator {
    /// Whether one of the shares is held as far as is known here, so that only a new observation can tell whether it may be
    /// given out. A kubelet can forget an allocation that it is about to write down when it is asked for holders at that
    /// moment (`pkg/kubelet/cm/devicemanager/manager.go`, `UpdateAllocatedDevices`), and then picks the share again.
    pub fn is_doubtful(&self, resource: &str, ids: &[String]) -> bool {
        ids.iter()
            .any(|id| self.held.is_held(&(resource.to_owned(), id.clone())))
    }

    /// Gives the shares `ids` to a container, which holds them from now on. A refusal changes nothing. `unseen` is why the
    /// kubelet could not be asked about shares that are doubtful.
    pub fn allocate(
        &mut self,
        resource: &str,
        ids: &[String],
        now: Instant,
        unseen: Option<&str>,
    ) -> Result<AllocatedDevices, AllocationRefusal> {
        // A set: an id that is named twice is one share.
        let ids: BTreeSet<&str> = ids.iter().map(String::as_str).collect();
        let granted = self.judge(resource, &ids, now, unseen)?;
        self.held.grant(resource, ids.into_iter(), now);
        Ok(granted)
    }

    fn judge(
        &self,
        resource: &str,
        ids: &BTreeSet<&str>,
        now: Instant,
        unseen: Option<&str>,
    ) -> Result<AllocatedDevices, AllocationRefusal> {
        let name = || resource.to_owned();
        if ids.is_empty() {
            return Err(AllocationRefusal::Empty { resource: name() });
        }
        let mut offered = self.offered(resource);
        let places: BTreeMap<&str, usize> = offered.iter().enumerate().map(|(at, of)| (of.uuid, at)).collect();
        let mut asked: BTreeMap<usize, u32> = BTreeMap::new();
        let mut unknown = Vec::new();
        for id in ids {
            let place = places.get(device_of(id)).copied();
            let share = place.and_then(|at| {
                let of = offered.get_mut(at)?;
                of.held.get_mut(of.sharing.number(of.uuid, id)? as usize)
            });
            match (place, share) {
                (Some(at), Some(held)) => {
                    // Who asks for it holds it from now on, and nobody else does.
                    *held = false;
                    *asked.entry(at).or_default() += 1;
                }
                _ => unknown.push((*id).to_owned()),
            }
        }
        if !unknown.is_empty() {
            return Err(AllocationRefusal::Unknown {
                resource: name(),
                ids: unknown,
            });
        }
        let given: Vec<(&AdvertisedDevice<'_>, u32)> = asked
            .into_iter()
            .filter_map(|(at, count)| Some((offered.get(at)?, count)))
            .collect();
        let replicated = |of: &AdvertisedDevice<'_>| {
            matches!(
                of.sharing,
                DeviceSharing::TimeSlicing { .. } | DeviceSharing::Mps { .. }
            )
        };
        let one_only = self
            .rules
            .get(resource)
            .is_some_and(|rules| rules.fail_requests_greater_than_one);
        if one_only && ids.len() > 1 && given.iter().any(|(of, _)| replicated(of)) {
            return Err(AllocationRefusal::MoreThanOne {
                resource: name(),
                asked: ids.len(),
            });
        }
        if let Some((of, _)) = given.iter().find(|(of, _)| of.state == Availability::Unavailable) {
            let reason = self
                .unavailable(of.uuid)
                .unwrap_or("the driver no longer lists it")
                .to_owned();
            return Err(AllocationRefusal::Unavailable {
                resource: name(),
                device: of.uuid.to_owned(),
                reason,
            });
        }
        self.give_once(resource, ids, now, unseen)?;
        if given.len() > 1 && given.iter().any(|(of, _)| of.sharing.one_device_per_container()) {
            return Err(split(resource, ids.len(), &offered));
        }
        let sharing = given.first().map_or(DeviceSharing::Whole, |(of, _)| of.sharing);
        // A device that is not out is present, and so known.
        let devices = given
            .into_iter()
            .filter_map(|(of, count)| Some((of.device?.clone(), count)))
            .collect();
        Ok(AllocatedDevices { devices, sharing })
    }

    /// Refuses what a container has. What was given out and is not seen held since may come again: the kubelet hands the
    /// devices of an init container on to the others of its pod, and those of a pod that it did not admit to the next.
    fn give_once(
        &self,
        resource: &str,
        ids: &BTreeSet<&str>,
        now: Instant,
        unseen: Option<&str>,
    ) -> Result<(), AllocationRefusal> {
        let since = |then: Instant| now.saturating_duration_since(then);
        for id in ids {
            let share = (resource.to_owned(), (*id).to_owned());
            if let Some(pod) = self.held.holder(&share) {
                let (age, unseen) = (self.seen.map(since).unwrap_or_default(), unseen.map(str::to_owned));
                return Err(AllocationRefusal::Held {
                    resource: share.0,
                    id: share.1,
                    pod,
                    age,
                    unseen,
                });
            }
            if let Some(unseen) = unseen
                && let Some(age) = self.held.granted(&share).map(since)
                && age > HANDED_ON
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
}

fn why(unseen: Option<&str>) -> String {
    unseen
        .map(|reason| format!(" (the kubelet could not be asked now: {reason})"))
        .unwrap_or_default()
}

/// The refusal of shares of several devices; in `offered`, those that are asked for count as free.
fn split(resource: &str, asked: usize, offered: &[AdvertisedDevice<'_>]) -> AllocationRefusal {
    let count = |shares: usize| u32::try_from(shares).unwrap_or(u32::MAX);
    let ones = || offered.iter().filter(|of| of.sharing.one_device_per_container());
    let most = ones().min_by_key(|of| (Reverse(of.free()), of.order()));
    AllocationRefusal::Split {
        resource: resource.to_owned(),
        asked: count(asked),
        free_total: count(ones().map(AdvertisedDevice::free).sum::<usize>().max(asked)),
        most_free: count(most.map(AdvertisedDevice::free).unwrap_or_default()),
        device_index: most.and_then(|of| of.device).map(Device::index).unwrap_or_default(),
    }
}

fn split_message(asked: u32, free_total: u32, most_free: u32, device_index: &str) -> String {
    if asked <= most_free {
        return format!(
            "{asked} units of one GPU are needed, and the kubelet picked units of several though {most_free} are free on \
             GPU {device_index}: its topology manager prefers other NUMA nodes"
        );
    }
    format!(
        "{asked} units fit in the {free_total} that are free on this node but not on one GPU: the most that is free on one \
         is {most_free} (GPU {device_index}); ask for at most that, or wait until units are freed"
    )
}
