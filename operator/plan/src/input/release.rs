//! The labels by which people, and NVIDIA's operators, tell the agents of a node to release its GPUs.

use crate::input::facts::NodeFacts;
use gpunode_crds::RELEASE_LABEL;

/// Label by which NVIDIA's driver manager and mig-manager of gpu-operator pause a device plugin.
pub const PAUSE_LABEL: &str = "nvidia.com/gpu.deploy.device-plugin";
/// Part of its value while they pause. `false` is the user's own choice to run no NVIDIA plugin.
const PAUSED: &str = "paused-for-";

/// Returns true if the agents of a node must release its GPUs.
pub fn is_released(node: &NodeFacts) -> bool {
    node.labels.get(RELEASE_LABEL) == Some("true")
        || node.labels.get(PAUSE_LABEL).is_some_and(|value| value.contains(PAUSED))
}
