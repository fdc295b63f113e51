//! What is wrong with a device, in the words of the API and for people. Pure.

use gpunode_config::Health as Rules;
use gpunode_crds::{DeviceHealth, FaultReason, HealthState};
use gpunode_gpu::{Fault, Health, Trouble, describe_xid};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// What is wrong, such as `XID 79: GPU has fallen off the bus`.
pub fn meaning(fault: &Fault) -> String {
    let text = match (fault.trouble, fault.xid) {
        (Trouble::Xid, Some(xid)) => {
            return match describe_xid(xid) {
                Some((meaning, _)) => format!("XID {xid}: {meaning}"),
                None => format!("XID {xid}, which NVIDIA's catalog does not have"),
            };
        }
        (Trouble::Xid, None) => "an XID",
        (Trouble::Lost, _) => "the GPU has fallen off the bus",
        (Trouble::NotAnswering, _) => "a call of the driver about the device fails",
        (Trouble::RecoveryPending, _) => "the driver asks for a reset of the GPU",
        (Trouble::RebootPending, _) => "the driver asks for a restart of the machine",
        (Trouble::UncorrectedEcc, _) => "uncorrected memory errors",
        (Trouble::RowRemapPending, _) => "memory rows wait for the reset that replaces them",
        (Trouble::RowRemapFailed, _) => "memory rows could not be replaced",
        (Trouble::PageRetirementPending, _) => "memory pages wait for the reset that retires them",
        (Trouble::NvLinkDown, _) => "an NVLink is down",
        (Trouble::MpsDaemonDied, _) => "the MPS control daemon has died",
    };
    text.to_owned()
}

/// In one word.
pub fn reason(trouble: Trouble) -> FaultReason {
    match trouble {
        Trouble::Xid => FaultReason::Xid,
        Trouble::Lost => FaultReason::Lost,
        Trouble::NotAnswering => FaultReason::NotAnswering,
        Trouble::RecoveryPending | Trouble::RebootPending => FaultReason::RecoveryPending,
        Trouble::UncorrectedEcc => FaultReason::UncorrectedEcc,
        Trouble::RowRemapPending => FaultReason::RowRemapPending,
        Trouble::RowRemapFailed => FaultReason::RowRemapFailed,
        Trouble::PageRetirementPending => FaultReason::PageRetirementPending,
        Trouble::NvLinkDown => FaultReason::NvLinkDown,
        Trouble::MpsDaemonDied => FaultReason::MpsDaemonDied,
    }
}

/// Health of a device that is made of those with these UUIDs: the gravest of its faults, and since when it has any.
pub fn health(faults: &Health, uuids: &[&str], rules: &Rules) -> DeviceHealth {
    let Some(fault) = faults.gravest(uuids) else {
        return DeviceHealth::default();
    };
    DeviceHealth {
        state: HealthState::Unhealthy,
        reason: Some(reason(fault.trouble)),
        xid: fault.xid,
        message: Some(meaning(fault)),
        action: Some(fault.action().advice().to_owned()),
        waits_for: Some(fault.waits_for(rules).to_owned()),
        since: faults.broken_since(uuids).map(Time),
    }
}
