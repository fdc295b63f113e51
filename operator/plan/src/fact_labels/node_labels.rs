//! The labels of a node with facts about its GPUs.

use crate::{
    fact_labels::{
        label_set::{FactLabels, cut},
        resource_labels::add_resource_labels,
        unfit_facts::fitting,
    },
    input::gpu_node_facts::GpuNodeFacts,
    label_syntax::{is_label_value, is_qualified_name},
};
use gpunode_crds::{
    COMPANION_COUNT_PREFIX, Fabric, GpuDevice, GpuMode, GpuNodeStatus, MAX_LABEL_VALUE, MigMode, MigStrategy,
    PRODUCT_COUNT_PREFIX, SharingStrategy,
};
use std::collections::{BTreeMap, BTreeSet};

/// Value of a fact that nothing reports.
const UNKNOWN: &str = "unknown";

/// GPU fact labels of a node. Every key and value is valid, whatever the agent reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFactLabels {
    /// Labels by key.
    pub labels: BTreeMap<String, String>,
    /// Facts that do not fit into labels as they are reported, in words.
    pub unfit: Vec<String>,
}

/// Returns the GPU fact labels of a node; none without a GPU. `owned` holds the labels that gpunode wrote there.
pub fn gpu_labels(gpu_node: Option<&GpuNodeFacts>, owned: &BTreeMap<String, String>) -> NodeFactLabels {
    let reporting = gpu_node.filter(|gpu_node| gpu_node.has_report() && !is_silent(gpu_node));
    let Some(status) = reporting.and_then(GpuNodeFacts::status) else {
        // Without a report, the labels stay as they are.
        let kept = owned.iter().filter(|(key, _)| is_fact_label(key));
        return NodeFactLabels {
            labels: kept.map(|(key, value)| (key.clone(), value.clone())).collect(),
            unfit: Vec::new(),
        };
    };
    let (status, mut unfit) = fitting(status);
    let (labels, invalid) = labels_of(&status)
        .into_iter()
        .partition(|(key, value)| is_qualified_name(key) && is_label_value(value));
    let invalid: BTreeMap<String, String> = invalid;
    unfit.extend(invalid.keys().map(|key| format!("label {key} is left out")));
    NodeFactLabels { labels, unfit }
}

/// Returns true if the agent cannot tell how GPUs are shared: it starts, or the driver does not answer for the moment. Labels must
/// not change and change back.
fn is_silent(gpu_node: &GpuNodeFacts) -> bool {
    let gpus = gpu_node.gpus();
    let are_missing = !gpus.is_empty() && gpus.iter().all(|gpu| gpu.missing_since.is_some());
    let has_resources = gpu_node.status().is_some_and(|status| !status.resources.is_empty());
    // Without a GPU there is nothing to register: the labels go with the last one.
    let is_registering = !gpus.is_empty() && gpu_node.is_registering();
    !has_resources && (gpu_node.is_silent() || is_registering || are_missing)
}

/// Returns true for a label that may be a fact label, given that no policy wants it.
pub fn is_fact_label(key: &str) -> bool {
    key.starts_with("nvidia.com/") || key.starts_with(PRODUCT_COUNT_PREFIX) || key.starts_with(COMPANION_COUNT_PREFIX)
}

fn labels_of(status: &GpuNodeStatus) -> BTreeMap<String, String> {
    let mut labels = FactLabels::default();
    for (resource, count) in companion_counts(status) {
        labels
            .0
            .insert(format!("{COMPANION_COUNT_PREFIX}{resource}"), count.to_string());
    }
    if status.gpus.is_empty() {
        return labels.0;
    }
    labels.nvidia("gpu.machine", &status.machine.as_deref().unwrap_or(UNKNOWN));
    add_versions(status, &mut labels);
    labels.nvidia("mig.capable", &status.gpus.iter().any(|gpu| gpu.mig_mode.is_some()));
    labels.nvidia("mps.capable", &is_mps_capable(status));
    labels.nvidia("gpu.mode", &mode(&status.gpus));
    if let Some(Fabric {
        cluster_uuid,
        clique_id,
    }) = clique(&status.gpus)
    {
        labels.nvidia("gpu.clique", &format!("{cluster_uuid}.{clique_id}"));
    }
    match status.mig_strategy {
        Some(MigStrategy::Single) => labels.nvidia("mig.strategy", "single"),
        Some(MigStrategy::Mixed) => labels.nvidia("mig.strategy", "mixed"),
        Some(MigStrategy::None) | None => {}
    }
    labels.nvidia("vgpu.present", &status.vgpu.is_some());
    let vgpu = status.vgpu.as_ref();
    labels.nvidia_if(
        "vgpu.host-driver-version",
        vgpu.and_then(|vgpu| vgpu.host_driver_version.as_ref()),
    );
    labels.nvidia_if(
        "vgpu.host-driver-branch",
        vgpu.and_then(|vgpu| vgpu.host_driver_branch.as_ref()),
    );
    add_resource_labels(status, &mut labels);
    for (product, count) in product_counts(&status.gpus) {
        labels
            .0
            .insert(format!("{PRODUCT_COUNT_PREFIX}{product}"), count.to_string());
    }
    labels.0
}

/// Adds driver and CUDA versions. Leaves out a version without two or three parts, on which GPU feature discovery gives up.
fn add_versions(status: &GpuNodeStatus, labels: &mut FactLabels) {
    let driver = status
        .driver_version
        .as_deref()
        .and_then(|version| Some((version, parts(version)?)));
    if let Some((version, [major, minor, revision])) = driver {
        // The first names are deprecated, and selectors still use them.
        for (name, value) in [
            ("driver.major", major),
            ("driver.minor", minor),
            ("driver.rev", revision),
        ] {
            labels.nvidia(&format!("cuda.{name}"), value);
        }
        for (name, value) in [
            ("major", major),
            ("minor", minor),
            ("revision", revision),
            ("full", version),
        ] {
            labels.nvidia(&format!("cuda.driver-version.{name}"), value);
        }
    }
    let cuda = status
        .cuda_version
        .as_deref()
        .and_then(|version| Some((version, parts(version)?)));
    if let Some((version, [major, minor, _])) = cuda {
        for (name, value) in [("major", major), ("minor", minor)] {
            labels.nvidia(&format!("cuda.runtime.{name}"), value);
            labels.nvidia(&format!("cuda.runtime-version.{name}"), value);
        }
        labels.nvidia("cuda.runtime-version.full", version);
    }
}

/// Splits two or three numbers with dots between them; the third may be empty.
fn parts(version: &str) -> Option<[&str; 3]> {
    let is_number = |part: &str| !part.is_empty() && part.len() < 20 && part.bytes().all(|byte| byte.is_ascii_digit());
    let parts: Vec<&str> = version.split('.').collect();
    match parts.as_slice() {
        _ if !parts.iter().copied().all(is_number) => None,
        [major, minor] => Some([major, minor, ""]),
        [major, minor, revision] => Some([major, minor, revision]),
        _ => None,
    }
}

/// Returns true if NVIDIA's DaemonSet of MPS daemons would run: it selects by this label.
fn is_mps_capable(status: &GpuNodeStatus) -> bool {
    let is_divided = status.gpus.iter().any(|gpu| gpu.mig_mode == Some(MigMode::Enabled));
    let by_mps = status
        .resources
        .iter()
        .filter(|resource| resource.sharing == Some(SharingStrategy::Mps));
    !is_divided
        && by_mps
            .flat_map(|resource| &resource.devices)
            .any(|device| device.shares > 1)
}

fn mode(gpus: &[GpuDevice]) -> &'static str {
    let modes: Vec<Option<GpuMode>> = gpus.iter().map(|gpu| gpu.mode).collect();
    match modes.first() {
        Some(Some(GpuMode::Compute)) if modes.iter().all(|mode| *mode == Some(GpuMode::Compute)) => "compute",
        Some(Some(GpuMode::Graphics)) if modes.iter().all(|mode| *mode == Some(GpuMode::Graphics)) => "graphics",
        _ => UNKNOWN,
    }
}

/// Returns the NVLink clique, where all GPUs with one share it.
fn clique(gpus: &[GpuDevice]) -> Option<&Fabric> {
    let cliques: BTreeSet<&Fabric> = gpus.iter().filter_map(|gpu| gpu.fabric.as_ref()).collect();
    cliques.first().copied().filter(|_| cliques.len() == 1)
}

/// Counts the devices of each companion, by the name of its resource with a dot for the slash, as far as it fits into a label's name.
/// Resources whose names are equal then count together.
fn companion_counts(status: &GpuNodeStatus) -> BTreeMap<String, usize> {
    let prefix = COMPANION_COUNT_PREFIX.split_once('/').map_or(0, |(_, name)| name.len());
    let mut counts = BTreeMap::new();
    for resource in status.resources.iter().filter(|resource| resource.companion) {
        let name = resource.name.replace('/', ".");
        let name = cut(&name, MAX_LABEL_VALUE - prefix);
        if !name.is_empty() {
            *counts.entry(name.to_owned()).or_default() += resource.devices.len();
        }
    }
    counts
}

/// Counts the GPUs of each product, by the part of its name that fits into a label's name.
fn product_counts(gpus: &[GpuDevice]) -> BTreeMap<&str, usize> {
    let prefix = PRODUCT_COUNT_PREFIX.split_once('/').map_or(0, |(_, name)| name.len());
    let mut counts = BTreeMap::new();
    for gpu in gpus {
        *counts.entry(cut(&gpu.product, MAX_LABEL_VALUE - prefix)).or_default() += 1;
    }
    counts.remove("");
    counts
}

#[cfg(test)]
mod tests;
