//! Companions without all of their files, and those that an earlier plugin gave out: nobody gets them until the pods end that have
//! them.
//!
//! A group can gain and lose files while containers hold it. It gives each container the files of that moment, and a file that it
//! loses stays its own until no container holds it any more.

use super::{
    observation::{ContainerShares, PendingChange},
    state::AllocatorState,
};
use crate::{CompanionDevice, DesiredCompanions, DeviceSharing, device_of, is_companion};
use std::{collections::BTreeSet, fmt};

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
    /// A pod holds a device of its resource by an id of another plugin, which may be any file.
    EarlierPlugin {
        /// The pod, as `NAMESPACE/NAME`.
        pod: String,
    },
}

impl fmt::Display for CompanionObstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FileElsewhere { file, pods } if pods.is_empty() => {
                write!(f, "a container may have {file} as a part of another device")
            }
            Self::FileElsewhere { file, pods } => {
                let pods: Vec<&str> = pods.iter().map(String::as_str).collect();
                write!(f, "{file} is a part of another device, which {} holds", pods.join(", "))
            }
            Self::EarlierPlugin { pod } => {
                write!(
                    f,
                    "pod {pod} has a device of this resource from an earlier plugin, which may be this one"
                )
            }
        }
    }
}

impl CompanionObstacle {
    fn into_pods(self) -> Vec<String> {
        match self {
            Self::FileElsewhere { pods, .. } => pods.into_iter().collect(),
            Self::EarlierPlugin { pod } => vec![pod],
        }
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

/// Gives each assigned companion those of its files that no other has.
pub fn claim_files(state: &mut AllocatorState) {
    for (id, device) in &state.companions {
        if state.desired.contains_key(id) && state.assigned.contains_key(id) {
            state.files.claim(device);
        }
    }
}

/// Takes files from companions that no container holds, as the last observation proves: all but those that they have now.
pub fn release_files(state: &mut AllocatorState) {
    for id in state.files.owners() {
        if state.may_be_held(&id, None) || state.awaits_device(&id) {
            continue;
        }
        let stays = state.assigned.contains_key(&id) && state.desired.contains_key(&id);
        let device = state.companions.get(&id).filter(|_| stays);
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
        let holds = |holding: &&ContainerShares| holding.ids.iter().any(|id| device_of(id) == owner);
        let holding = state.held.observed().iter().filter(holds);
        return Some(CompanionObstacle::FileElsewhere {
            file: file.to_owned(),
            pods: holding.map(pod_name).collect(),
        });
    }
    let assignment = state.assigned.get(id)?;
    if assignment.sharing != DeviceSharing::Whole {
        return None;
    }
    let is_foreign = |holding: &&ContainerShares| {
        holding.resource == assignment.resource && holding.ids.iter().any(|id| !is_companion(id))
    };
    let pod = state.held.observed().iter().find(is_foreign).map(pod_name)?;
    Some(CompanionObstacle::EarlierPlugin { pod })
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
    Some(PendingChange {
        device: id.to_owned(),
        message: format!("no further container gets {name}: {obstacle}"),
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
