//! Everything that can begin or end a fault.

use super::probe::GpuProbe;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Identity of one run of the node and of its driver. An empty part is unknown and proves nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunId {
    /// Boot id of the kernel.
    pub boot: String,
    /// Any text that changes when the driver is loaded again.
    pub driver: String,
}

impl RunId {
    /// Returns true if `now` is known to be another run.
    pub fn is_other(&self, now: &Self) -> bool {
        is_other(&self.boot, &now.boot) || is_other(&self.driver, &now.driver)
    }

    /// Returns true if `now` has a part that this one lacks or has otherwise.
    pub fn lacks(&self, now: &Self) -> bool {
        let lacks = |before: &String, now: &String| !now.is_empty() && before != now;
        lacks(&self.boot, &now.boot) || lacks(&self.driver, &now.driver)
    }
}

/// Returns true if both are known and differ.
pub(super) fn is_other(before: &str, now: &str) -> bool {
    !before.is_empty() && !now.is_empty() && before != now
}

/// One observation of the node's devices.
#[derive(Clone, Debug)]
pub enum HealthObservation {
    /// The driver reported this XID for the GPU or MIG device with this UUID.
    Xid(String, i32),
    /// The agent probed a GPU.
    Probe(GpuProbe),
    /// Node and driver are in this run.
    Run(RunId),
    /// A GPU was reset: the UUIDs of the GPU and of its MIG devices.
    Reset(Vec<String>),
    /// The GPU with this UUID has joined its NVLink fabric or needs none (true), or has not (false).
    Fabric(String, bool),
    /// The MPS control daemon of the device with this UUID runs, or does not.
    MpsDaemon(String, bool),
    /// A person ended all faults from before this time.
    Recovered(Timestamp),
}
