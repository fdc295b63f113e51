//! Which devices of the node are broken, for those who give them out and for status.

use super::fault_text;
use gpunode_config::HealthRules as Rules;
use gpunode_gpu::DeviceFaults;
use std::sync::Arc;

/// Which devices are broken, as far as is known. One that nobody has looked at counts as whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeHealth {
    /// Why no device of the node can be used now.
    pub all: Option<String>,
    /// What is wrong with which GPU or MIG device; none before anybody has looked.
    pub faults: Option<Arc<DeviceFaults>>,
    /// When they are whole again.
    pub rules: Arc<Rules>,
}

impl NodeHealth {
    /// Why devices cannot be given out, by UUID.
    pub fn reasons(&self) -> impl Iterator<Item = (String, String)> {
        self.faults.iter().flat_map(|health| {
            let broken = health
                .devices()
                .filter_map(|(device, _)| Some((device, health.gravest(&[device])?)));
            broken.map(|(device, fault)| (device.to_owned(), fault_text::meaning(fault)))
        })
    }
}
