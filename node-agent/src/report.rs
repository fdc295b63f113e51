//! What the agent says in `GpuNode.status`. Pure.

use crate::{
    hardware::{Driver, Hardware},
    in_force::InForce,
    kubelet::Registered,
};
use gpunode_config::CONFIG_VERSION;
use gpunode_crds::{
    Agent, AgentMode, Architecture, ConditionType, GpuDevice, GpuLink, GpuNodeStatus, LinkLevel, MigMode, Reason,
    RejectedConfiguration, ResourceStatus,
};
use gpunode_gpu as gpu;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// Most bytes of a condition's message: a status must stay readable.
const MAX_MESSAGE: usize = 1024;

/// Which process reports.
#[derive(Clone, Debug, Default)]
pub struct Identity {
    /// Name of its pod.
    pub pod: String,
    /// UID of its pod.
    pub pod_uid: String,
}

/// Everything that a status is made of.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The hardware that was found.
    pub hardware: &'a Hardware,
    /// What the device plugin does; none where there is only discovery.
    pub plugin: Option<Plugin<'a>>,
}

/// What the device plugin does.
#[derive(Clone, Copy, Debug)]
pub struct Plugin<'a> {
    /// What is in force.
    pub in_force: &'a InForce,
    /// What the kubelet has taken.
    pub registered: &'a Registered,
}

/// A condition without its time.
struct Verdict {
    of: ConditionType,
    holds: bool,
    reason: Reason,
    message: String,
}

/// The status, with transition times that [`set_times`] has yet to set: equal facts give an equal status.
pub fn status(identity: &Identity, facts: Facts<'_>) -> GpuNodeStatus {
    let inventory = facts.hardware.inventory();
    let in_force = facts.plugin.map(|plugin| plugin.in_force);
    let rejected = in_force.and_then(|in_force| in_force.rejected.as_ref());
    GpuNodeStatus {
        agent: Some(Agent {
            pod: identity.pod.clone(),
            pod_uid: identity.pod_uid.clone(),
            mode: if facts.plugin.is_some() { AgentMode::DevicePlugin } else { AgentMode::Discovery },
            version: env!("CARGO_PKG_VERSION").to_owned(),
            config_versions: vec![CONFIG_VERSION],
        }),
        hardware: inventory.map(gpu::Inventory::summary).filter(|summary| !summary.is_empty()),
        driver_version: inventory.and_then(|inventory| inventory.driver_version.clone()),
        cuda_version: inventory.and_then(|inventory| inventory.cuda_version.clone()),
        gpus: inventory.map(|inventory| inventory.gpus.iter().map(device).collect()).unwrap_or_default(),
        resources: facts.plugin.map(resources).unwrap_or_default(),
        config_hash: in_force.and_then(|in_force| Some(in_force.accepted.as_ref()?.hash.clone())),
        rejected_config: rejected
            .map(|rejected| RejectedConfiguration { hash: rejected.hash.clone(), message: rejected.message.clone() }),
        conditions: conditions(facts).into_iter().map(Verdict::without_time).collect(),
    }
}

/// Sets the time of each condition: that of `before` where its status is the same there, `now` otherwise.
pub fn set_times(status: &mut GpuNodeStatus, before: &GpuNodeStatus, now: Timestamp) {
    for condition in &mut status.conditions {
        let same = |old: &&Condition| old.type_ == condition.type_ && old.status == condition.status;
        condition.last_transition_time =
            before.conditions.iter().find(same).map_or(Time(now), |old| old.last_transition_time.clone());
    }
}

/// What is in the way of this agent doing its work; the text of `/readyz`.
pub fn not_registered(plugin: Plugin<'_>) -> Option<String> {
    let missing: Vec<&str> = plugin
        .in_force
        .resources
        .iter()
        .map(|resource| resource.name.as_str())
        .filter(|name| !plugin.registered.contains(*name))
        .collect();
    (!missing.is_empty()).then(|| format!("the kubelet has not taken {} yet", missing.join(", ")))
}

/// `Ready` first; it is the first of the others that does not hold.
fn conditions(facts: Facts<'_>) -> Vec<Verdict> {
    let mut verdicts: Vec<Verdict> = driver(facts.hardware).into_iter().collect();
    if let Some(plugin) = facts.plugin {
        verdicts.push(configuration(plugin));
        verdicts.push(registration(plugin));
    }
    let ready = match verdicts.iter().find(|verdict| !verdict.holds) {
        Some(failing) => Verdict { of: ConditionType::Ready, message: failing.message.clone(), ..*failing },
        None if facts.plugin.is_some() => {
            verdict(ConditionType::Ready, true, Reason::ConfigurationInForce, "the configuration is in force")
        }
        None => verdict(ConditionType::Ready, true, Reason::DriverAnswers, "the hardware is known"),
    };
    verdicts.insert(0, ready);
    verdicts
}

/// A node without GPU needs no driver, and says nothing of one.
fn driver(hardware: &Hardware) -> Option<Verdict> {
    let available = ConditionType::DriverAvailable;
    match &hardware.driver {
        Driver::NotNeeded => None,
        Driver::Missing(message) => Some(verdict(available, false, Reason::DriverNotFound, message)),
        Driver::Failed(message) => Some(verdict(available, false, Reason::DriverFailed, message)),
        // The other GPUs are offered all the same.
        Driver::Answers => {
            let problem = hardware.problem().unwrap_or_else(|| "the driver answers".to_owned());
            Some(verdict(available, true, Reason::DriverAnswers, &problem))
        }
    }
}

fn configuration(plugin: Plugin<'_>) -> Verdict {
    let accepted = ConditionType::ConfigurationAccepted;
    match (&plugin.in_force.rejected, &plugin.in_force.accepted) {
        (Some(rejected), kept) => {
            let kept =
                kept.as_ref().map_or("nothing is in force".to_owned(), |kept| format!("{} stays in force", kept.hash));
            let message = format!("{} is rejected and {kept}: {}", rejected.hash, rejected.message);
            verdict(accepted, false, Reason::ConfigurationRejected, &message)
        }
        (None, Some(kept)) => {
            verdict(accepted, true, Reason::ConfigurationInForce, &format!("{} is in force", kept.hash))
        }
        (None, None) => verdict(accepted, false, Reason::NoConfiguration, "no policy configures this node"),
    }
}

fn registration(plugin: Plugin<'_>) -> Verdict {
    let registered = ConditionType::Registered;
    match not_registered(plugin) {
        Some(missing) => verdict(registered, false, Reason::Registering, &missing),
        None => verdict(registered, true, Reason::Registered, "the kubelet has every resource"),
    }
}

fn verdict(of: ConditionType, holds: bool, reason: Reason, message: &str) -> Verdict {
    let message = message.get(..message.floor_char_boundary(MAX_MESSAGE)).unwrap_or_default().to_owned();
    Verdict { of, holds, reason, message }
}

impl Verdict {
    fn without_time(self) -> Condition {
        Condition {
            type_: self.of.as_str().to_owned(),
            status: if self.holds { "True" } else { "False" }.to_owned(),
            reason: self.reason.as_str().to_owned(),
            message: self.message,
            last_transition_time: Time(Timestamp::UNIX_EPOCH),
            observed_generation: None,
        }
    }
}

fn resources(plugin: Plugin<'_>) -> Vec<ResourceStatus> {
    let of = |resource: &std::sync::Arc<gpu::Resource>| {
        let devices = number(resource.len());
        ResourceStatus {
            registered: plugin.registered.contains(&resource.name),
            name: resource.name.clone(),
            capacity: devices,
            allocatable: devices,
        }
    };
    plugin.in_force.resources.iter().map(of).collect()
}

fn device(gpu: &gpu::Gpu) -> GpuDevice {
    GpuDevice {
        index: number(gpu.index),
        uuid: gpu.uuid.clone(),
        product: gpu.product(),
        memory_mib: i64::try_from(gpu.memory_mib).unwrap_or(i64::MAX),
        architecture: gpu.compute_capability.is_some().then(|| architecture(gpu.architecture())),
        compute_capability: gpu.compute_capability.map(|(major, minor)| format!("{major}.{minor}")),
        pci_bus_id: gpu.pci_bus_id.clone(),
        numa_node: gpu.numa_node.map(number),
        mig_mode: gpu.mig_mode.map(|mode| match mode {
            gpu::MigMode::Enabled => MigMode::Enabled,
            gpu::MigMode::Disabled => MigMode::Disabled,
        }),
        links: gpu.links.iter().map(link).collect(),
    }
}

fn link(link: &gpu::Link) -> GpuLink {
    GpuLink {
        peer: number(link.peer),
        level: match link.level {
            gpu::LinkLevel::Internal => LinkLevel::Internal,
            gpu::LinkLevel::Single => LinkLevel::Pix,
            gpu::LinkLevel::Multiple => LinkLevel::Pxb,
            gpu::LinkLevel::HostBridge => LinkLevel::Phb,
            gpu::LinkLevel::Node => LinkLevel::Node,
            gpu::LinkLevel::System => LinkLevel::Sys,
            gpu::LinkLevel::Unknown => LinkLevel::Unknown,
        },
        nvlinks: (link.nvlinks > 0).then(|| number(link.nvlinks)),
    }
}

fn architecture(architecture: gpu::Architecture) -> Architecture {
    match architecture {
        gpu::Architecture::Kepler => Architecture::Kepler,
        gpu::Architecture::Maxwell => Architecture::Maxwell,
        gpu::Architecture::Pascal => Architecture::Pascal,
        gpu::Architecture::Volta => Architecture::Volta,
        gpu::Architecture::Turing => Architecture::Turing,
        gpu::Architecture::Ampere => Architecture::Ampere,
        gpu::Architecture::AdaLovelace => Architecture::AdaLovelace,
        gpu::Architecture::Hopper => Architecture::Hopper,
        gpu::Architecture::Blackwell => Architecture::Blackwell,
        gpu::Architecture::Unknown => Architecture::Unknown,
    }
}

fn number<T: TryInto<i32>>(value: T) -> i32 {
    value.try_into().unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests;
