//! One look at a GPU: the faults it shows, and those it disproves.

use super::fault::{Cure, Fault, is_ignored};
use gpunode_config::{HealthRules as Rules, Resolution};
use gpunode_crds::FaultReason;

/// Result of a probe of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeResult {
    /// The driver answers every call that the GPU supports.
    Responds,
    /// The driver reports that the GPU has fallen off the bus.
    Lost,
    /// A call fails in another way.
    Fails,
    /// A call has had no answer for long, and is the one that all others wait for.
    Hangs,
    /// A call has had no answer for long, because a call about another GPU hangs.
    Blocked,
}

/// One probe of a GPU. `None` is a value that the GPU or its driver does not support; a call that fails is
/// [`ProbeResult::Fails`].
#[derive(Clone, Debug)]
pub struct GpuProbe {
    /// UUID of the GPU.
    pub gpu: String,
    /// `DeviceFaults::ticket` from before the probe.
    pub ticket: u64,
    /// The result.
    pub result: ProbeResult,
    /// NVML field 230: 0 if the GPU needs nothing.
    pub recovery_action: Option<u32>,
    /// Uncorrected memory errors since the driver was loaded.
    pub uncorrected_ecc: Option<u64>,
    /// True if memory rows wait for a reset.
    pub remap_pending: Option<bool>,
    /// True if memory rows could not be replaced.
    pub remap_failed: Option<bool>,
    /// True if memory pages wait for a reset.
    pub retirement_pending: Option<bool>,
    /// True if one of them had a double-bit error.
    pub double_bit_pending: Option<bool>,
    /// True if an NVLink that was up is down.
    pub link_down: Option<bool>,
    /// Number of processes on the GPU and of pods that hold a share of it.
    pub processes: Option<usize>,
    /// Its MIG devices.
    pub instances: Vec<MigProbe>,
}

/// One probe of a MIG device.
#[derive(Clone, Debug)]
pub struct MigProbe {
    /// UUID of the MIG device.
    pub uuid: String,
    /// True if the MIG device itself answers.
    pub answers: bool,
    /// Number of processes on it and of pods that hold a share of it.
    pub processes: Option<usize>,
}

impl GpuProbe {
    /// Returns the faults that the probe shows (true) or disproves (false), without those it cannot tell.
    pub(super) fn findings(&self) -> Vec<(FaultReason, bool)> {
        match self.result {
            ProbeResult::Lost => return vec![(FaultReason::Lost, true), (FaultReason::DriverBlocked, false)],
            ProbeResult::Fails | ProbeResult::Hangs => {
                return vec![(FaultReason::NotAnswering, true), (FaultReason::DriverBlocked, false)];
            }
            ProbeResult::Blocked => return vec![(FaultReason::DriverBlocked, true)],
            ProbeResult::Responds => {}
        }
        // Where the GPU replaces rows or the driver names a recovery action, an error of one application is no fault.
        let ecc = self.uncorrected_ecc.map(|errors| {
            errors > 0 && self.recovery_action.is_none() && self.remap_pending.is_none() && self.remap_failed.is_none()
        });
        let has_double_bit = self.double_bit_pending == Some(true);
        [
            (FaultReason::Lost, Some(false)),
            (FaultReason::NotAnswering, Some(false)),
            (FaultReason::DriverBlocked, Some(false)),
            (
                FaultReason::RecoveryPending,
                self.recovery_action.map(|action| action != 0),
            ),
            (
                FaultReason::UncorrectedEcc,
                if has_double_bit { Some(true) } else { ecc },
            ),
            (FaultReason::RowRemapPending, self.remap_pending),
            (FaultReason::RowRemapFailed, self.remap_failed),
            (
                FaultReason::PageRetirementPending,
                self.retirement_pending.map(|pending| pending && !has_double_bit),
            ),
            (FaultReason::NvLinkDown, self.link_down),
        ]
        .into_iter()
        .filter_map(|(reason, shown)| shown.map(|shown| (reason, shown)))
        .collect()
    }

    /// Returns true if the probe proves that an XID fault has ended, on a device with this many processes.
    pub(super) fn disproves(&self, fault: &Fault, processes: Option<usize>, rules: &Rules) -> bool {
        // Rows and pages that only wait for a reset affect no work.
        let is_damaged = [
            (FaultReason::RowRemapFailed, self.remap_failed),
            (FaultReason::UncorrectedEcc, self.double_bit_pending),
        ]
        .into_iter()
        .any(|(reason, shown)| shown == Some(true) && !is_ignored(reason, rules));
        if fault.reason != FaultReason::Xid
            || self.result != ProbeResult::Responds
            || is_damaged
            || fault.ticket > self.ticket
        {
            return false;
        }
        match (self.recovery_action, fault.resolution()) {
            (Some(action), _) => action == 0,
            (None, Resolution::Ignore | Resolution::RestartApp) => processes == Some(0) || fault.cure >= Cure::Reset,
            (None, Resolution::CheckLinks | Resolution::ResetGpu) => fault.cure >= Cure::Reset,
            (None, Resolution::RestartVm | Resolution::RebootNode) => fault.cure >= Cure::Boot,
        }
    }
}
