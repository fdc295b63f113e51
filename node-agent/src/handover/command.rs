//! Commands of the hand-over to the agent's main loop, and the ability of the agent that it reports back.

use super::lock::LockError;
use tokio::sync::oneshot;

/// Command to the agent's main loop.
#[derive(Debug)]
pub enum HandoverCommand {
    /// Become active: this agent holds the lock. Restore the saved state and register.
    Activate,
    /// Withdraw from the kubelet, clear the device state, which is on disk, and confirm.
    Deactivate(oneshot::Sender<()>),
    /// Confirm that the main loop still handles commands.
    Ping(oneshot::Sender<()>),
    /// Stop the agent: the lock cannot be used.
    Stop(LockError),
}

/// Ability of this agent to serve the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fitness {
    /// Reason why it cannot; `None` if it can.
    pub problem: Option<String>,
}
