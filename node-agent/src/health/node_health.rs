//! The health of all devices of the node, as the device manager and status read it.

use super::fault_text;
use gpunode_config::HealthRules as Rules;
use gpunode_gpu::{DeviceFaults, FaultReason, LastXids};
use std::sync::Arc;

/// The health of all devices of the node. A device that was never probed counts as healthy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeHealth {
    /// Reason why no device of the node can be used now.
    pub unavailable: Option<String>,
    /// Reason why no container gets another share of any device now: the agent waits for the driver.
    pub paused: Option<String>,
    /// True if NVIDIA's DRA driver serves the GPUs: containers keep their shares, and no container gets another one.
    pub served_by_dra: bool,
    /// Faults by GPU or MIG device; none before the first probe.
    pub faults: Option<DeviceFaults>,
    /// Last XIDs of each GPU, also those that are no fault.
    pub last_xids: LastXids,
    /// Rules that say what clears a fault.
    pub rules: Arc<Rules>,
}

impl NodeHealth {
    /// Returns the reason why a device cannot be used, by UUID.
    pub fn reasons(&self) -> impl Iterator<Item = (String, String)> {
        self.reasons_of(false)
    }

    /// Returns the reason why containers keep their shares of a device and get no other ones, by UUID: nothing is known to be wrong
    /// with the device, but the driver answers no call about it.
    pub fn paused_reasons(&self) -> impl Iterator<Item = (String, String)> {
        self.reasons_of(true)
    }

    /// Returns false for a GPU that did not answer the last probe.
    pub fn answers(&self, gpu: &str) -> bool {
        let silent = [FaultReason::NotAnswering, FaultReason::DriverBlocked, FaultReason::Lost];
        let has_fault = |faults: &DeviceFaults| silent.iter().any(|reason| faults.has_fault(gpu, *reason));
        !self.faults.as_ref().is_some_and(has_fault)
    }

    fn reasons_of(&self, paused: bool) -> impl Iterator<Item = (String, String)> {
        self.faults.iter().flat_map(move |health| {
            health.devices().filter_map(move |(device, faults)| {
                let fault = health.gravest(&[device]).filter(|fault| fault.withholds())?;
                let mut withholding = faults.iter().filter(|fault| fault.withholds());
                let is_paused = withholding.all(|fault| fault.reason == FaultReason::DriverBlocked);
                (is_paused == paused).then(|| (device.to_owned(), fault_text::meaning(fault)))
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::nvml::probe::{ProbeTarget, unanswered};
    use gpunode_gpu::{GpuProbe, HealthObservation, ProbeResult};
    use jiff::Timestamp;

    #[test]
    fn a_gpu_that_does_not_answer_is_left_alone_and_one_with_another_fault_is_not() {
        let (mut faults, rules) = (DeviceFaults::default(), Rules::default());
        for (gpu, result) in [("GPU-0", ProbeResult::Lost), ("GPU-3", ProbeResult::Hangs)] {
            let target = ProbeTarget {
                gpu: gpu.to_owned(),
                ticket: faults.ticket(),
                ..ProbeTarget::default()
            };
            let probe = GpuProbe {
                result,
                ..unanswered(&target)
            };
            faults.observe(HealthObservation::Probe(probe), &rules, Timestamp::UNIX_EPOCH);
        }
        let xid = HealthObservation::Xid("GPU-1".to_owned(), 48);
        faults.observe(xid, &rules, Timestamp::UNIX_EPOCH);
        let health = NodeHealth {
            faults: Some(faults),
            ..NodeHealth::default()
        };
        let gpus = ["GPU-0", "GPU-1", "GPU-2", "GPU-3"];
        assert_eq!(gpus.map(|gpu| health.answers(gpu)), [false, true, true, false]);
        assert!(NodeHealth::default().answers("GPU-0"));
    }
}
