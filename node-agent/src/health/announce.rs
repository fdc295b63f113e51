//! Reports changes of health: log lines, events, metrics, and the health that the device manager and status read.

use super::{HealthMonitor, devices::KnownDevices, fault_text, node_health::NodeHealth};
use crate::{api_server::events::EventReason, driver::hardware::DriverState};
use gpunode_config::HealthRules as Rules;
use gpunode_gpu::FaultTransition;
use std::sync::Arc;
use tokio::time::Instant;
use tracing::{info, warn};

impl HealthMonitor {
    /// Logs a fault that began or cleared, and sends an event of the Node.
    pub(super) fn say(&self, transition: &FaultTransition, rules: &Rules) {
        let FaultTransition { device, fault, began } = transition;
        let (reason, meaning) = (fault.reason.as_str(), fault_text::meaning(fault));
        let devices = self.devices();
        let name = devices.name(device);
        if *began {
            let (action, waits_for) = (fault.resolution().advice(), fault.waits_for(rules));
            let holders = Vec::from_iter(devices.pods(device, &self.sources.manager.holders())).join(", ");
            warn!(
                device,
                name,
                reason,
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
            self.sources.notices.tell(EventReason::GpuUnhealthy, &note);
        } else {
            let healthy = self.known.health.gravest(&[device]).is_none();
            info!(device, name, reason, xid = fault.xid, meaning, healthy, "fault cleared");
            if healthy {
                self.sources.notices.tell(
                    EventReason::GpuHealthy,
                    &format!("{name} ({device}) recovered (was: {meaning})"),
                );
            }
        }
    }

    pub(super) fn devices(&self) -> KnownDevices {
        KnownDevices(self.sources.hardware.borrow().clone())
    }

    /// Publishes the health of the node's devices.
    pub(super) fn tell(&self) {
        let hardware = self.sources.hardware.borrow().clone();
        let given_up = self.given_up.is_some_and(|at| at <= Instant::now());
        let all = hardware.and_then(|hardware| match &hardware.driver {
            DriverState::Released => Some("the GPUs of the node are released".to_owned()),
            driver => driver
                .problem()
                .filter(|_| given_up)
                .map(|problem| format!("the driver does not answer: {problem}")),
        });
        let devices = self.devices();
        let there = self.known.health.devices().filter(|(device, _)| devices.has(device));
        let faults = there.flat_map(|(_, faults)| faults);
        self.sources
            .metrics
            .set_faults(faults.map(|fault| fault.reason.as_str()));
        let rules = self.sources.rules.borrow().clone();
        self.sources.manager.set_health(NodeHealth {
            all,
            faults: Some(Arc::new(self.known.health.clone())),
            rules,
        });
    }
}
