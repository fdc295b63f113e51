//! Text of faults, for people and for the API. Pure.

use gpunode_config::HealthRules as Rules;
use gpunode_crds::{DeviceHealth, HealthState};
use gpunode_gpu::{DeviceFaults, Fault, FaultReason, Resolution, describe_xid};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// Describes a fault, such as `XID 79: GPU has fallen off the bus`.
pub fn meaning(fault: &Fault) -> String {
    let text = match (fault.reason, fault.xid) {
        (FaultReason::Xid, Some(xid)) => return xid_meaning(xid),
        (FaultReason::Xid, None) => "an XID",
        (FaultReason::Lost, _) => "the GPU has fallen off the bus",
        (FaultReason::NotAnswering, _) => "calls to the driver about the device fail",
        (FaultReason::RecoveryPending, _) => "the driver asks for a reset of the GPU",
        (FaultReason::RebootPending, _) => "the driver asks for a reboot of the node",
        (FaultReason::UncorrectedEcc, _) => "uncorrected memory errors",
        (FaultReason::RowRemapPending, _) => "memory rows are to be remapped by a GPU reset",
        (FaultReason::RowRemapFailed, _) => "memory rows could not be remapped",
        (FaultReason::PageRetirementPending, _) => "memory pages are to be retired by a GPU reset",
        (FaultReason::NvLinkDown, _) => "an NVLink is down",
        (FaultReason::MpsDaemonDied, _) => "the MPS control daemon died",
    };
    text.to_owned()
}

/// Describes an XID, such as `XID 79: GPU has fallen off the bus`.
pub fn xid_meaning(xid: i32) -> String {
    match describe_xid(xid) {
        Some((meaning, _)) => format!("XID {xid}: {meaning}"),
        None => format!("XID {xid} (not in NVIDIA's catalog)"),
    }
}

/// Returns what to do about an XID that does not count.
pub fn xid_advice(xid: i32) -> &'static str {
    match describe_xid(xid) {
        Some((_, Resolution::Ignore)) => Resolution::Ignore.advice(),
        Some((_, Resolution::RestartApp)) => "check the application that was hit",
        _ => "the policy ignores this XID",
    }
}

/// Returns the health of the device that these UUIDs make up: its gravest fault, and the time of its first one.
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
