//! Announces a change of a fault: a log line and an event of the Node.

use super::{devices::KnownDevices, fault_text};
use crate::api_server::events::{EventReason, NodeEventSender};
use gpunode_config::HealthRules as Rules;
use gpunode_gpu::{DeviceHolder, Fault};
use tracing::{info, warn};

/// Logs a fault that began, and sends an event of the Node.
pub fn fault_began(
    device: &str,
    fault: &Fault,
    rules: &Rules,
    devices: &KnownDevices,
    holders: &[DeviceHolder],
    events: &NodeEventSender,
) {
    let (reason, meaning) = (fault.reason.as_str(), fault_text::meaning(fault));
    let name = devices.name(device);
    let (action, waits_for) = (fault.advice(), fault.waits_for(rules));
    let holders = Vec::from_iter(devices.pods(device, holders)).join(", ");
    warn!(
        device,
        name,
        reason,
        grade = fault.grade().as_str(),
        xid = fault.xid,
        meaning,
        action,
        waits_for,
        holders,
        "device is faulty"
    );
    let held = if holders.is_empty() {
        String::new()
    } else {
        format!("; held by {holders}")
    };
    let note = format!("{name} ({device}): {meaning}; {action}; clears after: {waits_for}{held}");
    let event = if fault.withholds() {
        EventReason::GpuUnhealthy
    } else {
        EventReason::GpuDegraded
    };
    events.send(event, series(device, fault), note);
}

/// Logs an XID that makes no device unhealthy, and sends an event of the Node: the application that was hit may fail all the
/// same.
pub fn xid_does_not_count(
    device: &str,
    xid: i32,
    devices: &KnownDevices,
    holders: &[DeviceHolder],
    events: &NodeEventSender,
) {
    let (meaning, advice) = (fault_text::xid_meaning(xid), fault_text::xid_advice(xid));
    let name = devices.name(device);
    let holders = Vec::from_iter(devices.pods(device, holders)).join(", ");
    info!(
        device,
        name, xid, meaning, holders, "XID does not make the device unhealthy"
    );
    let held = if holders.is_empty() {
        String::new()
    } else {
        format!("; held by {holders}")
    };
    events.send(
        EventReason::GpuXid,
        format!("{device} {xid}"),
        format!("{name} ({device}): {meaning}; the device stays healthy; {advice}{held}"),
    );
}

/// Logs a fault that cleared, and sends an event of the Node if no other withholds the device.
pub fn fault_cleared(device: &str, fault: &Fault, healthy: bool, devices: &KnownDevices, events: &NodeEventSender) {
    let (reason, meaning) = (fault.reason.as_str(), fault_text::meaning(fault));
    let name = devices.name(device);
    info!(device, name, reason, xid = fault.xid, meaning, healthy, "fault cleared");
    if healthy {
        events.send(
            EventReason::GpuHealthy,
            series(device, fault),
            format!("{name} ({device}) recovered (was: {meaning})"),
        );
    }
}

/// Returns the series of events about a fault of a device. Pods that hold it change; the fault is the same.
fn series(device: &str, fault: &Fault) -> String {
    let xid = fault.xid.unwrap_or_default();
    format!("{device} {} {xid}", fault.reason.as_str())
}
