//! One fault of one device: its resolution, and the text that says when it clears.

use super::recovery_action;
use gpunode_config::{HealthRules as Rules, IgnorableFault, Recovery, Resolution, describe_xid};
use gpunode_crds::{FaultGrade, FaultReason};
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
    /// Recovery action of the driver (NVML field 230) for an XID or a pending recovery; none if the driver reports none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery_action: Option<u32>,
    /// Time at which it began.
    pub since: Timestamp,
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
    /// Returns what follows from it. The driver grades an XID where it reports a recovery action: one number may come with
    /// contained and with uncontained errors.
    pub fn grade(&self) -> FaultGrade {
        match self.reason {
            // "A pending remapping won't affect future work on the GPU" (`nvmlDeviceGetRemappedRows` in nvml.h).
            FaultReason::RowRemapPending | FaultReason::PageRetirementPending => FaultGrade::Degraded,
            FaultReason::RowRemapFailed
            | FaultReason::NvLinkDown
            | FaultReason::MpsDaemonDied
            | FaultReason::FabricNotReady
            | FaultReason::DriverBlocked => FaultGrade::NoNewWork,
            FaultReason::Lost | FaultReason::NotAnswering | FaultReason::UncorrectedEcc => FaultGrade::Broken,
            FaultReason::Xid | FaultReason::RecoveryPending => match (self.recovery_action, self.resolution()) {
                (Some(action), _) => recovery_action::grade(action),
                (None, Resolution::CheckLinks) => FaultGrade::NoNewWork,
                (None, _) => FaultGrade::Broken,
            },
        }
    }

    /// Returns true if its device gets no new work.
    pub fn withholds(&self) -> bool {
        self.grade() > FaultGrade::Degraded
    }

    /// Returns the repair that clears it.
    pub(super) fn resolution(&self) -> Resolution {
        match self.reason {
            FaultReason::Xid => self
                .xid
                .and_then(describe_xid)
                .map_or(Resolution::ResetGpu, |(_, resolution)| resolution),
            FaultReason::RecoveryPending => self
                .recovery_action
                .map_or(Resolution::ResetGpu, recovery_action::resolution),
            FaultReason::Lost => Resolution::RebootNode,
            FaultReason::NvLinkDown | FaultReason::FabricNotReady => Resolution::CheckLinks,
            FaultReason::MpsDaemonDied => Resolution::RestartApp,
            FaultReason::DriverBlocked => Resolution::Ignore,
            _ => Resolution::ResetGpu,
        }
    }

    /// Returns the advice for people.
    pub fn advice(&self) -> &'static str {
        match (self.reason, self.recovery_action) {
            (FaultReason::FabricNotReady, _) => {
                "check that Fabric Manager runs on the node; behind fabric partitions, activate the one of the GPU"
            }
            (FaultReason::NotAnswering, _) => "reset the GPU; if the driver answers no call, reboot the node",
            (FaultReason::DriverBlocked, _) => {
                "repair the GPU with the fault NotAnswering; if no GPU of the node has it, a call of another program hangs: \
                 reboot the node"
            }
            (FaultReason::RecoveryPending, Some(action)) => recovery_action::advice(action),
            _ => self.resolution().advice(),
        }
    }

    /// Returns true if it is the driver's wish for a reset or reboot, which names no cause.
    pub(super) fn is_wish(&self) -> bool {
        self.reason == FaultReason::RecoveryPending
    }

    /// Returns the event that clears it: the end of "clears after: ".
    pub fn waits_for(&self, rules: &Rules) -> &'static str {
        if rules.recovery() == Recovery::Manual && !needs_no_person(self.reason) {
            return "annotation gpunode.dev/recovered on the node";
        }
        match (self.reason, self.resolution()) {
            (FaultReason::MpsDaemonDied, _) => "start of an MPS control daemon",
            (FaultReason::FabricNotReady, _) => "registration of the GPU by Fabric Manager",
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

/// Returns true for faults that need no person to end: nothing of the GPU was damaged.
pub(super) fn needs_no_person(reason: FaultReason) -> bool {
    matches!(reason, FaultReason::FabricNotReady | FaultReason::DriverBlocked)
}

/// Returns true if the rules switch off a reason.
pub(super) fn is_ignored(reason: FaultReason, rules: &Rules) -> bool {
    let name = match reason {
        FaultReason::UncorrectedEcc => IgnorableFault::UncorrectedEcc,
        FaultReason::RowRemapPending => IgnorableFault::RowRemapPending,
        FaultReason::RowRemapFailed => IgnorableFault::RowRemapFailed,
        FaultReason::PageRetirementPending => IgnorableFault::PageRetirementPending,
        FaultReason::NvLinkDown => IgnorableFault::NvLinkDown,
        FaultReason::RecoveryPending => IgnorableFault::RecoveryPending,
        FaultReason::FabricNotReady => IgnorableFault::FabricNotReady,
        FaultReason::Xid
        | FaultReason::Lost
        | FaultReason::NotAnswering
        | FaultReason::MpsDaemonDied
        | FaultReason::DriverBlocked => return false,
    };
    rules.ignore.contains(&name)
}
