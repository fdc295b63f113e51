//! The device manager as the health monitor sees it.

use gpunode_crds::MpsDaemon;
use gpunode_gpu::DeviceHolder;
use tokio::sync::watch;

/// Access to allocations and MPS daemons.
pub trait Allocations: Send + Sync {
    /// Changes whenever an allocation or an MPS control daemon does.
    fn changes(&self) -> watch::Receiver<u64>;

    /// The MPS control daemons of the node.
    fn daemons(&self) -> Vec<MpsDaemon>;

    /// Returns the holders of all devices.
    fn holders(&self) -> Vec<DeviceHolder>;

    /// Returns the holders of all devices; none while the kubelet does not tell them.
    fn known_holders(&self) -> Option<Vec<DeviceHolder>>;

    /// Returns whether this GPU is assigned to a resource itself, rather than its MIG devices.
    fn is_assigned(&self, device: &str) -> bool;
}
