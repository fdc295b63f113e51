//! One fault of one device: its resolution, and the text that says when it clears.

use super::xid::{self, Resolution};
use gpunode_config::{HealthRules as Rules, Recovery};
use gpunode_crds::FaultReason;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// One fault of one device. The agent saves it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// The reason, as the API has it.
    pub reason: FaultReason,
    /// Number of the XID; of several that the catalog does not have, the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xid: Option<i32>,
    /// Time at which it began.
    pub since: Timestamp,
    /// Time since which the device is unhealthy, be it by an earlier fault that has ended.
    pub(super) unhealthy_since: Timestamp,
    /// Time of the driver's last report.
    pub(super) latest: Timestamp,
    /// Place among all observations: a probe from before it proves nothing, whatever the clock does.
    pub(super) ticket: u64,
    /// The strongest restart seen since.
    pub(super) cure: Cure,
}

/// Restarts that may cure a fault, weakest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Cure {
    #[default]
    None,
    Reset,
    Boot,
}

/// A fault that began or ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultTransition {
    /// UUID of the GPU or MIG device.
    pub device: String,
    /// The fault.
    pub fault: Fault,
    /// True if the fault began, false if it ended.
    pub began: bool,
}

impl Fault {
    /// Returns the repair that clears it.
    pub fn resolution(&self) -> Resolution {
        match self.reason {
            FaultReason::Xid => self
                .xid
                .and_then(xid::describe)
                .map_or(Resolution::ResetGpu, |(_, resolution)| resolution),
            FaultReason::Lost | FaultReason::RebootPending => Resolution::RebootNode,
            FaultReason::NvLinkDown => Resolution::CheckLinks,
            FaultReason::MpsDaemonDied => Resolution::RestartApp,
            _ => Resolution::ResetGpu,
        }
    }

    /// Returns true if it is the driver's wish for a reset or reboot, which names no cause.
    pub(super) fn is_wish(&self) -> bool {
        self.reason.published() == FaultReason::RecoveryPending
    }

    /// Returns the event that clears it: the end of "clears after: ".
    pub fn waits_for(&self, rules: &Rules) -> &'static str {
        if rules.recovery() == Recovery::Manual {
            return "annotation gpunode.dev/recovered on the node";
        }
        match (self.reason, self.resolution()) {
            (FaultReason::MpsDaemonDied, _) => "start of an MPS control daemon",
            (FaultReason::Xid, Resolution::Ignore | Resolution::RestartApp) => {
                "the end of all processes and pods on the device, or recovery action None from the driver"
            }
            (FaultReason::Xid, Resolution::RebootNode | Resolution::RestartVm) => {
                "node reboot, or recovery action None from the driver"
            }
            (FaultReason::Xid, _) => "GPU reset, or recovery action None from the driver",
            _ => "a probe that no longer shows the fault",
        }
    }
}
