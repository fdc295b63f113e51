//! Conditions of the node, and the text of `/readyz`. Pure.

use crate::{
    configuration::in_force::InForce,
    devices::state::DeviceSnapshot,
    driver::hardware::{DriverState, Hardware},
    health::node_health::NodeHealth,
    plugin::registration::RegisteredResources,
    status::inputs::{PluginStatus, StatusInputs},
};
use gpunode_config::AgentConfig;
use gpunode_crds::{
    ConditionType, EVERY_GPU_ANSWERS, MigPhase, MigStatus, MpsDaemonState, Reason, SERVED_BY_DRA, UntimedCondition,
};
use gpunode_gpu::{DeviceProblem, DeviceProblemKind};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use std::{cmp::Reverse, collections::BTreeMap};

/// Returns the resources that the kubelet has not accepted yet, as text of `/readyz`.
pub fn not_registered(snapshot: &DeviceSnapshot, plugin: PluginStatus<'_>) -> Option<String> {
    if plugin.in_force.layouts.are_awaited {
        return Some("the MIG instances of the GPUs, or the records of them, have not been read yet".to_owned());
    }
    if plugin.in_force.are_files_awaited {
        return Some("the files of the companions have not been found yet; if this stays, the log names the folder or the file system".to_owned());
    }
    let published = snapshot.advertised.iter().map(|list| list.resource.name.as_str());
    let names = published.chain(snapshot.unpublished.iter().map(String::as_str));
    let RegisteredResources { taken, others } = plugin.registered;
    let missing: Vec<&str> = names
        .filter(|name| !taken.contains(*name) && !others.contains(*name))
        .collect();
    (!missing.is_empty()).then(|| format!("the kubelet has not accepted {} yet", missing.join(", ")))
}

/// Returns the reason why holders are unknown, if there is a device to advertise, or a companion, whose list may be empty.
pub fn holders_unknown<'a>(snapshot: &'a DeviceSnapshot, plugin: PluginStatus<'_>) -> Option<&'a str> {
    let in_force = plugin.in_force;
    let is_wanted = !in_force.desired.devices.is_empty() || !in_force.companions.order.is_empty();
    let matters = is_wanted || !snapshot.assignments.is_empty();
    snapshot.holders_unknown.as_deref().filter(|_| matters)
}

/// Returns the conditions without times, `Ready` first: it repeats the first of the others that is False.
pub fn conditions(inputs: StatusInputs<'_>) -> Vec<Condition> {
    let mut conditions: Vec<UntimedCondition> = driver(inputs.hardware).into_iter().collect();
    if let Some(plugin) = inputs.plugin {
        conditions.push(configuration(plugin));
        conditions.push(registration(inputs.snapshot, inputs.health, plugin));
        conditions.push(devices(inputs.snapshot, inputs.health, plugin));
    }
    let ready = match conditions.iter().find(|condition| !condition.holds) {
        Some(failing) => UntimedCondition {
            of: ConditionType::Ready,
            ..failing.clone()
        },
        None if inputs.plugin.is_some() => UntimedCondition::new(
            ConditionType::Ready,
            true,
            Reason::ConfigurationInForce,
            "the configuration is in force",
        ),
        None => UntimedCondition::new(
            ConditionType::Ready,
            true,
            Reason::DriverAnswers,
            "the hardware is known",
        ),
    };
    conditions.insert(0, ready);
    if let Some(served) = inputs
        .plugin
        .and_then(|plugin| served_by_another(inputs.health, plugin))
    {
        conditions.push(UntimedCondition::new(
            ConditionType::ResourceServedByAnother,
            true,
            Reason::ServedByAnother,
            served,
        ));
    }
    conditions.extend(inputs.plugin.map(|plugin| waiting(inputs.snapshot, plugin)));
    conditions.extend(inputs.plugin.and_then(|plugin| mig_layout(inputs.hardware, plugin)));
    conditions
        .into_iter()
        .map(|condition| condition.at(Timestamp::UNIX_EPOCH, &[]))
        .collect()
}

/// Returns the condition of the driver; none for a node without GPU, which needs no driver.
fn driver(hardware: &Hardware) -> Option<UntimedCondition> {
    let available = ConditionType::DriverAvailable;
    match &hardware.driver {
        DriverState::NotNeeded => None,
        DriverState::Released => Some(UntimedCondition::new(
            available,
            false,
            Reason::Released,
            "the GPUs are released, as a label of the node requests: no device is allocated and the driver is not used",
        )),
        DriverState::Missing(message) => Some(UntimedCondition::new(available, false, Reason::DriverNotFound, message)),
        DriverState::Failed(message) => Some(UntimedCondition::new(available, false, Reason::DriverFailed, message)),
        DriverState::Waiting(message) => Some(UntimedCondition::new(available, false, Reason::DriverNotReady, message)),
        // The other GPUs are advertised all the same.
        DriverState::Answers => {
            let problem = hardware.problem().unwrap_or_else(|| EVERY_GPU_ANSWERS.to_owned());
            Some(UntimedCondition::new(available, true, Reason::DriverAnswers, problem))
        }
    }
}

fn configuration(plugin: PluginStatus<'_>) -> UntimedCondition {
    let accepted = ConditionType::ConfigurationAccepted;
    match (&plugin.in_force.rejected, &plugin.in_force.accepted) {
        (Some(rejected), kept) => {
            let kept = kept.as_ref().map_or("nothing is in force".to_owned(), |kept| {
                format!("{} stays in force", kept.hash)
            });
            let message = format!("{} is rejected and {kept}: {}", rejected.hash, rejected.message);
            UntimedCondition::new(accepted, false, Reason::ConfigurationRejected, message)
        }
        (None, Some(kept)) => UntimedCondition::new(
            accepted,
            true,
            Reason::ConfigurationInForce,
            format!("{} is in force", kept.hash),
        ),
        (None, None) => UntimedCondition::new(
            accepted,
            false,
            Reason::NoConfiguration,
            "no policy configures this node",
        ),
    }
}

fn registration(snapshot: &DeviceSnapshot, health: &NodeHealth, plugin: PluginStatus<'_>) -> UntimedCondition {
    let registered = ConditionType::Registered;
    if let Some(served) = served_by_another(health, plugin) {
        return UntimedCondition::new(registered, false, Reason::ServedByAnother, served);
    }
    match not_registered(snapshot, plugin) {
        Some(missing) => UntimedCondition::new(registered, false, Reason::Registering, missing),
        None => UntimedCondition::new(registered, true, Reason::Registered, "the kubelet has every resource"),
    }
}

/// Returns the condition of resources that another plugin serves, or of GPUs that NVIDIA's DRA driver serves.
fn served_by_another(health: &NodeHealth, plugin: PluginStatus<'_>) -> Option<String> {
    if health.served_by_dra && !plugin.in_force.desired.present.is_empty() {
        return Some(SERVED_BY_DRA.to_owned());
    }
    let others: Vec<&str> = plugin.registered.others.iter().map(String::as_str).collect();
    (!others.is_empty()).then(|| {
        format!(
            "another device plugin on this node serves {}; remove that plugin, or rename the resource",
            others.join(", ")
        )
    })
}

/// Returns the condition of the devices. A device with a pending change stays advertised as before.
fn devices(snapshot: &DeviceSnapshot, health: &NodeHealth, plugin: PluginStatus<'_>) -> UntimedCondition {
    let of = ConditionType::DevicesOffered;
    if let Some((reason, message)) = not_advertised(snapshot, health, plugin) {
        return UntimedCondition::new(of, false, reason, message);
    }
    if let Some((reason, message)) = remarks(plugin) {
        return UntimedCondition::new(of, true, reason, message);
    }
    let message = "every selected device is advertised, or waits for pods to end";
    UntimedCondition::new(of, true, Reason::DevicesOffered, message)
}

/// Returns the condition of devices that wait for pods to end. It does not make the node unready.
fn waiting(snapshot: &DeviceSnapshot, plugin: PluginStatus<'_>) -> UntimedCondition {
    let of = ConditionType::Waiting;
    if let Some(unknown) = holders_unknown(snapshot, plugin) {
        return UntimedCondition::new(of, true, Reason::HoldersUnknown, unknown);
    }
    let Some(first) = snapshot.pending_changes.first() else {
        return UntimedCondition::new(of, false, Reason::NothingWaits, "no device waits for a pod to end");
    };
    let message = match snapshot.pending_changes.len() {
        1 => format!("1 device waits: {}", first.message),
        count => format!("{count} devices wait; {}; status.waiting names all", first.message),
    };
    UntimedCondition::new(of, true, Reason::PodsHoldDevices, message)
}

/// Returns the condition of MIG layouts, with the GPU first that is furthest from its own; none without layouts.
fn mig_layout(hardware: &Hardware, plugin: PluginStatus<'_>) -> Option<UntimedCondition> {
    let of = ConditionType::MigLayout;
    let gpus = hardware.inventory().map_or(&[][..], |inventory| &inventory.gpus);
    let layouts = &plugin.in_force.layouts.gpus;
    let with_layout = gpus.iter().filter_map(|gpu| Some((gpu.index, layouts.get(&gpu.uuid)?)));
    let mut open: Vec<(u32, &MigStatus)> = with_layout.filter(|(_, mig)| mig.phase != MigPhase::Applied).collect();
    open.sort_by_key(|(index, mig)| (Reverse(severity(mig.phase)), *index));
    let texts: Vec<String> = open
        .iter()
        .map(|(index, mig)| {
            let message = mig.message.as_deref().unwrap_or_else(|| mig.phase.as_str());
            format!("GPU {index}: {message}")
        })
        .collect();
    let reason = match open.first().map(|(_, mig)| mig.phase) {
        None if layouts.is_empty() => return None,
        None => {
            return Some(UntimedCondition::new(
                of,
                true,
                Reason::LayoutApplied,
                "every GPU has its layout",
            ));
        }
        Some(MigPhase::Failed) => Reason::LayoutFailed,
        Some(MigPhase::RebootRequired) => Reason::RebootRequired,
        Some(MigPhase::Blocked) => Reason::LayoutBlocked,
        Some(MigPhase::Applying) => Reason::LayoutApplying,
        Some(MigPhase::AwaitingApproval) => Reason::LayoutAwaitsApproval,
        Some(MigPhase::Waiting) => Reason::LayoutWaiting,
        Some(MigPhase::Unsupported | MigPhase::Applied | MigPhase::Unknown) => Reason::LayoutApplied,
    };
    let holds = reason == Reason::LayoutApplied;
    Some(UntimedCondition::new(of, holds, reason, texts.join("; ")))
}

/// Returns the order of phases in a message, the gravest last.
fn severity(phase: MigPhase) -> u8 {
    match phase {
        MigPhase::Applied | MigPhase::Unknown => 0,
        MigPhase::Unsupported => 1,
        MigPhase::Waiting => 2,
        MigPhase::AwaitingApproval => 3,
        MigPhase::Applying => 4,
        MigPhase::Blocked => 5,
        MigPhase::RebootRequired => 6,
        MigPhase::Failed => 7,
    }
}

/// Returns the reason why a selected device is not advertised.
pub fn not_advertised(
    snapshot: &DeviceSnapshot,
    health: &NodeHealth,
    plugin: PluginStatus<'_>,
) -> Option<(Reason, String)> {
    if let Some(unknown) = holders_unknown(snapshot, plugin) {
        return Some((Reason::HoldersUnknown, unknown.to_owned()));
    }
    let InForce {
        desired, companions, ..
    } = plugin.in_force;
    if let Some(problem) = joined(desired.problems.iter()) {
        return Some(problem);
    }
    if let Some(message) = not_injectable(snapshot, health, plugin) {
        return Some((Reason::CdiNotDescribed, message));
    }
    let devices = |state| {
        let daemons = snapshot.daemons.iter().filter(move |daemon| daemon.state == state);
        daemons.map(|daemon| daemon.device.as_str()).collect::<Vec<&str>>()
    };
    let mut silent = devices(MpsDaemonState::NotAnswering);
    // A faulty device is reported as such, and does not make the node unready.
    silent.retain(|device| !snapshot.is_faulty(device, health));
    // A device that left MPS is withheld until its daemon is gone.
    let mut stopping = devices(MpsDaemonState::Stopping);
    stopping.retain(|device| snapshot.assignments.contains_key(*device));
    let what: Vec<String> = [
        (silent, "does not answer (normal for some seconds after its start)"),
        (
            stopping,
            "is still stopping; the device is advertised again when it has",
        ),
    ]
    .into_iter()
    .filter(|(devices, _)| !devices.is_empty())
    .map(|(devices, does)| {
        let names: Vec<String> = devices.into_iter().map(|uuid| name(plugin, uuid)).collect();
        format!("the MPS control daemon of {} {does}", names.join(", "))
    })
    .collect();
    if !what.is_empty() {
        let message = format!(
            "{}; if this persists, see the log of the gpunode-mps pod on this node",
            what.join("; ")
        );
        return Some((Reason::MpsDaemonNotAnswering, message));
    }
    // GPUs come first.
    joined(companions.problems.iter().filter(|problem| !problem.kind.is_remark()))
}

/// Returns what a person should know of companions that does not make the node unready.
pub fn remarks(plugin: PluginStatus<'_>) -> Option<(Reason, String)> {
    let problems = plugin.in_force.companions.problems.iter();
    joined(problems.filter(|problem| problem.kind.is_remark()))
}

/// Returns the reason of the first problem, and the messages of all.
fn joined<'a>(problems: impl Iterator<Item = &'a DeviceProblem>) -> Option<(Reason, String)> {
    let problems: Vec<&DeviceProblem> = problems.collect();
    let messages: Vec<&str> = problems.iter().map(|problem| problem.message.as_str()).collect();
    Some((reason(problems.first()?.kind), messages.join("; ")))
}

/// Returns the devices that no strategy can hand over, by their reasons, and the remedy, if there is no other device: one alone does not
/// make the node unready, as a broken one does not. Faulty devices and those that have left the node are reported as such.
fn not_injectable(snapshot: &DeviceSnapshot, health: &NodeHealth, plugin: PluginStatus<'_>) -> Option<String> {
    let in_force = plugin.in_force;
    let mut devices: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let is_whole = |uuid: &&String| {
        let is_present = in_force.desired.present.iter().any(|device| device.uuid == **uuid);
        is_present && !snapshot.is_faulty(uuid, health)
    };
    for uuid in snapshot.assignments.keys().filter(is_whole) {
        let reason = snapshot.not_injectable.get(uuid)?;
        devices.entry(reason).or_default().push(name(plugin, uuid));
    }
    let of_each = devices
        .into_iter()
        .map(|(reason, names)| format!("no container can get {}: {reason}", names.join(", ")));
    let reasons: Vec<String> = of_each.collect();
    let config = in_force.accepted.as_ref().map(|accepted| &accepted.config);
    let strategies = config
        .map(AgentConfig::effective_device_list_strategy)
        .unwrap_or_default();
    let remedy = if strategies.iter().all(|strategy| strategy.is_cdi()) {
        "add Envvar to deviceListStrategy where containers run with NVIDIA's runtime"
    } else {
        "install NVIDIA's container toolkit"
    };
    (!reasons.is_empty()).then(|| format!("{}; resolve it, or {remedy}", reasons.join("; ")))
}

/// Returns the name of a device: `GPU 3`, `GPU 3:1` for a MIG device, or the UUID of one that left the node.
fn name(plugin: PluginStatus<'_>, uuid: &str) -> String {
    let device = plugin
        .in_force
        .desired
        .present
        .iter()
        .find(|device| device.uuid == uuid);
    device.map_or_else(|| uuid.to_owned(), |device| format!("GPU {}", device.index()))
}

fn reason(kind: DeviceProblemKind) -> Reason {
    match kind {
        DeviceProblemKind::MigInstancesUnequal => Reason::MigInstancesUnequal,
        DeviceProblemKind::MigWithoutInstances => Reason::MigWithoutInstances,
        DeviceProblemKind::MpsUnsupported => Reason::MpsUnsupported,
        DeviceProblemKind::MemoryBelowUnit => Reason::MemoryBelowUnit,
        DeviceProblemKind::FileRefused | DeviceProblemKind::EveryFileRefused => Reason::FileRefused,
        DeviceProblemKind::FileMissing => Reason::FileMissing,
    }
}
