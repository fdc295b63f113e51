//! The health of all devices of the node, as the device manager and status read it.

use super::fault_text;
use gpunode_config::HealthRules as Rules;
use gpunode_gpu::{DeviceFaults, LastXids};
use std::sync::Arc;

/// The health of all devices of the node. A device that was never probed counts as healthy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeHealth {
    /// Reason why no device of the node can be used now.
    pub all: Option<String>,
    /// Faults by GPU or MIG device; none before the first probe.
    pub faults: Option<DeviceFaults>,
    /// Last XIDs of each GPU, also those that are no fault.
    pub last_xids: LastXids,
    /// Rules that say what clears a fault.
    pub rules: Arc<Rules>,
}

impl NodeHealth {
    /// Returns the reason why a device cannot be allocated, by UUID.
    pub fn reasons(&self) -> impl Iterator<Item = (String, String)> {
        self.faults.iter().flat_map(|health| {
            let faulty = health
                .devices()
                .filter_map(|(device, _)| Some((device, health.gravest(&[device])?)));
            let withheld = faulty.filter(|(_, fault)| fault.withholds());
            withheld.map(|(device, fault)| (device.to_owned(), fault_text::meaning(fault)))
        })
    }
}
