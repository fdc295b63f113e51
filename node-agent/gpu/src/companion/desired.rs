//! Configuration and files to desired devices.

use super::{
    device::CompanionDevice,
    file::{CompanionFile, CompanionFiles},
};
use crate::{
    Assignment, DeviceSharing,
    desired::{DeviceProblem, DeviceProblemKind, most_devices},
};
use gpunode_config::{AgentConfig, CompanionConfig, CompanionGroup};
use gpunode_crds::MAX_DEVICES;
use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
};

/// Most files of one device.
const MAX_DEVICE_FILES: usize = MAX_DEVICES;
/// Most refusals that a message names.
const MAX_NAMED: usize = 3;

/// The desired companions of a node under a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DesiredCompanions {
    /// Names of the resources in the order of the configuration. One without a device is advertised as empty.
    pub order: Vec<String>,
    /// Devices, in the order of the configuration, then by file.
    pub devices: Vec<DesiredCompanion>,
    /// Files that are refused, and resources without a device.
    pub problems: Vec<DeviceProblem>,
}

/// A companion with its desired assignment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredCompanion {
    /// The device.
    pub device: CompanionDevice,
    /// Its desired resource and sharing.
    pub assignment: Assignment,
}

/// Returns the desired companions of these files. A file belongs to the first companion of which it makes up a device. Where there
/// are too many devices, those that are `assigned` come first: a new file takes no device from a container.
pub fn desired_companions(
    config: &AgentConfig,
    files: &CompanionFiles,
    assigned: impl Fn(&str) -> bool,
) -> DesiredCompanions {
    let mut desired = DesiredCompanions::default();
    let mut taken = BTreeSet::new();
    for companion in &config.companions {
        let resource = &companion.resource;
        let matched = files.get(resource).cloned().unwrap_or_default();
        let mut refused = matched.refused;
        let own = matched
            .files
            .into_iter()
            .filter(|file| !taken.contains(&file.host_path));
        let own: Vec<CompanionFile> = own.filter(|file| is_fit(companion, file, &mut refused)).collect();
        let missing = missing_glob(companion, &own);
        let devices = grouped(companion, own);
        taken.extend(devices.iter().flat_map(CompanionDevice::host_paths).cloned());
        let sharing = sharing(companion);
        let devices = bounded(companion, sharing, devices, &assigned, &mut refused);
        desired.order.push(resource.clone());
        let is_empty = devices.is_empty();
        desired.problems.extend(refusal(resource, &refused, is_empty));
        desired.problems.extend(
            missing
                .filter(|_| is_empty && refused.is_empty())
                .map(|missing| DeviceProblem {
                    resource: resource.clone(),
                    kind: DeviceProblemKind::FileMissing,
                    message: format!("resource {resource} has no device: {missing}"),
                }),
        );
        desired
            .devices
            .extend(devices.into_iter().map(|device| DesiredCompanion {
                device,
                assignment: Assignment {
                    resource: resource.clone(),
                    sharing,
                    gpu_uuid: None,
                },
            }));
    }
    desired
}

/// Returns the sharing of a companion's devices. Shares stay the same when their number changes, as those of time slicing.
fn sharing(companion: &CompanionConfig) -> DeviceSharing {
    match companion.shares() {
        1 => DeviceSharing::Whole,
        replicas => DeviceSharing::TimeSlicing { replicas },
    }
}

/// Returns true for a file that the companion can hand out; the reason why not is among `refused` otherwise.
fn is_fit(companion: &CompanionConfig, file: &CompanionFile, refused: &mut Vec<String>) -> bool {
    let needs_device = companion.injection().device_nodes.is_some();
    let reason = if needs_device && !file.is_device {
        "is no device node; to mount it, set `inject.mounts` and leave out `inject.deviceNodes`"
    } else if companion.group() == CompanionGroup::PciSlot && file.pci_slot.is_none() {
        "belongs to no PCI slot in sysfs, which `group: PciSlot` needs"
    } else {
        return true;
    };
    refused.push(format!("{} {reason}", file.path));
    false
}

/// Returns the devices that files make up. Files that belong together are a device once each glob matches one of them: the nodes
/// of a card come one after the other, and a part of a card is none.
fn grouped(companion: &CompanionConfig, files: Vec<CompanionFile>) -> Vec<CompanionDevice> {
    let is_complete = |files: &[CompanionFile]| {
        let mut globs = 0..companion.paths.len();
        globs.all(|glob| files.iter().any(|file| file.globs.contains(&glob)))
    };
    let device = |identity: String, files| CompanionDevice::new(&identity, files, companion.injection());
    match companion.group() {
        CompanionGroup::Each => {
            let devices = files.into_iter();
            devices
                .map(|file| device(format!("file {}", file.host_path), vec![file]))
                .collect()
        }
        CompanionGroup::Together if !is_complete(&files) => Vec::new(),
        CompanionGroup::Together => vec![device(format!("resource {}", companion.resource), files)],
        CompanionGroup::PciSlot => {
            let mut slots: BTreeMap<String, Vec<CompanionFile>> = BTreeMap::new();
            for file in files {
                slots
                    .entry(file.pci_slot.clone().unwrap_or_default())
                    .or_default()
                    .push(file);
            }
            let devices = slots.into_iter().filter(|(_, files)| is_complete(files));
            devices
                .map(|(slot, files)| device(format!("slot {slot} of {}", companion.resource), files))
                .collect()
        }
    }
}

/// Returns as many devices as a list of the kubelet and status have room for, each with as many files.
fn bounded(
    companion: &CompanionConfig,
    sharing: DeviceSharing,
    mut devices: Vec<CompanionDevice>,
    assigned: impl Fn(&str) -> bool,
    refused: &mut Vec<String>,
) -> Vec<CompanionDevice> {
    for device in &mut devices {
        let count = device.files.len();
        if count > MAX_DEVICE_FILES {
            let mut covered: BTreeSet<usize> = BTreeSet::new();
            // The first of each glob stays: a device without it would be a part of one.
            let is_needed = |file: &CompanionFile| {
                let before = covered.len();
                covered.extend(&file.globs);
                covered.len() > before
            };
            let (mut kept, others): (Vec<_>, Vec<_>) = mem::take(&mut device.files).into_iter().partition(is_needed);
            kept.extend(others);
            kept.truncate(MAX_DEVICE_FILES);
            kept.sort();
            device.files = kept;
            refused.push(format!(
                "one device has {count} files, of which {MAX_DEVICE_FILES} are handed out; name fewer in `paths`"
            ));
        }
    }
    let (count, most) = (devices.len(), most_devices(sharing).min(MAX_DEVICES));
    if count > most {
        let (mut kept, others): (Vec<_>, Vec<_>) = devices.into_iter().partition(|device| assigned(&device.id));
        kept.extend(others);
        kept.truncate(most);
        kept.sort_by(|one, other| one.files.cmp(&other.files));
        devices = kept;
        let remedy = if most < MAX_DEVICES {
            "lower `shares`"
        } else {
            "name fewer in `paths`"
        };
        refused.push(format!(
            "{count} devices match the {} of `paths`, and a resource has at most {most}; {remedy}",
            if companion.paths.len() == 1 { "glob" } else { "globs" }
        ));
    }
    devices
}

/// Returns the reason why files make up no device, if it is that some are missing.
fn missing_glob(companion: &CompanionConfig, files: &[CompanionFile]) -> Option<String> {
    let has_file = |glob: usize| files.iter().any(|file| file.globs.contains(&glob));
    let missing = companion.paths.iter().enumerate().find(|(glob, _)| !has_file(*glob));
    match (missing, companion.group()) {
        (Some((_, glob)), _) => Some(format!("no file matches {glob}")),
        (None, CompanionGroup::PciSlot) => Some("no PCI slot has a file of each glob".to_owned()),
        (None, CompanionGroup::Each | CompanionGroup::Together) => None,
    }
}

/// Returns the problem of refused files. It is graver where the resource has no device at all.
fn refusal(resource: &str, refused: &[String], is_empty: bool) -> Option<DeviceProblem> {
    let named = refused.iter().take(MAX_NAMED).cloned().collect::<Vec<_>>().join("; ");
    let more = match refused.len().saturating_sub(MAX_NAMED) {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    (!refused.is_empty()).then(|| DeviceProblem {
        resource: resource.to_owned(),
        kind: if is_empty {
            DeviceProblemKind::EveryFileRefused
        } else {
            DeviceProblemKind::FileRefused
        },
        message: format!("resource {resource}: {named}{more}"),
    })
}
