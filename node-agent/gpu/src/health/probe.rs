//! One look at a GPU: what it shows to be wrong, and which faults it shows to be over.

use super::{Cure, Fault};
use crate::Resolution;
use gpunode_crds::FaultReason;

/// `NVML_GPU_RECOVERY_ACTION_NODE_REBOOT` of NVML.
const NODE_REBOOT: u32 = 2;

/// Whether a GPU answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeResult {
    /// Every call that it supports was answered.
    Responds,
    /// The driver says that it has fallen off the bus.
    Lost,
    /// A call failed in another way.
    Fails,
    /// A call has not been answered for long.
    Hangs,
}

/// One look at a GPU. None is what it or its driver cannot tell; a call that fails is [`ProbeResult::Fails`].
#[derive(Clone, Debug)]
pub struct GpuProbe {
    /// UUID of the GPU.
    pub gpu: String,
    /// [`super::DeviceFaults::ticket`] from before the look.
    pub ticket: u64,
    /// Whether it answered.
    pub result: ProbeResult,
    /// NVML field 230: 0 is nothing to do, anything else is not recovered.
    pub recovery_action: Option<u32>,
    /// Uncorrected memory errors since the driver was loaded.
    pub uncorrected_ecc: Option<u64>,
    /// Rows wait for a reset.
    pub remap_pending: Option<bool>,
    /// Rows could not be replaced.
    pub remap_failed: Option<bool>,
    /// Pages wait for a reset.
    pub retirement_pending: Option<bool>,
    /// An NVLink that was up is down.
    pub link_down: Option<bool>,
    /// Processes on the GPU, and pods that hold something of it.
    pub processes: Option<usize>,
    /// Its MIG devices.
    pub instances: Vec<MigProbe>,
}

/// One look at a MIG device.
#[derive(Clone, Debug)]
pub struct MigProbe {
    /// UUID of the MIG device.
    pub uuid: String,
    /// Whether it answered itself.
    pub answers: bool,
    /// Processes on it, and pods that hold something of it.
    pub processes: Option<usize>,
}

impl GpuProbe {
    /// What the look tells to be so or not to be so; what it cannot tell is left out.
    pub(super) fn findings(&self) -> Vec<(FaultReason, bool)> {
        match self.result {
            ProbeResult::Lost => return vec![(FaultReason::Lost, true)],
            ProbeResult::Fails | ProbeResult::Hangs => return vec![(FaultReason::NotAnswering, true)],
            ProbeResult::Responds => {}
        }
        // Where rows are replaced, or the driver tells what it needs, an error that hit one application leaves the GPU whole.
        let ecc = self.uncorrected_ecc.map(|errors| {
            errors > 0 && self.recovery_action.is_none() && self.remap_pending.is_none() && self.remap_failed.is_none()
        });
        [
            (FaultReason::Lost, Some(false)),
            (FaultReason::NotAnswering, Some(false)),
            (
                FaultReason::RecoveryPending,
                self.recovery_action.map(|action| action != 0 && action != NODE_REBOOT),
            ),
            (
                FaultReason::RebootPending,
                self.recovery_action.map(|action| action == NODE_REBOOT),
            ),
            (FaultReason::UncorrectedEcc, ecc),
            (FaultReason::RowRemapPending, self.remap_pending),
            (FaultReason::RowRemapFailed, self.remap_failed),
            (FaultReason::PageRetirementPending, self.retirement_pending),
            (FaultReason::NvLinkDown, self.link_down),
        ]
        .into_iter()
        .filter_map(|(reason, shown)| shown.map(|shown| (reason, shown)))
        .collect()
    }

    /// Whether the look proves that what an XID told is over, on a device with this many processes.
    pub(super) fn disproves(&self, fault: &Fault, processes: Option<usize>) -> bool {
        let pending = [self.remap_pending, self.remap_failed, self.retirement_pending].contains(&Some(true));
        if fault.reason != FaultReason::Xid
            || self.result != ProbeResult::Responds
            || pending
            || fault.seen > self.ticket
        {
            return false;
        }
        match (self.recovery_action, fault.resolution()) {
            (Some(action), _) => action == 0,
            (None, Resolution::Ignore | Resolution::RestartApp) => processes == Some(0) || fault.cure >= Cure::Reset,
            (None, Resolution::CheckLinks | Resolution::ResetGpu) => fault.cure >= Cure::Reset,
            (None, Resolution::RestartVm | Resolution::RestartMachine) => fault.cure >= Cure::Boot,
        }
    }
}
