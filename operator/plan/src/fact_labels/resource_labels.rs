//! The labels of GPUs and MIG devices: `nvidia.com/gpu.*` and `nvidia.com/mig-PROFILE.*`.

use crate::fact_labels::label_set::{FactLabels, cut};
use gpunode_crds::{
    GpuDevice, GpuNodeStatus, MAX_LABEL_VALUE, MigDevice, MigMode, MigStrategy, ResourceStatus, SharingStrategy,
};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

/// Prefix of the labels of GPUs.
const GPU: &str = "gpu";

/// Sharing of one device.
#[derive(Clone, Copy, Debug)]
struct SharingFacts {
    replicas: i32,
    strategy: SharingStrategy,
    renamed: bool,
}

/// MIG device and its GPU.
type MigPart<'a> = (&'a GpuDevice, &'a MigDevice);

/// Adds the labels of the GPUs and, depending on the MIG strategy in force, those of their MIG devices.
pub fn add_resource_labels(status: &GpuNodeStatus, labels: &mut FactLabels) {
    add_gpus(status, labels);
    let parts: Vec<MigPart<'_>> = status
        .gpus
        .iter()
        .flat_map(|gpu| gpu.mig_devices.iter().map(move |mig| (gpu, mig)))
        .collect();
    match status.mig_strategy {
        Some(MigStrategy::Single) => add_single_strategy(status, &parts, labels),
        Some(MigStrategy::Mixed) => {
            let mut profiles: BTreeMap<&str, Vec<MigPart<'_>>> = BTreeMap::new();
            for part in parts {
                profiles.entry(&part.1.profile).or_default().push(part);
            }
            for (profile, parts) in profiles {
                add_mig_devices(status, &format!("mig-{}", profile.replace('+', ".")), &parts, labels);
            }
        }
        Some(MigStrategy::None) | None => {}
    }
}

fn add_gpus(status: &GpuNodeStatus, labels: &mut FactLabels) {
    let all: Vec<&GpuDevice> = status.gpus.iter().collect();
    let Some(first) = most_frequent(&all, |gpu| gpu) else {
        return;
    };
    let of_product = || all.iter().copied().filter(|gpu| gpu.product == first.product);
    // Prefers a GPU without MIG, whose labels tell more.
    let whole = of_product().find(|gpu| !is_divided(gpu));
    let sharing = match whole {
        Some(gpu) => sharing(status, &gpu.uuid),
        None => SharingFacts {
            replicas: 0,
            ..SharingFacts::NONE
        },
    };
    let gpu = whole.unwrap_or(first);
    add_common(GPU, (&gpu.product, ""), of_product().count(), sharing, labels);
    labels.nvidia_if("gpu.memory", Some(&gpu.memory_mib).filter(|mib| **mib > 0));
    if let Some((major, minor)) = gpu.compute_capability.as_deref().and_then(capability) {
        labels.nvidia("gpu.family", &family(major, minor));
        labels.nvidia("gpu.compute.major", &major);
        labels.nvidia("gpu.compute.minor", &minor);
    }
}

/// Adds the labels of strategy single: MIG devices take the place of the GPUs, which works where all are equal.
fn add_single_strategy(status: &GpuNodeStatus, parts: &[MigPart<'_>], labels: &mut FactLabels) {
    let divided: Vec<&GpuDevice> = status.gpus.iter().filter(|gpu| is_divided(gpu)).collect();
    let Some(first) = divided.first() else { return };
    let profiles: BTreeSet<&str> = parts.iter().map(|(_, mig)| mig.profile.as_str()).collect();
    let is_whole = divided.len() == status.gpus.len() && divided.iter().all(|gpu| !gpu.mig_devices.is_empty());
    if is_whole && profiles.len() == 1 {
        return add_mig_devices(status, GPU, parts, labels);
    }
    labels.nvidia("gpu.product", &product_value(&first.product, "-MIG-INVALID"));
    for name in ["count", "replicas", "memory"] {
        labels.nvidia(&format!("gpu.{name}"), &0);
    }
    labels.nvidia("gpu.sharing-strategy", "");
}

fn add_mig_devices(status: &GpuNodeStatus, resource: &str, parts: &[MigPart<'_>], labels: &mut FactLabels) {
    let Some((gpu, mig)) = most_frequent(parts, |(gpu, _)| *gpu) else {
        return;
    };
    // Drops characters that a label's value cannot have.
    let profile: String = mig
        .profile
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || "-.".contains(*c))
        .collect();
    let sharing = sharing(status, &mig.uuid);
    add_common(
        resource,
        (&gpu.product, &format!("-MIG-{profile}")),
        parts.len(),
        sharing,
        labels,
    );
    let mut set = |name: &str, value: Option<u64>| labels.nvidia_if(&format!("{resource}.{name}"), value.as_ref());
    let (slices, engines) = (mig.slices, mig.engines);
    set("memory", Some(mig.memory_mib));
    set("multiprocessors", mig.multiprocessors.map(u64::from));
    set("slices.gi", slices.map(|slices| slices.gpu_instance.into()));
    set("slices.ci", slices.map(|slices| slices.compute_instance.into()));
    set("engines.copy", engines.map(|engines| engines.copy.into()));
    set("engines.decoder", engines.map(|engines| engines.decoder.into()));
    set("engines.encoder", engines.map(|engines| engines.encoder.into()));
    set("engines.jpeg", engines.map(|engines| engines.jpeg.into()));
    set("engines.ofa", engines.map(|engines| engines.ofa.into()));
}

/// Adds the labels that every resource has.
fn add_common(
    resource: &str,
    (product, part): (&str, &str),
    count: usize,
    sharing: SharingFacts,
    labels: &mut FactLabels,
) {
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
        &product_value(product, &format!("{part}{shared}")),
    );
    labels.nvidia(&format!("{resource}.count"), &count);
    labels.nvidia(&format!("{resource}.replicas"), &sharing.replicas);
    labels.nvidia(&format!("{resource}.sharing-strategy"), strategy);
}

/// Returns a product with a suffix, cut to the maximum length of a value.
fn product_value(product: &str, suffix: &str) -> String {
    format!("{}{suffix}", cut(product, MAX_LABEL_VALUE.saturating_sub(suffix.len())))
}

/// Returns the first item of the most frequent product; of several such products, the one with the lowest index.
fn most_frequent<'a, T>(items: &'a [T], gpu: impl Fn(&'a T) -> &'a GpuDevice) -> Option<&'a T> {
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

impl SharingFacts {
    const NONE: Self = Self {
        replicas: 1,
        strategy: SharingStrategy::None,
        renamed: false,
    };
}

/// Returns the sharing of the device with this UUID; none if no resource lists it.
fn sharing(status: &GpuNodeStatus, uuid: &str) -> SharingFacts {
    let of = |resource: &ResourceStatus| {
        let device = resource.devices.iter().find(|device| device.device == uuid)?;
        let strategy = resource.sharing.unwrap_or_default();
        Some(SharingFacts {
            replicas: device.shares,
            strategy,
            renamed: resource.renamed,
        })
    };
    status.resources.iter().find_map(of).unwrap_or(SharingFacts::NONE)
}

fn is_divided(gpu: &GpuDevice) -> bool {
    gpu.mig_mode == Some(MigMode::Enabled)
}

fn capability(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once('.')?;
    Some((major.parse().ok().filter(|major| *major > 0)?, minor.parse().ok()?))
}

/// Returns GPU feature discovery's name of the architecture. It knows more than gpunode selects by.
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
