//! Inputs of a status.

use crate::{
    configuration::in_force::InForce, devices::state::DeviceSnapshot, driver::hardware::Hardware,
    health::node_health::NodeHealth, plugin::registration::RegisteredResources,
};
use gpunode_crds::RuntimeStatus;

/// The agent that reports.
#[derive(Clone, Debug, Default)]
pub struct AgentIdentity {
    /// Name of its pod.
    pub pod: String,
    /// UID of its pod.
    pub pod_uid: String,
    /// The policy whose DaemonSet the pod belongs to; empty for discovery.
    pub policy: String,
}

/// Inputs of a status.
#[derive(Clone, Copy, Debug)]
pub struct StatusInputs<'a> {
    /// Last reading of the hardware.
    pub hardware: &'a Hardware,
    /// Advertised resources, holders and pending changes.
    pub snapshot: &'a DeviceSnapshot,
    /// Faulty devices.
    pub health: &'a NodeHealth,
    /// Container runtime of the node; none before it was read.
    pub runtime: Option<&'a RuntimeStatus>,
    /// State of the device plugin; none for discovery.
    pub plugin: Option<PluginStatus<'a>>,
}

/// State of the device plugin.
#[derive(Clone, Copy, Debug)]
pub struct PluginStatus<'a> {
    /// Configuration in force.
    pub in_force: &'a InForce,
    /// Resources that the kubelet has accepted.
    pub registered: &'a RegisteredResources,
}
