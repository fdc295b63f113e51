//! Descriptions of agent configurations, which can be compared line by line. Pure.

use crate::layout_words::layout_words;
use gpunode_config::{
    AgentConfig, Allocation, CompanionConfig, CompanionGroup, CompanionInjection, DeviceKind, DeviceSelector,
    MigStrategy, ResourceConfig, Sharing, SharingStrategy,
};
use std::fmt::Write as _;

/// Characters shown of a configuration hash.
const HASH: usize = 12;

/// Returns the part of a configuration hash that people see.
pub fn short_hash(hash: &str) -> String {
    hash.chars().take(HASH).collect()
}

/// Returns the name of each resource that pods request, and its description.
pub fn resources(config: &AgentConfig) -> Vec<(String, String)> {
    let resources = config.effective_resources();
    let gpus = resources
        .iter()
        .map(|resource| (resource.advertised_name(), offered(resource, config.mig_strategy())));
    let companions = config.companions.iter();
    gpus.chain(companions.map(|companion| (companion.resource.clone(), files(companion))))
        .collect()
}

/// Returns the other settings that are on or set.
pub fn others(config: &AgentConfig) -> Vec<(&'static str, String)> {
    let switches = [
        ("passDeviceSpecs", config.pass_device_specs()),
        ("failOnInitError", config.fail_on_init_error()),
        ("gds", config.gds()),
        ("mofed", config.mofed()),
        ("gdrcopy", config.gdrcopy()),
    ];
    let switches = switches
        .into_iter()
        .filter(|(_, on)| *on)
        .map(|(name, _)| (name, "true".to_owned()));
    let mig = Some(config.mig_strategy()).filter(|strategy| *strategy != MigStrategy::None);
    let strategies: Vec<String> = config.device_list_strategy.iter().map(in_the_api).collect();
    let channels: Vec<String> = config.imex_channels.iter().map(ToString::to_string).collect();
    let lists = [("deviceListStrategy", strategies), ("imexChannels", channels)];
    let lists = lists.into_iter().filter(|(_, values)| !values.is_empty());
    let prefix = config.cdi_annotation_prefix.clone();
    let usage = config.usage();
    let usage = [
        ("usage.interval", usage.interval),
        ("usage.idleAfter", usage.idle_after),
    ];
    let layout = config.mig.as_ref().map(|mig| layout_words(&mig.layout));
    switches
        .chain(mig.map(|strategy| ("mig.strategy", format!("{strategy:?}"))))
        .chain(
            layout
                .filter(|layout| !layout.is_empty())
                .map(|layout| ("mig.layout", layout)),
        )
        .chain(lists.map(|(name, values)| (name, values.join(", "))))
        .chain(prefix.map(|prefix| ("cdiAnnotationPrefix", prefix)))
        .chain(usage.into_iter().filter_map(|(name, time)| Some((name, time?))))
        .collect()
}

/// Describes each resource and setting of a configuration; nothing where it cannot be read.
pub fn describe(document: &str) -> Vec<String> {
    let Ok(config) = gpunode_config::load(document) else {
        return Vec::new();
    };
    let others = others(&config)
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value));
    let lines = resources(&config).into_iter().chain(others);
    lines.map(|(name, value)| format!("{name}: {value}")).collect()
}

fn offered(resource: &ResourceConfig, mig: MigStrategy) -> String {
    let devices = resource.devices.as_ref();
    let (one, many) = match devices.and_then(|devices| kind(devices, mig)) {
        Some(DeviceKind::MigDevice) => ("MIG device", "MIG devices"),
        None if mig == MigStrategy::Single => ("GPU or MIG device", "whole GPUs or MIG devices"),
        _ => ("GPU", "whole GPUs"),
    };
    let mut text = resource
        .sharing
        .as_ref()
        .map_or_else(|| many.to_owned(), |sharing| shared(sharing, one, many));
    if resource.fail_requests_greater_than_one() {
        text.push_str(", one per container");
    }
    if resource.allocation() != Allocation::default() {
        let _ = write!(text, ", allocation {:?}", resource.allocation());
    }
    if let Some(devices) = devices {
        let _ = write!(text, ", only {}", selected(devices));
    }
    text
}

/// Describes a companion, such as `files /dev/infiniband/* together, 64 shares, as device nodes (rw)`.
fn files(companion: &CompanionConfig) -> String {
    let paths = companion.paths.join(", ");
    let mut text = match companion.group() {
        CompanionGroup::Each => format!("each file of {paths}"),
        CompanionGroup::Together => format!("files {paths} together"),
        CompanionGroup::PciSlot => format!("files {paths} by PCI slot"),
    };
    if companion.shares() > 1 {
        let _ = write!(text, ", {} shares", companion.shares());
    }
    let CompanionInjection {
        device_nodes,
        mounts,
        env,
    } = companion.injection();
    let nodes = device_nodes.map(|nodes| format!("as device nodes ({})", nodes.permissions()));
    let mounts = mounts.map(|mounts| {
        if mounts.read_only() {
            "mounted read-only"
        } else {
            "mounted"
        }
        .to_owned()
    });
    let variable = env.map(|variable| format!("{:?} in {}", variable.value, variable.name));
    for part in [nodes, mounts, variable].into_iter().flatten() {
        let _ = write!(text, ", {part}");
    }
    text
}

/// Returns the kind of devices that a selector takes; none for both.
fn kind(devices: &DeviceSelector, mig: MigStrategy) -> Option<DeviceKind> {
    let implied = if devices.mig_profiles.is_some() {
        Some(DeviceKind::MigDevice)
    } else {
        None
    };
    let default = (mig != MigStrategy::Single).then_some(DeviceKind::FullGpu);
    devices.kind.or(implied).or(default)
}

fn shared(sharing: &Sharing, one: &str, many: &str) -> String {
    let replicas = sharing.replicas.unwrap_or(1);
    let mut text = match sharing.strategy {
        SharingStrategy::None => many.to_owned(),
        SharingStrategy::TimeSlicing => format!("{replicas} replicas per {one} (TimeSlicing)"),
        SharingStrategy::Mps => format!("{replicas} shares per {one} (Mps)"),
        SharingStrategy::Memory => {
            format!(
                "memory of each {one} in units of {} (Memory, {:?})",
                sharing.unit(),
                sharing.placement()
            )
        }
    };
    for exception in sharing.replicas_per_device.iter().flatten() {
        let _ = write!(text, ", {} on {}", exception.replicas, selected(&exception.devices));
    }
    text
}

fn selected(devices: &DeviceSelector) -> String {
    let DeviceSelector {
        indices,
        uuids,
        products,
        architectures,
        min_memory,
        kind,
        mig_profiles,
    } = devices;
    let conditions = [
        (
            "indices",
            indices
                .as_ref()
                .map(|indices| indices.iter().map(ToString::to_string).collect()),
        ),
        ("uuids", uuids.clone()),
        ("products", products.clone()),
        (
            "architectures",
            architectures
                .as_ref()
                .map(|names| names.iter().map(in_the_api).collect()),
        ),
        ("minMemory", min_memory.clone().map(|memory| vec![memory])),
        ("kind", kind.map(|kind| vec![in_the_api(&kind)])),
        ("migProfiles", mig_profiles.clone()),
    ];
    let conditions: Vec<_> = conditions
        .into_iter()
        .filter_map(|(name, values): (_, Option<Vec<String>>)| Some(format!("{name} {}", values?.join(", "))))
        .collect();
    conditions.join(" and ")
}

/// Returns the name of an enum's value in the API.
fn in_the_api<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_value(value)
        .ok()
        .and_then(|value| value.as_str().map(str::to_owned))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        let config = gpunode_config::load(text).expect("a configuration");
        let resources = resources(&config)
            .into_iter()
            .map(|(name, words)| format!("{name}: {words}"));
        resources
            .chain(
                others(&config)
                    .into_iter()
                    .map(|(name, value)| format!("{name} = {value}")),
            )
            .collect()
    }

    #[test]
    fn a_configuration_is_told_in_words() {
        insta::assert_snapshot!(words("
passDeviceSpecs: true
gds: true
deviceListStrategy: [CdiAnnotations, Envvar]
cdiAnnotationPrefix: cdi.example.com/
imexChannels: [0]
mig: {strategy: Mixed, layout: [{devices: {indices: [0]}, preset: all-balanced}, {disabled: true}]}
resources:
- {name: a.b/whole, allocation: Packed, devices: {indices: [0, 1], products: [T*]}}
- name: a.b/sliced
  devices: {architectures: [ada-lovelace, hopper], minMemory: 30Gi}
  sharing: {strategy: TimeSlicing, replicas: 4, failRequestsGreaterThanOne: true, renameByDefault: true}
- {name: a.b/mem, devices: {kind: FullGpu}, sharing: {strategy: Memory}}
- {name: a.b/blocks, devices: {uuids: [GPU-1]}, sharing: {strategy: Memory, unit: 256Mi, placement: Spread}}
- {name: a.b/mig, devices: {migProfiles: [1g.*, '*+me']}}
- name: a.b/mps
  devices: {kind: MigDevice}
  sharing: {strategy: Mps, replicas: 10, replicasPerDevice: [{devices: {indices: [3]}, replicas: 2}]}
").join("\n"), @r"
        a.b/whole: whole GPUs, allocation Packed, only indices 0, 1 and products T*
        a.b/sliced.shared: 4 replicas per GPU (TimeSlicing), one per container, only architectures ada-lovelace, hopper and minMemory 30Gi
        a.b/mem: memory of each GPU in units of 1 GiB (Memory, Packed), only kind FullGpu
        a.b/blocks: memory of each GPU in units of 256 MiB (Memory, Spread), only uuids GPU-1
        a.b/mig: MIG devices, only migProfiles 1g.*, *+me
        a.b/mps: 10 shares per MIG device (Mps), 2 on indices 3, only kind MigDevice
        passDeviceSpecs = true
        gds = true
        mig.strategy = Mixed
        mig.layout = indices 0: all-balanced; every other GPU: off
        deviceListStrategy = CdiAnnotations, Envvar
        imexChannels = 0
        cdiAnnotationPrefix = cdi.example.com/
        ");
        assert_eq!(words("{}"), ["nvidia.com/gpu: whole GPUs"]);
        assert_eq!(
            words("mig: {strategy: Single}"),
            ["nvidia.com/gpu: whole GPUs or MIG devices", "mig.strategy = Single"]
        );
    }
}
