//! Companions without all of their files, and those that an earlier plugin gave out: nobody gets them until the pods end that have
//! them.
//!
//! A group can gain and lose files while containers hold it. It gives each container the files of that moment, and a file that it
//! loses stays its own until no container holds it any more.

use super::{
    observation::{ContainerShares, PendingChange},
    state::AllocatorState,
};
use crate::{
    CompanionDevice, DesiredCompanions, DeviceSharing,
    desired::{fits_bytes, list_bytes},
    device_of, is_companion,
};
use gpunode_crds::named;
use std::{collections::BTreeSet, fmt, time::Instant};

/// Most pods that a message names.
const MAX_PODS: usize = 3;

/// Reason why no container gets a companion that is assigned as desired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CompanionObstacle {
    /// Containers of another companion have one of its files.
    FileElsewhere {
        /// The file, by path on the host.
        file: String,
        /// Pods that hold the other companion, as `NAMESPACE/NAME`.
        pods: BTreeSet<String>,
    },
    /// Pods hold devices of its resource by ids of another plugin, which may be any file.
    EarlierPlugin {
        /// The pods, as `NAMESPACE/NAME`; none if only the kubelet's checkpoint tells of them.
        pods: BTreeSet<String>,
    },
    /// Containers hold a companion of which nobody knows the files: those may be any.
    UnknownFiles {
        /// The pods, as `NAMESPACE/NAME`; none if only the kubelet's checkpoint tells of them.
        pods: BTreeSet<String>,
    },
}

impl fmt::Display for CompanionObstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FileElsewhere { file, pods } if pods.is_empty() => {
                write!(f, "a container may have {file} as a part of another device")
            }
            Self::FileElsewhere { file, pods } => {
                write!(
                    f,
                    "{file} is a part of another device, held by {}",
                    named(pods, MAX_PODS)
                )
            }
            Self::EarlierPlugin { pods } if pods.is_empty() => f.write_str(
                "the kubelet's checkpoint has devices of this resource from an earlier plugin, and one may be this",
            ),
            Self::UnknownFiles { pods } if pods.is_empty() => {
                f.write_str("the kubelet's checkpoint has a device whose files are not known, and one may be of this")
            }
            Self::UnknownFiles { pods } => {
                write!(
                    f,
                    "{} have a device whose files are not known, and one may be of this",
                    named(pods, MAX_PODS)
                )
            }
            Self::EarlierPlugin { pods } => {
                let pods = named(pods, MAX_PODS);
                write!(
                    f,
                    "an earlier plugin gave devices of this resource to {pods}, and one may be this"
                )
            }
        }
    }
}

impl CompanionObstacle {
    fn into_pods(self) -> Vec<String> {
        let (Self::FileElsewhere { pods, .. } | Self::EarlierPlugin { pods } | Self::UnknownFiles { pods }) = self;
        pods.into_iter().collect()
    }
}

/// Takes the desired companions. Known ones that are still assigned stay known, and count as present while all of their files exist.
pub fn set_desired(state: &mut AllocatorState, new: &DesiredCompanions, existing: &BTreeSet<String>) {
    let assigned = &state.assigned;
    state.companions.retain(|id, _| assigned.contains_key(id));
    state.present.retain(|id| !is_companion(id));
    let exists = |id: &&String| {
        let mut files = state.files.of(id).peekable();
        files.peek().is_some() && files.all(|file| existing.contains(file))
    };
    let left = state.assigned.keys().filter(|id| is_companion(id)).filter(exists);
    state.present.extend(left.cloned());
    state.desired.retain(|id, _| !is_companion(id));
    for desired in &new.devices {
        let id = &desired.device.id;
        state.present.insert(id.clone());
        state.companions.insert(id.clone(), desired.device.clone());
        state.desired.insert(id.clone(), desired.assignment.clone());
    }
    state.companion_order.clone_from(&new.order);
    state.known.companions = true;
}

/// Gives each assigned companion those of its files that no other has, and notes the held ones whose files nobody knows.
pub fn claim_files(state: &mut AllocatorState) {
    for (id, device) in &state.companions {
        if state.desired.contains_key(id) && state.assigned.contains_key(id) {
            state.files.claim(device);
        }
    }
    let held = state.held.devices().filter(|id| is_companion(id));
    state.unknown_companions = held.filter(|id| state.files.are_unknown(id)).cloned().collect();
}

/// Takes files from companions that no container holds, as the observation that began then proves: all but those that they have now.
pub fn release_files(state: &mut AllocatorState, started: Instant) {
    for id in state.files.owners() {
        let (is_assigned, is_desired) = (state.assigned.contains_key(&id), state.desired.contains_key(&id));
        // While it is assigned and no longer desired, the kubelet may still allocate it.
        if !state.is_proven(&id, started)
            || state.may_be_held(&id, None)
            || state.awaits_device(&id)
            || (is_assigned && !is_desired)
        {
            continue;
        }
        let device = state.companions.get(&id).filter(|_| is_assigned);
        let keeps = device.into_iter().flat_map(CompanionDevice::host_paths).collect();
        state.files.release(&id, &keeps);
    }
}

/// Returns the reason why no container gets a companion; none for one that changes, and for GPUs.
pub fn companion_obstacle(state: &AllocatorState, id: &str) -> Option<CompanionObstacle> {
    if !is_companion(id) {
        return None;
    }
    let device = state.companions.get(id)?;
    if let Some((file, owner)) = state.files.lacked(device) {
        return Some(CompanionObstacle::FileElsewhere {
            file: file.to_owned(),
            pods: pods_with(state, |_, share| device_of(share) == owner),
        });
    }
    if state.files.has_lost_beside(id) || state.unknown_companions.iter().any(|other| other != id) {
        let is_unknown = |_: &str, share: &str| {
            let other = device_of(share);
            other != id && state.unknown_companions.contains(other)
        };
        let pods = pods_with(state, is_unknown);
        return Some(CompanionObstacle::UnknownFiles { pods });
    }
    let assignment = state.assigned.get(id)?;
    let is_foreign = |resource: &str, id: &str| resource == assignment.resource && !is_companion(id);
    (assignment.sharing == DeviceSharing::Whole && state.held.has(is_foreign)).then(|| {
        CompanionObstacle::EarlierPlugin {
            pods: pods_with(state, is_foreign),
        }
    })
}

/// Returns true if only the kubelet's checkpoint keeps a companion from containers.
pub fn waits_for_checkpoint(state: &AllocatorState) -> bool {
    held_back_companions(state).any(|id| match companion_obstacle(state, id) {
        Some(CompanionObstacle::EarlierPlugin { pods } | CompanionObstacle::UnknownFiles { pods }) => pods.is_empty(),
        Some(CompanionObstacle::FileElsewhere { .. }) | None => false,
    })
}

/// Returns the pods that hold a share like that, as `NAMESPACE/NAME`.
fn pods_with(state: &AllocatorState, is_like: impl Fn(&str, &str) -> bool) -> BTreeSet<String> {
    let holds = |holding: &&ContainerShares| holding.ids.iter().any(|id| is_like(&holding.resource, id));
    state.held.observed().iter().filter(holds).map(pod_name).collect()
}

/// Returns true if the kubelet's list of a resource has room for a companion with this sharing beside the other devices, also those
/// that wait for their pods.
pub fn has_room(state: &AllocatorState, id: &str, resource: &str, sharing: &DeviceSharing) -> bool {
    let others = state
        .assigned
        .iter()
        .filter(|(other, of)| *other != id && of.resource == resource);
    let others = others.map(|(other, of)| listed_bytes(state, other, &of.sharing));
    fits_bytes(others.chain([listed_bytes(state, id, sharing)]).sum())
}

/// Returns the bytes of a device's shares in the kubelet's list, with those beyond their number that may still be listed.
fn listed_bytes(state: &AllocatorState, id: &str, sharing: &DeviceSharing) -> usize {
    let former = state.resizes.former.get(id).into_iter().flat_map(|of| &of.numbers);
    let beyond = former.filter(|number| **number >= sharing.shares()).count();
    list_bytes(id, beyond.saturating_add(sharing.shares() as usize))
}

fn pod_name(holding: &ContainerShares) -> String {
    format!("{}/{}", holding.namespace, holding.pod)
}

/// Returns the ids of the companions that are assigned as desired and that nobody gets.
pub fn held_back_companions(state: &AllocatorState) -> impl Iterator<Item = &str> {
    let as_desired = state
        .assigned
        .iter()
        .filter(|(id, now)| state.desired.get(*id) == Some(now));
    let held_back = as_desired.filter(|(id, _)| companion_obstacle(state, id).is_some());
    held_back.map(|(id, _)| id.as_str())
}

/// Describes a companion that is assigned as desired and that nobody gets.
pub fn describe_held_back(state: &AllocatorState, id: &str) -> Option<PendingChange> {
    if state.assigned.get(id)? != state.desired.get(id)? {
        return None;
    }
    let obstacle = companion_obstacle(state, id)?;
    let name = companion_name(state, id);
    let further = if state.held.holds_of(id, None) { "further " } else { "" };
    Some(PendingChange {
        device: id.to_owned(),
        message: format!("no {further}container gets {name}: {obstacle}"),
        pods: obstacle.into_pods(),
        switches: false,
    })
}

/// Returns the name of a companion for people.
pub fn companion_name(state: &AllocatorState, id: &str) -> String {
    match state.companions.get(id) {
        Some(device) => device.name(),
        None => state.files.of(id).next().unwrap_or(id).to_owned(),
    }
}
