//! Text of faults, for people and for the API. Pure.

use gpunode_config::HealthRules as Rules;
use gpunode_config::{Resolution, describe_xid};
use gpunode_crds::{DeviceHealth, HealthState};
use gpunode_gpu::{DeviceFaults, Fault, FaultGrade, FaultReason, recovery_request};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// Describes a fault, such as `XID 79: GPU has fallen off the bus`.
pub fn meaning(fault: &Fault) -> String {
    let text = match (fault.reason, fault.xid) {
        (FaultReason::Xid, Some(xid)) => return xid_meaning(xid),
        (FaultReason::Xid, None) => "an XID",
        (FaultReason::Lost, _) => "the GPU has fallen off the bus",
        (FaultReason::NotAnswering, _) => "calls to the driver about the device fail",
        (FaultReason::DriverBlocked, _) => "calls to the driver wait behind a call about another GPU, which hangs",
        (FaultReason::RecoveryPending, _) => match fault.recovery_action {
            Some(action) => return recovery_request(action),
            None => "the driver asks for a reset of the GPU",
        },
        (FaultReason::UncorrectedEcc, _) => "uncorrected memory errors",
        (FaultReason::RowRemapPending, _) => "memory rows are to be remapped by a GPU reset",
        (FaultReason::RowRemapFailed, _) => "memory rows could not be remapped",
        (FaultReason::PageRetirementPending, _) => "memory pages are to be retired by a GPU reset",
        (FaultReason::NvLinkDown, _) => "an NVLink is down",
        (FaultReason::MpsDaemonDied, _) => "the MPS control daemon died",
        (FaultReason::FabricNotReady, _) => {
            "the GPU has not joined its NVLink fabric; CUDA fails with error 802 until then"
        }
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

/// Returns the health of the device that these UUIDs make up: its gravest fault, and the times of its grades.
pub fn health(faults: &DeviceFaults, uuids: &[&str], rules: &Rules) -> DeviceHealth {
    let Some(fault) = faults.gravest(uuids) else {
        return DeviceHealth::default();
    };
    let grade = fault.grade();
    let state = if fault.withholds() {
        HealthState::Unhealthy
    } else {
        HealthState::Healthy
    };
    DeviceHealth {
        state,
        grade: Some(grade),
        reason: Some(fault.reason),
        xid: fault.xid,
        message: Some(meaning(fault)),
        action: Some(fault.advice().to_owned()),
        waits_for: Some(fault.waits_for(rules).to_owned()),
        since: faults.since(uuids, grade.min(FaultGrade::NoNewWork)).map(Time),
        broken_since: faults.since(uuids, FaultGrade::Broken).map(Time),
    }
}
