//! What a changed configuration makes of the devices of one node, by the function that the agent uses. Pure.

use super::simulation::configuration_of;
use crate::output::plural;
use gpunode_config::{AgentConfig, ResourceConfig};
use gpunode_crds::{GpuNode, GpuNodeStatus};
use gpunode_gpu::{DesiredDevice, DesiredDevices, Device, DeviceSharing, desired_devices};
use gpunode_plan::inventory;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Most pods that are named for one group of devices.
const MAX_PODS: usize = 3;

/// What a resource would have on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ResourceForecast {
    /// Name that pods ask for.
    pub resource: String,
    /// Its shares by the configuration as it is: whole devices, replicas or units.
    pub now: u64,
    /// Its shares by the configuration as it would be.
    pub then: u64,
    /// How `then` comes about.
    pub words: String,
}

/// What a new configuration does on a node.
#[derive(Debug, Default)]
pub struct DeviceForecast {
    pub offers: Vec<ResourceForecast>,
    pub notes: Vec<String>,
    /// Held devices that are to be something else.
    pub waiting: Vec<String>,
    /// What would be in the way: the agent would refuse the configuration or could not offer all of it, or nothing would be
    /// left to be offered.
    pub obstacles: Vec<String>,
}

/// What changes between the configurations of a node as it is and as it would be.
pub fn effect(before: Option<&GpuNode>, after: Option<&GpuNode>) -> DeviceForecast {
    let Some(config) = after.and_then(configuration_of) else {
        return DeviceForecast::default();
    };
    let Some(status) = before
        .and_then(|before| before.status.as_ref())
        .filter(|status| !status.gpus.is_empty())
    else {
        let unknown = "the GPUs of this node are not known yet, so what it would offer is not counted";
        return DeviceForecast {
            notes: vec![unknown.to_owned()],
            ..DeviceForecast::default()
        };
    };
    let inventory = inventory(status);
    let now = before
        .and_then(configuration_of)
        .and_then(|config| desired_devices(&inventory, &config).ok())
        .unwrap_or_default();
    let then = match desired_devices(&inventory, &config) {
        Ok(then) => then,
        Err(error) => {
            let refused = format!("the agent would refuse this configuration: {error}");
            return DeviceForecast {
                obstacles: vec![refused, fails(before)],
                ..DeviceForecast::default()
            };
        }
    };
    let missing = status.gpus.len() - inventory.gpus.len();
    let missing = (missing > 0).then(|| {
        format!(
            "{} missing now and not counted",
            plural(missing, "GPU of this node is", "GPUs of this node are")
        )
    });
    let problems = then.problems.iter().filter(|problem| !now.problems.contains(problem));
    let mut obstacles: Vec<String> = problems.map(|problem| problem.message.clone()).collect();
    if !obstacles.is_empty() {
        obstacles.push(fails(before));
    }
    if then.devices.is_empty() && !now.devices.is_empty() {
        let count = plural(now.devices.len(), "device", "devices");
        obstacles.push(format!("the node would offer nothing any more (now {count})"));
    }
    DeviceForecast {
        offers: offers(&config, &now, &then),
        notes: missing.into_iter().collect(),
        waiting: waiting(status, &now, &then),
        obstacles,
    }
}

/// What an agent that cannot put all of its configuration in force does to the policy. A node that works stops a rollout; one
/// with its first configuration does not.
fn fails(node: Option<&GpuNode>) -> String {
    let works = node.and_then(configuration_of).is_some();
    if works {
        "the node would fail, and the rollout stop there"
    } else {
        "the node would fail"
    }
    .to_owned()
}

/// In the order of the policy; then what MIG devices are by default.
fn offers(config: &AgentConfig, now: &DesiredDevices, then: &DesiredDevices) -> Vec<ResourceForecast> {
    let mut names: Vec<String> = config
        .effective_resources()
        .iter()
        .map(ResourceConfig::advertised_name)
        .collect();
    for device in &then.devices {
        if !names.contains(&device.assignment.resource) {
            names.push(device.assignment.resource.clone());
        }
    }
    let offer = |resource: String| {
        let (words, count) = (words(&resource, then), |wanted| {
            devices_of(&resource, wanted).map(shares).sum()
        });
        ResourceForecast {
            now: count(now),
            then: count(then),
            words,
            resource,
        }
    };
    names.into_iter().map(offer).collect()
}

fn devices_of<'a>(resource: &str, wanted: &'a DesiredDevices) -> impl Iterator<Item = &'a DesiredDevice> {
    wanted
        .devices
        .iter()
        .filter(move |device| device.assignment.resource == resource)
}

fn shares(device: &DesiredDevice) -> u64 {
    u64::from(device.assignment.sharing.shares())
}

/// Such as `3 GPUs x 4 replicas = 12`.
fn words(resource: &str, wanted: &DesiredDevices) -> String {
    let mut groups: Vec<(&DesiredDevice, usize)> = Vec::new();
    for device in devices_of(resource, wanted) {
        let like = |of: &DesiredDevice| (of.device.mig.is_some(), of.assignment.sharing);
        match groups.iter_mut().find(|(first, _)| like(first) == like(device)) {
            Some((_, count)) => *count += 1,
            None => groups.push((device, 1)),
        }
    }
    let group = |(first, count): &(&DesiredDevice, usize)| {
        let is_mig = first.device.mig.is_some();
        let devices = if is_mig {
            plural(*count, "MIG device", "MIG devices")
        } else {
            plural(*count, "GPU", "GPUs")
        };
        match first.assignment.sharing {
            DeviceSharing::Whole => devices,
            DeviceSharing::TimeSlicing { replicas } => format!("{devices} x {replicas} replicas"),
            DeviceSharing::Mps { replicas } => format!("{devices} x {replicas} shares"),
            DeviceSharing::Memory { unit, units } => {
                let units = plural(units as usize, "unit", "units");
                format!("{devices} x {units} of {unit}")
            }
        }
    };
    let is_plain = matches!(groups.as_slice(), [(first, _)] if first.assignment.sharing == DeviceSharing::Whole);
    match groups.as_slice() {
        [] if wanted
            .problems
            .iter()
            .any(|problem| problem.message.starts_with(&format!("offer {resource}: "))) =>
        {
            "nothing".to_owned()
        }
        [] => "nothing: no device is left here that it selects".to_owned(),
        _ if is_plain => groups.iter().map(group).collect(),
        _ => {
            let total: u64 = devices_of(resource, wanted).map(shares).sum();
            format!("{} = {total}", groups.iter().map(group).collect::<Vec<_>>().join(" + "))
        }
    }
}

/// Devices that somebody holds, and that are to be something else.
fn waiting(status: &GpuNodeStatus, now: &DesiredDevices, then: &DesiredDevices) -> Vec<String> {
    let becomes = |uuid: &str, wanted: &DesiredDevices| {
        wanted
            .devices
            .iter()
            .find(|of| of.device.uuid == uuid)
            .map(|of| of.assignment.clone())
    };
    let differs = |uuid: &str| becomes(uuid, now) != becomes(uuid, then);
    let mut pods: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for holder in status.holders.iter().filter(|holder| differs(&holder.device)) {
        pods.entry(&holder.device)
            .or_default()
            .insert(format!("{}/{}", holder.namespace, holder.pod));
    }
    let mut groups: BTreeMap<BTreeSet<String>, Vec<&Device>> = BTreeMap::new();
    for device in &then.present {
        if let Some(pods) = pods.remove(device.uuid.as_str()) {
            groups.entry(pods).or_default().push(device);
        }
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_key(|(_, devices)| devices.first().map(|device| device.order()));
    let unseen = status.holders_truncated && then.present.iter().any(|device| differs(&device.uuid));
    let unseen =
        unseen.then(|| "not every pod that holds a device of this node is known, so more devices may wait".to_owned());
    groups
        .iter()
        .map(|(pods, devices)| note(pods, devices))
        .chain(unseen)
        .collect()
}

/// What devices wait for.
fn note(pods: &BTreeSet<String>, devices: &[&Device]) -> String {
    let names: Vec<_> = devices.iter().map(|device| device.index()).collect();
    let (noun, verb) = match (devices.iter().all(|device| device.mig.is_none()), names.len()) {
        (true, 1) => ("GPU", "keeps"),
        (true, _) => ("GPUs", "keep"),
        (false, 1) => ("device", "keeps"),
        (false, _) => ("devices", "keep"),
    };
    let more = pods.len().saturating_sub(MAX_PODS);
    let more = if more > 0 {
        format!(" and {}", plural(more, "other pod", "other pods"))
    } else {
        String::new()
    };
    let pods: Vec<_> = pods.iter().take(MAX_PODS).map(String::as_str).collect();
    let one = devices.len() == 1;
    format!(
        "{noun} {} {verb} {} present offer until {}{more} {} gone",
        names.join(", "),
        if one { "its" } else { "their" },
        pods.join(", "),
        if pods.len() == 1 && more.is_empty() {
            "is"
        } else {
            "are"
        },
    )
}

#[cfg(test)]
mod tests;
