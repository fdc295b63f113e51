//! Resources and their sharing as a configuration (`internal/rm/device_map.go`).

use super::{
    devices::{DeviceRef, SharedDevices},
    file::{NamedPattern, PluginFile, SharedResource, SharedResources},
    report::Report,
};
use crate::{Allocation, DeviceKind, DeviceSelector, MigStrategy, ResourceConfig, Sharing, SharingStrategy};

/// Resource of whole GPUs, and of MIG devices under the strategy `single`.
const GPU: &str = "nvidia.com/gpu";
/// Beginning of the names of MIG devices under the strategy `mixed`.
const MIG_PREFIX: &str = "nvidia.com/mig-";
/// End of the name of a resource that `renameByDefault` renames.
const SHARED: &str = ".shared";

/// Treatment of the parts of a file that the plugin reads and then discards: `resources`, `rename` and `devices`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DiscardedParts {
    /// They are left out, as the plugin does.
    #[default]
    Ignore,
    /// They are taken as the file says.
    Honour,
}

/// Options that decide about resources.
#[derive(Clone, Copy, Debug)]
pub(super) struct ImportRules {
    pub mig: MigStrategy,
    /// Choice among shared devices.
    pub allocation: Allocation,
    pub discarded: DiscardedParts,
}

/// Returns the resources of a file; none of them is `nvidia.com/gpu` for every GPU.
pub(super) fn resources(file: &PluginFile, rules: ImportRules, report: &mut Report) -> Vec<ResourceConfig> {
    let mut resources = match rules.discarded {
        DiscardedParts::Ignore => {
            for (key, patterns) in [("gpus", &file.gpus), ("mig", &file.mig)] {
                if !patterns.is_empty() {
                    report.ignored(
                        format!("resources.{key}"),
                        "left out; --as-written takes it as the file says",
                    );
                }
            }
            Vec::new()
        }
        DiscardedParts::Honour => named(file, rules.mig, report),
    };
    // The plugin's own rules come last.
    if resources.iter().all(|resource| resource.name != GPU) {
        resources.push(plain(GPU));
    }
    let (shared, strategy) = match (&file.mps, &file.time_slicing) {
        (Some(mps), time_slicing) => {
            if let Some(time_slicing) = time_slicing {
                report.ignored(&time_slicing.path, "sharing.mps comes before it; remove one of them");
            }
            if mps.fail_requests_greater_than_one == Some(false) {
                report.differs(
                    "sharing.mps.failRequestsGreaterThanOne",
                    "a container gets all its shares from one GPU, with as many parts of it; NVIDIA's plugin takes them from \
                     several GPUs, with one part of each",
                );
            }
            (mps, SharingStrategy::Mps)
        }
        (None, Some(time_slicing)) => (time_slicing, SharingStrategy::TimeSlicing),
        (None, None) => {
            let is_default = resources == [plain(GPU)];
            return if is_default { Vec::new() } else { resources };
        }
    };
    for (place, resource) in shared.resources.iter().enumerate() {
        if shared.resources[..place]
            .iter()
            .any(|earlier| earlier.name == resource.name)
        {
            report.refuse(
                &resource.path,
                format!("{} is shared twice; keep one entry", resource.name),
            );
            continue;
        }
        let sharing = Sharing {
            strategy,
            replicas: Some(resource.replicas),
            // Under MPS the plugin fails such requests unless the file says otherwise.
            fail_requests_greater_than_one: shared
                .fail_requests_greater_than_one
                .or((strategy == SharingStrategy::Mps).then_some(true)),
            ..Sharing::default()
        };
        share(&mut resources, shared, resource, sharing, rules, report);
    }
    resources
}

/// Returns the resources that the patterns of a file name.
fn named(file: &PluginFile, mig: MigStrategy, report: &mut Report) -> Vec<ResourceConfig> {
    let mut resources: Vec<ResourceConfig> = Vec::new();
    if mig == MigStrategy::None && !file.mig.is_empty() {
        report.ignored("resources.mig", "migStrategy none has no MIG devices");
    } else {
        for pattern in &file.mig {
            if pattern.name == GPU {
                report.refuse(
                    &pattern.path,
                    format!("{GPU} is the name of whole GPUs, too; give MIG devices another one"),
                );
                continue;
            }
            add(
                &mut resources,
                pattern,
                |selector| &mut selector.mig_profiles,
                pattern.pattern.clone(),
                report,
            );
        }
    }
    for (place, pattern) in file.gpus.iter().enumerate() {
        let is_last = place + 1 == file.gpus.len();
        if pattern.pattern == "*" || (pattern.name == GPU && is_last) {
            // Whatever is left; GPUs that match nothing are the plugin's nvidia.com/gpu in any case.
            if resources.iter().any(|resource| resource.name == pattern.name) {
                report.refuse(&pattern.path, format!("{} is named twice", pattern.name));
            }
            resources.push(ResourceConfig {
                // MIG devices are nvidia.com/gpu, too.
                devices: whole_gpus(mig).filter(|_| pattern.name != GPU),
                ..plain(&pattern.name)
            });
            if !is_last {
                report.ignored("resources.gpus", "no GPU is left for the entries after the pattern *");
            }
            break;
        }
        if pattern.name == GPU {
            report.refuse(
                &pattern.path,
                format!("every other GPU is {GPU}, too; put this entry last"),
            );
        }
        // Products are in label form, where `-` stands for a space.
        let product = pattern.pattern.replace(' ', "-");
        add(
            &mut resources,
            pattern,
            |selector| &mut selector.products,
            product,
            report,
        );
    }
    for resource in &mut resources {
        if let Some(devices) = &mut resource.devices
            && devices.products.is_some()
        {
            devices.kind = whole_gpus(mig).and_then(|whole| whole.kind);
        }
    }
    resources
}

/// Returns the selector of whole GPUs, where no selector would have MIG devices, too.
fn whole_gpus(mig: MigStrategy) -> Option<DeviceSelector> {
    (mig == MigStrategy::Single).then(|| DeviceSelector {
        kind: Some(DeviceKind::FullGpu),
        ..DeviceSelector::default()
    })
}

/// Adds a glob to the resource of that name, which comes to be with its first.
fn add(
    resources: &mut Vec<ResourceConfig>,
    pattern: &NamedPattern,
    globs: impl Fn(&mut DeviceSelector) -> &mut Option<Vec<String>>,
    glob: String,
    report: &mut Report,
) {
    if pattern.pattern.contains('?') {
        return report.refuse(
            &pattern.path,
            "`?` is a question mark there, and any character here; write *",
        );
    }
    let place = resources.iter().position(|resource| resource.name == pattern.name);
    let place = place.unwrap_or_else(|| {
        resources.push(plain(&pattern.name));
        resources.len() - 1
    });
    let devices = resources[place].devices.get_or_insert_default();
    globs(devices).get_or_insert_default().push(glob);
    if devices.products.is_some() && devices.mig_profiles.is_some() {
        report.refuse(
            &pattern.path,
            format!(
                "{} is a resource of GPUs and of MIG devices; give them different names",
                pattern.name
            ),
        );
    }
}

fn plain(name: &str) -> ResourceConfig {
    ResourceConfig {
        name: name.to_owned(),
        ..ResourceConfig::default()
    }
}

/// Shares the devices of a resource, or some of them.
fn share(
    resources: &mut Vec<ResourceConfig>,
    shared: &SharedResources,
    resource: &SharedResource,
    mut sharing: Sharing,
    rules: ImportRules,
    report: &mut Report,
) {
    let Some(place) = place_of(resources, &resource.name, rules.mig) else {
        return report.ignored(
            format!("{}.name", resource.path),
            format!("no device is {} under this migStrategy", resource.name),
        );
    };
    let default_rename = format!("{}{SHARED}", resource.name);
    let rename = match &resource.rename {
        Some(rename) if shared.rename_by_default && *rename == default_rename => None,
        Some(rename) if rules.discarded == DiscardedParts::Honour => Some(rename.clone()),
        Some(_) => {
            let path = format!("{}.rename", resource.path);
            report.ignored(path, "left out; --as-written takes it as the file says");
            None
        }
        None => None,
    };
    sharing.rename_by_default = (shared.rename_by_default && rename.is_none()).then_some(true);
    let is_part = resource.devices != SharedDevices::All && rules.discarded == DiscardedParts::Honour;
    if resource.devices != SharedDevices::All && !is_part {
        let path = format!("{}.devices", resource.path);
        report.ignored(
            path,
            "left out, so every device is shared; --as-written takes it as the file says",
        );
    }
    let name = rename.unwrap_or_else(|| resource.name.clone());
    if !is_part {
        let entry = &mut resources[place];
        entry.name = name;
        entry.sharing = Some(sharing);
        entry.allocation = Some(rules.allocation);
        return;
    }
    let Some(selected) = selector(resource, report) else {
        return;
    };
    // The devices of one resource have the same sharing, so the shared ones need a name of their own.
    let name = if sharing.rename_by_default.take().is_some() {
        default_rename
    } else {
        name
    };
    if name == resource.name {
        return report.refuse(
            format!("{}.devices", resource.path),
            "the devices of one resource are shared alike: set `rename` for the shared ones, or remove `devices`",
        );
    }
    let rest = &resources[place];
    let devices = DeviceSelector {
        indices: selected.indices,
        uuids: selected.uuids,
        ..rest.devices.clone().unwrap_or_default()
    };
    let part = ResourceConfig {
        name,
        devices: Some(devices),
        allocation: Some(rules.allocation),
        sharing: Some(sharing),
    };
    resources.insert(place, part);
}

/// Returns the place of a resource by name. MIG devices under `mixed` get an entry of their own.
fn place_of(resources: &mut Vec<ResourceConfig>, name: &str, mig: MigStrategy) -> Option<usize> {
    if let Some(place) = resources.iter().position(|resource| resource.name == name) {
        return Some(place);
    }
    let profile = name.strip_prefix(MIG_PREFIX).filter(|_| mig == MigStrategy::Mixed)?;
    // `1g.10gb+me` is advertised as `mig-1g.10gb.me`.
    let profile = match profile.split_once("gb.") {
        Some((size, attributes)) => format!("{size}gb+{attributes}"),
        None => profile.to_owned(),
    };
    let devices = DeviceSelector {
        mig_profiles: Some(vec![profile]),
        ..DeviceSelector::default()
    };
    let entry = ResourceConfig {
        devices: Some(devices),
        ..plain(name)
    };
    // Beside it, an entry without a selector has whole GPUs alone.
    resources.push(entry);
    Some(resources.len() - 1)
}

/// Returns the selector of a list of devices.
fn selector(resource: &SharedResource, report: &mut Report) -> Option<DeviceSelector> {
    let path = format!("{}.devices", resource.path);
    let SharedDevices::List(list) = &resource.devices else {
        report.refuse(
            path,
            "a number of devices leaves open which they are; list their indices or UUIDs",
        );
        return None;
    };
    let (mut indices, mut uuids) = (Vec::new(), Vec::new());
    for device in list {
        match device {
            DeviceRef::Index(index) => indices.push(*index),
            DeviceRef::Uuid(uuid) => uuids.push(uuid.clone()),
            DeviceRef::MigIndex(index) => {
                report.refuse(
                    path,
                    format!(
                        "the index of MIG device {index} changes with the layout; write its UUID, or share its profile"
                    ),
                );
                return None;
            }
        }
    }
    if !indices.is_empty() && !uuids.is_empty() {
        report.refuse(
            path,
            "a device must meet every condition of a selector; write UUIDs alone, or indices alone",
        );
        return None;
    }
    Some(DeviceSelector {
        indices: Some(indices).filter(|indices| !indices.is_empty()),
        uuids: Some(uuids).filter(|uuids| !uuids.is_empty()),
        ..DeviceSelector::default()
    })
}
