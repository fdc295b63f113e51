//! Nodes on which NVIDIA's mig-manager changes MIG. Two programs that change the instances of one GPU destroy each other's work.
//!
//! `nvidia.com/mig.config` is only a wish, often left over, and `nvidia.com/gpu.deploy.mig-manager=true` is set wherever the
//! hardware could have MIG. mig-manager alone writes `nvidia.com/mig.config.state`, and leaves it behind when it is removed.

use crate::input::facts::NodeFacts;

/// Label with the state of the last change by mig-manager.
pub const MIG_MANAGER_STATE: &str = "nvidia.com/mig.config.state";
/// Label by which the GPU operator places mig-manager.
pub const MIG_MANAGER_DEPLOYED: &str = "nvidia.com/gpu.deploy.mig-manager";

/// Returns true if mig-manager has changed MIG on the node, unless its label keeps it away.
pub fn runs_mig_manager(node: &NodeFacts) -> bool {
    let label = |key| node.labels.get(key).unwrap_or_default();
    !label(MIG_MANAGER_STATE).is_empty() && label(MIG_MANAGER_DEPLOYED) != "false"
}
