//! What is wrong with a device, in the words of the API and for people. Pure.

use gpunode_config::HealthRules as Rules;
use gpunode_crds::{DeviceHealth, HealthState};
use gpunode_gpu::{DeviceFaults, Fault, FaultReason, describe_xid};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// What is wrong, such as `XID 79: GPU has fallen off the bus`.
pub fn meaning(fault: &Fault) -> String {
    let text = match (fault.reason, fault.xid) {
        (FaultReason::Xid, Some(xid)) => {
            return match describe_xid(xid) {
                Some((meaning, _)) => format!("XID {xid}: {meaning}"),
                None => format!("XID {xid}, which NVIDIA's catalog does not have"),
            };
        }
        (FaultReason::Xid, None) => "an XID",
        (FaultReason::Lost, _) => "the GPU has fallen off the bus",
        (FaultReason::NotAnswering, _) => "a call of the driver about the device fails",
        (FaultReason::RecoveryPending, _) => "the driver asks for a reset of the GPU",
        (FaultReason::RebootPending, _) => "the driver asks for a restart of the machine",
        (FaultReason::UncorrectedEcc, _) => "uncorrected memory errors",
        (FaultReason::RowRemapPending, _) => "memory rows wait for the reset that replaces them",
        (FaultReason::RowRemapFailed, _) => "memory rows could not be replaced",
        (FaultReason::PageRetirementPending, _) => "memory pages wait for the reset that retires them",
        (FaultReason::NvLinkDown, _) => "an NVLink is down",
        (FaultReason::MpsDaemonDied, _) => "the MPS control daemon has died",
    };
    text.to_owned()
}

/// Health of a device that is made of those with these UUIDs: the gravest of its faults, and since when it has any.
pub fn health(faults: &DeviceFaults, uuids: &[&str], rules: &Rules) -> DeviceHealth {
    let Some(fault) = faults.gravest(uuids) else {
        return DeviceHealth::default();
    };
    DeviceHealth {
        state: HealthState::Unhealthy,
        reason: Some(fault.reason.published()),
        xid: fault.xid,
        message: Some(meaning(fault)),
        action: Some(fault.resolution().advice().to_owned()),
        waits_for: Some(fault.waits_for(rules).to_owned()),
        since: faults.unhealthy_since(uuids).map(Time),
    }
}
