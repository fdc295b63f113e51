//! Composes `GpuNode.status` from hardware, devices and health. Pure.

use crate::{
    driver::hardware::DriverState,
    status::{
        conditions, hardware, in_use,
        inputs::{AgentIdentity, StatusInputs},
        number::number,
        resources,
    },
};
use gpunode_config::{CONFIG_VERSION, known_fields};
use gpunode_crds::{
    Agent, AgentMode, GpuDevice, GpuNodeStatus, Holder, MAX_DEVICES, MAX_HOLDER_DEVICE, MAX_HOLDERS,
    MAX_WAITING_MESSAGE, MAX_WAITING_PODS, MigStrategy, RejectedConfiguration, WaitingDevice,
};
use gpunode_gpu as gpu;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// Returns the status without transition times, which [`set_times`] sets: equal inputs give an equal status.
pub fn status(identity: &AgentIdentity, inputs: StatusInputs<'_>) -> GpuNodeStatus {
    // `keep_missing` keeps the facts of a driver that no longer answers. A driver that the agent waits for may answer yet.
    let stands = matches!(
        inputs.hardware.driver,
        DriverState::Answers | DriverState::Released | DriverState::Waiting(_)
    );
    let inventory = inputs.hardware.inventory().filter(|_| stands);
    let snapshot = inputs.snapshot;
    let in_force = inputs.plugin.map(|plugin| plugin.in_force);
    let rejected = in_force.and_then(|in_force| in_force.rejected.as_ref());
    let resources = inputs
        .plugin
        .map(|plugin| resources::resources(snapshot, inputs.health, plugin))
        .unwrap_or_default();
    GpuNodeStatus {
        agent: Some(Agent {
            pod: identity.pod.clone(),
            pod_uid: identity.pod_uid.clone(),
            policy: Some(identity.policy.clone()).filter(|policy| !policy.is_empty()),
            mode: if inputs.plugin.is_some() {
                AgentMode::DevicePlugin
            } else {
                AgentMode::Discovery
            },
            version: env!("CARGO_PKG_VERSION").to_owned(),
            config_versions: vec![CONFIG_VERSION],
            config_fields: known_fields().iter().cloned().collect(),
        }),
        hardware: inventory
            .map(gpu::Inventory::summary)
            .filter(|summary| !summary.is_empty()),
        driver_version: inventory.and_then(|inventory| inventory.driver_version.clone()),
        cuda_version: inventory.and_then(|inventory| inventory.cuda_version.clone()),
        machine: inputs.hardware.machine.product.clone(),
        vgpu: inputs.hardware.machine.vgpu.as_ref().map(hardware::vgpu),
        runtime: inputs.runtime.cloned(),
        mig_strategy: in_force
            .and_then(|in_force| Some(in_force.accepted.as_ref()?.config.mig_strategy()))
            .filter(|strategy| *strategy != MigStrategy::None),
        gpus: inventory
            .map(|inventory| {
                inventory
                    .gpus
                    .iter()
                    .map(|gpu| GpuDevice {
                        mig: in_force.and_then(|in_force| in_force.layouts.gpus.get(&gpu.uuid).cloned()),
                        ..hardware::device(gpu, inputs.health)
                    })
                    .collect()
            })
            .unwrap_or_default(),
        in_use: in_use::in_use(&resources, &snapshot.holders),
        held_by: in_use::held_by(&snapshot.holders),
        resources,
        holders: snapshot.holders.iter().take(MAX_HOLDERS).map(holder).collect(),
        holders_truncated: snapshot.holders.len() > MAX_HOLDERS,
        // The agent's own state knows the change.
        finished_change: None,
        waiting: snapshot.pending_changes.iter().take(MAX_DEVICES).map(waiting).collect(),
        mps_daemons: snapshot.daemons.iter().take(MAX_DEVICES).cloned().collect(),
        config_hash: in_force.and_then(|in_force| Some(in_force.accepted.as_ref()?.hash.clone())),
        // The writer knows the step and the status before.
        finished_step: None,
        rejected_config: rejected.map(|rejected| RejectedConfiguration {
            hash: rejected.hash.clone(),
            message: rejected.message.clone(),
        }),
        conditions: conditions::conditions(inputs),
    }
}

/// Sets the transition time of each condition: the one in `before` if the status is the same, else `now`.
pub fn set_times(status: &mut GpuNodeStatus, before: &GpuNodeStatus, now: Timestamp) {
    for condition in &mut status.conditions {
        let same = |old: &&Condition| old.type_ == condition.type_ && old.status == condition.status;
        condition.last_transition_time = before
            .conditions
            .iter()
            .find(same)
            .map_or(Time(now), |old| old.last_transition_time.clone());
    }
}

fn holder(holder: &gpu::DeviceHolder) -> Holder {
    Holder {
        namespace: holder.namespace.clone(),
        pod: holder.pod.clone(),
        container: holder.container.clone(),
        resource: holder.resource.clone(),
        // Entries of other plugins in the kubelet's checkpoint may be of any length.
        device: holder.device.chars().take(MAX_HOLDER_DEVICE).collect(),
        count: number(holder.count),
    }
}

fn waiting(waiting: &gpu::PendingChange) -> WaitingDevice {
    WaitingDevice {
        device: waiting.device.clone(),
        message: waiting.message.chars().take(MAX_WAITING_MESSAGE).collect(),
        pods: waiting.pods.iter().take(MAX_WAITING_PODS).cloned().collect(),
        switches: waiting.switches,
    }
}

#[cfg(test)]
mod tests;
