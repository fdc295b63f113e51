//! Times at which GPUs reached their phase on the way to a MIG layout. Pure.

use gpunode_crds::{GpuNodeStatus, MigStatus};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// Sets the start of each GPU's phase: the one in `before` if the phase is the same, else `now`.
pub fn set_phase_times(status: &mut GpuNodeStatus, before: &GpuNodeStatus, now: Timestamp) {
    for gpu in &mut status.gpus {
        let Some(mig) = &mut gpu.mig else { continue };
        let known = before.gpus.iter().find(|known| known.uuid == gpu.uuid);
        let same = known
            .and_then(|known| known.mig.as_ref())
            .filter(|known: &&MigStatus| known.phase == mig.phase);
        mig.since = same.and_then(|same| same.since.clone()).or(Some(Time(now)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpunode_crds::{GpuDevice, MigPhase};

    #[test]
    fn phase_has_the_time_at_which_it_began() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let of = |phase| GpuNodeStatus {
            gpus: vec![GpuDevice {
                mig: Some(MigStatus {
                    phase,
                    ..MigStatus::default()
                }),
                ..GpuDevice::default()
            }],
            ..GpuNodeStatus::default()
        };
        let since = |status: &GpuNodeStatus| status.gpus[0].mig.as_ref().unwrap().since.clone().unwrap();
        let mut first = of(MigPhase::Waiting);
        set_phase_times(&mut first, &GpuNodeStatus::default(), at(1));
        let mut same = of(MigPhase::Waiting);
        set_phase_times(&mut same, &first, at(2));
        assert_eq!(since(&same), Time(at(1)));
        let mut next = of(MigPhase::Applying);
        set_phase_times(&mut next, &same, at(3));
        assert_eq!(since(&next), Time(at(3)));
    }
}
