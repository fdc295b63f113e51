//! What is given out on the node, as far as health is about it.

use super::node_health::NodeHealth;
use gpunode_crds::MpsDaemon;
use gpunode_gpu::DeviceHolder;
use tokio::sync::watch;

/// Who gives the devices out.
pub trait Allocations: Send + Sync {
    /// Changes with what is given out, and with the MPS control daemons.
    fn changes(&self) -> watch::Receiver<u64>;

    /// The MPS control daemons of the node.
    fn daemons(&self) -> Vec<MpsDaemon>;

    /// Who holds what.
    fn holders(&self) -> Vec<DeviceHolder>;

    /// Who holds what, unless it is not known now.
    fn known_holders(&self) -> Option<Vec<DeviceHolder>>;

    /// Whether this device is offered itself, and not its parts.
    fn is_assigned(&self, device: &str) -> bool;

    /// Takes in which devices are broken.
    fn set_health(&self, node_health: NodeHealth);
}
