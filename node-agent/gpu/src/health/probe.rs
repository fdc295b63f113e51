//! One look at a GPU: what it shows to be wrong, and which faults it shows to be over.

use super::{Cure, Fault, Trouble};
use crate::Action;

/// `NVML_GPU_RECOVERY_ACTION_NODE_REBOOT` of NVML.
const NODE_REBOOT: u32 = 2;

/// Whether a GPU answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Every call that it supports was answered.
    Answers,
    /// The driver says that it has fallen off the bus.
    Lost,
    /// A call failed in another way.
    Fails,
    /// A call has not been answered for long.
    Hangs,
}

/// One look at a GPU. None is what it or its driver cannot tell; a call that fails is [`Answer::Fails`].
#[derive(Clone, Debug)]
pub struct Probe {
    /// UUID of the GPU.
    pub gpu: String,
    /// [`super::Health::ticket`] from before the look.
    pub ticket: u64,
    /// Whether it answered.
    pub answer: Answer,
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
    pub instances: Vec<InstanceProbe>,
}

/// One look at a MIG device.
#[derive(Clone, Debug)]
pub struct InstanceProbe {
    /// UUID of the MIG device.
    pub uuid: String,
    /// Whether it answered itself.
    pub answers: bool,
    /// Processes on it, and pods that hold something of it.
    pub processes: Option<usize>,
}

impl Probe {
    /// What the look tells to be so or not to be so; what it cannot tell is left out.
    pub(super) fn troubles(&self) -> Vec<(Trouble, bool)> {
        match self.answer {
            Answer::Lost => return vec![(Trouble::Lost, true)],
            Answer::Fails | Answer::Hangs => return vec![(Trouble::NotAnswering, true)],
            Answer::Answers => {}
        }
        // Where rows are replaced, or the driver tells what it needs, an error that hit one application leaves the GPU whole.
        let ecc = self.uncorrected_ecc.map(|errors| {
            errors > 0 && self.recovery_action.is_none() && self.remap_pending.is_none() && self.remap_failed.is_none()
        });
        [
            (Trouble::Lost, Some(false)),
            (Trouble::NotAnswering, Some(false)),
            (
                Trouble::RecoveryPending,
                self.recovery_action.map(|action| action != 0 && action != NODE_REBOOT),
            ),
            (
                Trouble::RebootPending,
                self.recovery_action.map(|action| action == NODE_REBOOT),
            ),
            (Trouble::UncorrectedEcc, ecc),
            (Trouble::RowRemapPending, self.remap_pending),
            (Trouble::RowRemapFailed, self.remap_failed),
            (Trouble::PageRetirementPending, self.retirement_pending),
            (Trouble::NvLinkDown, self.link_down),
        ]
        .into_iter()
        .filter_map(|(trouble, shown)| shown.map(|shown| (trouble, shown)))
        .collect()
    }

    /// Whether the look proves that what an XID told is over, on a device with this many processes.
    pub(super) fn disproves(&self, fault: &Fault, processes: Option<usize>) -> bool {
        let pending = [self.remap_pending, self.remap_failed, self.retirement_pending].contains(&Some(true));
        if fault.trouble != Trouble::Xid || self.answer != Answer::Answers || pending || fault.seen > self.ticket {
            return false;
        }
        match (self.recovery_action, fault.action()) {
            (Some(action), _) => action == 0,
            (None, Action::Ignore | Action::RestartApp) => processes == Some(0) || fault.cure >= Cure::Reset,
            (None, Action::CheckLinks | Action::ResetGpu) => fault.cure >= Cure::Reset,
            (None, Action::RestartVm | Action::RestartMachine) => fault.cure >= Cure::Boot,
        }
    }
}
