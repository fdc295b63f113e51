//! The effect of a new configuration on the devices of one node, computed with the agent's own function. Pure.

use super::{
    companion_forecast::companion_forecast,
    layout_forecast::{LayoutForecast, layout_forecasts},
    resource_forecast::ResourceForecast,
    simulation::configuration_of,
};
use crate::output::plural;
use gpunode_config::{AgentConfig, ResourceConfig};
use gpunode_crds::{GpuNode, GpuNodeStatus, named};
use gpunode_gpu::{DesiredDevice, DesiredDevices, Device, DeviceSharing, desired_devices, is_companion};
use gpunode_plan::inventory;
use std::collections::{BTreeMap, BTreeSet};

/// Most pods named for one group of devices.
const MAX_PODS: usize = 3;

/// The effect of a new configuration on a node's devices.
#[derive(Debug, Default)]
pub struct DeviceForecast {
    pub offers: Vec<ResourceForecast>,
    /// Changes of MIG.
    pub layouts: Vec<LayoutForecast>,
    pub notes: Vec<String>,
    /// Held devices that stay unchanged until their pods end.
    pub waiting: Vec<String>,
    /// Pods on devices that change, MIG included, as `NAMESPACE/NAME`.
    pub held_by: BTreeSet<String>,
    /// Obstacles: the agent would reject the configuration, could not advertise all of it, or would advertise nothing.
    pub obstacles: Vec<String>,
}

/// Compares the configurations of a node as it is and as it would be.
pub fn forecast(before: Option<&GpuNode>, after: Option<&GpuNode>) -> DeviceForecast {
    let Some(config) = after.and_then(configuration_of) else {
        return DeviceForecast::default();
    };
    let companions = companion_forecast(before, &config);
    // A node with companions alone needs no GPU.
    let has_gpus = |status: &GpuNodeStatus| !status.gpus.is_empty();
    let mut forecast =
        if config.resources.is_empty() && !config.companions.is_empty() && !reported(before).is_some_and(has_gpus) {
            DeviceForecast::default()
        } else {
            gpu_forecast(before, after, &config)
        };
    forecast.offers.extend(companions.offers);
    forecast.notes.extend(companions.notes);
    forecast.waiting.extend(companions.waiting);
    forecast.held_by.extend(companions.held_by);
    forecast
}

fn reported(node: Option<&GpuNode>) -> Option<&GpuNodeStatus> {
    node.and_then(|node| node.status.as_ref())
}

/// Compares the configurations as far as GPUs and MIG devices go.
fn gpu_forecast(before: Option<&GpuNode>, after: Option<&GpuNode>, config: &AgentConfig) -> DeviceForecast {
    let Some(status) = reported(before).filter(|status| !status.gpus.is_empty()) else {
        let unknown = "the GPUs of this node are not known yet, so its resources are not counted";
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
    let layouts = before
        .zip(after)
        .map(|(before, after)| layout_forecasts(before, after))
        .unwrap_or_default();
    let divided = layouts.status.as_ref().map(gpunode_plan::inventory);
    let divided = divided.as_ref().unwrap_or(&inventory);
    let desired = desired_devices(&inventory, config);
    let (unchanged, then) = match desired.and_then(|unchanged| Ok((unchanged, desired_devices(divided, config)?))) {
        Ok(both) => both,
        Err(error) => {
            let refused = format!("the agent would reject this configuration: {error}");
            return DeviceForecast {
                obstacles: vec![refused, fails(before)],
                ..DeviceForecast::default()
            };
        }
    };
    let missing = status.gpus.len() - inventory.gpus.len();
    let missing = (missing > 0).then(|| {
        format!(
            "{} missing and not counted",
            plural(missing, "GPU of this node is", "GPUs of this node are")
        )
    });
    let problems = then.problems.iter().filter(|problem| !now.problems.contains(problem));
    let mut obstacles: Vec<String> = problems.map(|problem| problem.message.clone()).collect();
    if !obstacles.is_empty() {
        obstacles.push(fails(before));
    }
    obstacles.extend(layouts.obstacles);
    if then.devices.is_empty() && !now.devices.is_empty() {
        let count = plural(now.devices.len(), "device", "devices");
        obstacles.push(format!("the node would no longer advertise any device (now {count})"));
    }
    let (waiting, mut held_by) = waiting(status, &now, &unchanged);
    held_by.extend(layouts.changes.iter().flat_map(|layout| layout.held_by.iter().cloned()));
    DeviceForecast {
        offers: resource_forecasts(config, &now, &then, status),
        layouts: layouts.changes,
        notes: missing.into_iter().chain(layouts.notes).collect(),
        // Pods on instances that go delay the change; unless they are evicted, that is no reason to call it disruptive.
        waiting,
        held_by,
        obstacles,
    }
}

/// Says how a node that cannot apply its configuration affects the rollout. A node that works now stops the rollout; a node
/// with its first configuration does not.
fn fails(node: Option<&GpuNode>) -> String {
    let works = node.and_then(configuration_of).is_some();
    if works {
        "the node would fail and stop the rollout"
    } else {
        "the node would fail"
    }
    .to_owned()
}

/// Returns the resources in the order of the policy, then the default resources of MIG devices, then those that go while
/// containers hold shares of them.
fn resource_forecasts(
    config: &AgentConfig,
    now: &DesiredDevices,
    then: &DesiredDevices,
    status: &GpuNodeStatus,
) -> Vec<ResourceForecast> {
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
    let configured = names.len();
    // Companions have forecasts of their own.
    for holder in status.holders.iter().filter(|holder| !is_companion(&holder.device)) {
        if !names.contains(&holder.resource) {
            names.push(holder.resource.clone());
        }
    }
    let forecast = |(place, resource): (usize, String)| {
        let count = |desired| -> u64 { devices_of(&resource, desired).map(shares).sum() };
        let holders = status.holders.iter().filter(|holder| holder.resource == resource);
        let held: u64 = holders
            .map(|holder| u64::try_from(holder.count).unwrap_or_default())
            .sum();
        let (now, then_count) = (count(now), count(then));
        ResourceForecast {
            now,
            then: then_count,
            held,
            at_least: status.holders_truncated,
            would_not_fit: held.saturating_sub(then_count),
            words: if place < configured {
                words(&resource, then)
            } else {
                "nothing: the configuration does not name it".to_owned()
            },
            resource,
        }
    };
    names.into_iter().enumerate().map(forecast).collect()
}

fn devices_of<'a>(resource: &str, desired: &'a DesiredDevices) -> impl Iterator<Item = &'a DesiredDevice> {
    desired
        .devices
        .iter()
        .filter(move |device| device.assignment.resource == resource)
}

fn shares(device: &DesiredDevice) -> u64 {
    u64::from(device.assignment.sharing.shares())
}

/// Returns a sum such as `3 GPUs x 4 replicas = 12`.
fn words(resource: &str, desired: &DesiredDevices) -> String {
    let mut groups: Vec<(&DesiredDevice, usize)> = Vec::new();
    for device in devices_of(resource, desired) {
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
        [] if desired.problems.iter().any(|problem| problem.resource == resource) => "nothing".to_owned(),
        [] => "nothing: no remaining device matches its selector".to_owned(),
        _ if is_plain => groups.iter().map(group).collect(),
        _ => {
            let total: u64 = devices_of(resource, desired).map(shares).sum();
            format!("{} = {total}", groups.iter().map(group).collect::<Vec<_>>().join(" + "))
        }
    }
}

/// Describes the held devices that would change, and returns the pods that hold them.
fn waiting(status: &GpuNodeStatus, now: &DesiredDevices, then: &DesiredDevices) -> (Vec<String>, BTreeSet<String>) {
    let becomes = |uuid: &str, desired: &DesiredDevices| {
        desired
            .devices
            .iter()
            .find(|of| of.device.uuid == uuid)
            .map(|of| of.assignment.clone())
    };
    let differs = |uuid: &str| match (becomes(uuid, now), becomes(uuid, then)) {
        // Another number of time slices waits for nobody.
        (Some(now), Some(then)) if now.resource == then.resource && then.sharing.is_resize_of(&now.sharing) => false,
        (now, then) => now != then,
    };
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
        unseen.then(|| "the agent's list of holders is incomplete, so more devices may have to wait".to_owned());
    let notes = groups.iter().map(|(pods, devices)| note(pods, devices));
    let notes = notes.chain(unseen).collect();
    (notes, groups.into_iter().flat_map(|(pods, _)| pods).collect())
}

/// Says for which pods a group of devices waits.
fn note(pods: &BTreeSet<String>, devices: &[&Device]) -> String {
    let names: Vec<_> = devices.iter().map(|device| device.index()).collect();
    let (noun, verb) = match (devices.iter().all(|device| device.mig.is_none()), names.len()) {
        (true, 1) => ("GPU", "stays"),
        (true, _) => ("GPUs", "stay"),
        (false, 1) => ("device", "stays"),
        (false, _) => ("devices", "stay"),
    };
    let (pod, end) = if pods.len() == 1 {
        ("pod", "ends")
    } else {
        ("pods", "end")
    };
    format!(
        "{noun} {} {verb} unchanged until {pod} {} {end}",
        names.join(", "),
        named(pods, MAX_PODS)
    )
}

#[cfg(test)]
mod tests;
