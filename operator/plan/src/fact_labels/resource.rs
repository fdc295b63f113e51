//! The labels of what is offered: `nvidia.com/gpu.*` and `nvidia.com/mig-PROFILE.*`.

use super::{Labels, cut};
use gpunode_crds::{
    GpuDevice, GpuNodeStatus, MAX_LABEL_VALUE, MigDevice, MigMode, MigStrategy, ResourceStatus, SharingStrategy,
};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

/// What the labels of one resource begin with.
const GPU: &str = "gpu";

/// How one device is shared.
#[derive(Clone, Copy, Debug)]
struct Sharing {
    replicas: i32,
    strategy: SharingStrategy,
    renamed: bool,
}

/// A MIG device and its GPU.
type Part<'a> = (&'a GpuDevice, &'a MigDevice);

/// Adds the labels of the GPUs and, as the MIG strategy in force has it, those of their MIG devices.
pub(super) fn labels(status: &GpuNodeStatus, labels: &mut Labels) {
    gpus(status, labels);
    let parts: Vec<Part<'_>> = status
        .gpus
        .iter()
        .flat_map(|gpu| gpu.mig_devices.iter().map(move |mig| (gpu, mig)))
        .collect();
    match status.mig_strategy {
        Some(MigStrategy::Single) => single(status, &parts, labels),
        Some(MigStrategy::Mixed) => {
            let mut profiles: BTreeMap<&str, Vec<Part<'_>>> = BTreeMap::new();
            for part in parts {
                profiles.entry(&part.1.profile).or_default().push(part);
            }
            for (profile, parts) in profiles {
                mig(status, &format!("mig-{}", profile.replace('+', ".")), &parts, labels);
            }
        }
        Some(MigStrategy::None) | None => {}
    }
}

fn gpus(status: &GpuNodeStatus, labels: &mut Labels) {
    let all: Vec<&GpuDevice> = status.gpus.iter().collect();
    let Some(first) = leading(&all, |gpu| gpu) else { return };
    let of_product = || all.iter().copied().filter(|gpu| gpu.product == first.product);
    // One that is whole tells more than one that is divided.
    let whole = of_product().find(|gpu| !is_divided(gpu));
    let sharing = match whole {
        Some(gpu) => sharing(status, &gpu.uuid),
        None => Sharing {
            replicas: 0,
            ..Sharing::NONE
        },
    };
    let gpu = whole.unwrap_or(first);
    base(GPU, (&gpu.product, ""), of_product().count(), sharing, labels);
    labels.nvidia_if("gpu.memory", Some(&gpu.memory_mib).filter(|mib| **mib > 0));
    if let Some((major, minor)) = gpu.compute_capability.as_deref().and_then(capability) {
        labels.nvidia("gpu.family", &family(major, minor));
        labels.nvidia("gpu.compute.major", &major);
        labels.nvidia("gpu.compute.minor", &minor);
    }
}

/// Strategy single: the MIG devices take the place of the GPUs, which works where all are equal.
fn single(status: &GpuNodeStatus, parts: &[Part<'_>], labels: &mut Labels) {
    let divided: Vec<&GpuDevice> = status.gpus.iter().filter(|gpu| is_divided(gpu)).collect();
    let Some(first) = divided.first() else { return };
    let profiles: BTreeSet<&str> = parts.iter().map(|(_, mig)| mig.profile.as_str()).collect();
    let is_whole = divided.len() == status.gpus.len() && divided.iter().all(|gpu| !gpu.mig_devices.is_empty());
    if is_whole && profiles.len() == 1 {
        return mig(status, GPU, parts, labels);
    }
    labels.nvidia("gpu.product", &value(&first.product, "-MIG-INVALID"));
    for name in ["count", "replicas", "memory"] {
        labels.nvidia(&format!("gpu.{name}"), &0);
    }
    labels.nvidia("gpu.sharing-strategy", "");
}

fn mig(status: &GpuNodeStatus, resource: &str, parts: &[Part<'_>], labels: &mut Labels) {
    let Some((gpu, mig)) = leading(parts, |(gpu, _)| *gpu) else {
        return;
    };
    // What a label's value cannot have is dropped.
    let profile: String = mig
        .profile
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || "-.".contains(*c))
        .collect();
    let sharing = sharing(status, &mig.uuid);
    base(
        resource,
        (&gpu.product, &format!("-MIG-{profile}")),
        parts.len(),
        sharing,
        labels,
    );
    let mut set = |name: &str, value: Option<i64>| labels.nvidia_if(&format!("{resource}.{name}"), value.as_ref());
    let (slices, engines) = (mig.slices, mig.engines);
    set("memory", Some(mig.memory_mib));
    set("multiprocessors", mig.multiprocessors.map(i64::from));
    set("slices.gi", slices.map(|slices| slices.gpu_instance.into()));
    set("slices.ci", slices.map(|slices| slices.compute_instance.into()));
    set("engines.copy", engines.map(|engines| engines.copy.into()));
    set("engines.decoder", engines.map(|engines| engines.decoder.into()));
    set("engines.encoder", engines.map(|engines| engines.encoder.into()));
    set("engines.jpeg", engines.map(|engines| engines.jpeg.into()));
    set("engines.ofa", engines.map(|engines| engines.ofa.into()));
}

/// What every resource has.
fn base(resource: &str, (product, part): (&str, &str), count: usize, sharing: Sharing, labels: &mut Labels) {
    let shared = if sharing.replicas > 1 && !sharing.renamed {
        "-SHARED"
    } else {
        ""
    };
    let strategy = match sharing.strategy {
        _ if sharing.replicas <= 1 => "none",
        SharingStrategy::None => "none",
        SharingStrategy::TimeSlicing => "time-slicing",
        SharingStrategy::Memory => "memory",
        SharingStrategy::Mps => "mps",
    };
    labels.nvidia(
        &format!("{resource}.product"),
        &value(product, &format!("{part}{shared}")),
    );
    labels.nvidia(&format!("{resource}.count"), &count);
    labels.nvidia(&format!("{resource}.replicas"), &sharing.replicas);
    labels.nvidia(&format!("{resource}.sharing-strategy"), strategy);
}

/// A product and what is said of it, as long as a value may be.
fn value(product: &str, suffix: &str) -> String {
    format!("{}{suffix}", cut(product, MAX_LABEL_VALUE.saturating_sub(suffix.len())))
}

/// The first of the product that most of these are of; of several such products that of the lowest index.
fn leading<'a, T>(items: &'a [T], gpu: impl Fn(&'a T) -> &'a GpuDevice) -> Option<&'a T> {
    let count = |item: &'a T| {
        items
            .iter()
            .filter(|other| gpu(other).product == gpu(item).product)
            .count()
    };
    items
        .iter()
        .enumerate()
        .min_by_key(|(at, item)| (Reverse(count(item)), *at))
        .map(|(_, item)| item)
}

impl Sharing {
    const NONE: Self = Self {
        replicas: 1,
        strategy: SharingStrategy::None,
        renamed: false,
    };
}

/// How the device with that UUID is shared; not at all where nothing says so.
fn sharing(status: &GpuNodeStatus, uuid: &str) -> Sharing {
    let of = |resource: &ResourceStatus| {
        let device = resource.devices.iter().find(|device| device.device == uuid)?;
        let strategy = resource.sharing.unwrap_or_default();
        Some(Sharing {
            replicas: device.shares,
            strategy,
            renamed: resource.renamed,
        })
    };
    status.resources.iter().find_map(of).unwrap_or(Sharing::NONE)
}

fn is_divided(gpu: &GpuDevice) -> bool {
    gpu.mig_mode == Some(MigMode::Enabled)
}

fn capability(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once('.')?;
    Some((major.parse().ok().filter(|major| *major > 0)?, minor.parse().ok()?))
}

/// The architecture as GPU feature discovery names it, which knows more than gpunode selects by.
fn family(major: u32, minor: u32) -> &'static str {
    match (major, minor) {
        (1, _) => "tesla",
        (2, _) => "fermi",
        (3, _) => "kepler",
        (5, _) => "maxwell",
        (6, _) => "pascal",
        (7, 0..5) => "volta",
        (7, _) => "turing",
        (8, 0..9) => "ampere",
        (8, _) => "ada-lovelace",
        (9, _) => "hopper",
        (10 | 12, _) => "blackwell",
        (13, _) => "rubin",
        _ => "undefined",
    }
}
