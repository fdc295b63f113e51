//! Times at which devices became healthy. Pure.

use gpunode_crds::{DeviceHealth, GpuDevice, GpuNodeStatus, HealthState};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use std::collections::BTreeMap;

/// Sets the time at which each healthy device became healthy: the one in `before` if it was healthy there, `now` if it was
/// not, none if it always was.
pub fn set_health_times(status: &mut GpuNodeStatus, before: &GpuNodeStatus, now: Timestamp) {
    let before: BTreeMap<String, DeviceHealth> = before
        .gpus
        .clone()
        .iter_mut()
        .flat_map(devices)
        .filter_map(|(uuid, health)| Some((uuid.to_owned(), health.take()?)))
        .collect();
    for (uuid, health) in status.gpus.iter_mut().flat_map(devices) {
        let Some(health) = health.as_mut().filter(|health| has_no_fault(health)) else {
            continue;
        };
        health.since = match before.get(uuid) {
            Some(before) if has_no_fault(before) => before.since.clone(),
            Some(_) => Some(Time(now)),
            None => None,
        };
    }
}

/// Returns true for a healthy device that is not degraded, whose fault has the time.
fn has_no_fault(health: &DeviceHealth) -> bool {
    health.state == HealthState::Healthy && health.grade.is_none()
}

/// Returns the health of a GPU and of its MIG devices.
fn devices(gpu: &mut GpuDevice) -> impl Iterator<Item = (&str, &mut Option<DeviceHealth>)> {
    let parts = gpu
        .mig_devices
        .iter_mut()
        .map(|mig| (mig.uuid.as_str(), &mut mig.health));
    std::iter::once((gpu.uuid.as_str(), &mut gpu.health)).chain(parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpunode_crds::FaultGrade;

    fn of(state: HealthState) -> GpuNodeStatus {
        let health = Some(DeviceHealth {
            state,
            ..DeviceHealth::default()
        });
        GpuNodeStatus {
            gpus: vec![GpuDevice {
                health,
                ..GpuDevice::default()
            }],
            ..GpuNodeStatus::default()
        }
    }

    #[test]
    fn a_device_is_healthy_since_it_ceased_to_be_broken() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let since = |status: &GpuNodeStatus| status.gpus[0].health.as_ref().and_then(|health| health.since.clone());
        let mut first = of(HealthState::Healthy);
        set_health_times(&mut first, &GpuNodeStatus::default(), at(1));
        assert_eq!(since(&first), None, "it always was");
        let mut again = of(HealthState::Healthy);
        set_health_times(&mut again, &of(HealthState::Unhealthy), at(2));
        assert_eq!(since(&again), Some(Time(at(2))));
        let mut later = of(HealthState::Healthy);
        set_health_times(&mut later, &again, at(3));
        assert_eq!(since(&later), Some(Time(at(2))));
        let mut degraded = of(HealthState::Healthy);
        let health = degraded.gpus[0].health.as_mut().unwrap();
        (health.grade, health.since) = (Some(FaultGrade::Degraded), Some(Time(at(4))));
        set_health_times(&mut degraded, &later, at(5));
        assert_eq!(since(&degraded), Some(Time(at(4))));
        let mut whole = of(HealthState::Healthy);
        set_health_times(&mut whole, &degraded, at(6));
        assert_eq!(since(&whole), Some(Time(at(6))));
    }
}
