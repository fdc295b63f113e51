//! Decides on the configuration in force and the desired devices, and publishes them to the disk, the kubelet and the API
//! server.

use crate::{
    cli::NodeArgs,
    configuration::{
        in_force::{DesiredConfig, InForce},
        saved::SavedConfig,
    },
    devices::{
        advertised::AdvertisedList,
        manager::DeviceManager,
        state::{DeviceSnapshot, DeviceState, NO_ANSWER_YET},
    },
    driver::hardware::{DriverState, Hardware},
    handover::Fitness,
    health::node_health::NodeHealth,
    plugin::{registration::RegisteredResources, resources::ResourceServers},
    status::{
        conditions::not_advertised,
        inputs::{PluginStatus, StatusInputs},
        report::status,
        writer::StatusReport,
    },
    store::{assignments::SavedAssignments, atomic_file::DISK_TIMEOUT},
};
use anyhow::{Context as _, Result, bail};
use gpunode_crds::Reason;
use gpunode_gpu::DesiredDevices;
use std::{io, sync::Arc};
use tokio::{sync::watch, task::spawn_blocking, time::timeout};
use tracing::{error, info, warn};

/// Decisions of the agent so far.
pub struct AgentState<'a> {
    args: &'a NodeArgs,
    /// Health of the node's devices, for the report.
    node_health: watch::Receiver<Arc<NodeHealth>>,
    in_force: InForce,
    /// The configuration on disk; `None` if the configuration comes from a file.
    saved_config: Option<SavedConfig>,
    config_known: bool,
    hardware_known: bool,
    driver_answered: bool,
    /// The assignments on disk; `None` before this agent holds the lock of the node.
    assignments: Option<SavedAssignments>,
    /// Devices last passed to the device manager.
    passed_devices: Option<Arc<DesiredDevices>>,
    /// Snapshot last published to the kubelet.
    snapshot: DeviceSnapshot,
    /// Last logged error from saving the assignments.
    save_error: Option<String>,
    /// Last logged reason for devices that are not advertised.
    problem: Option<(Reason, String)>,
}

impl<'a> AgentState<'a> {
    /// Starts without decisions. `saved_config` is `None` if the configuration comes from a file.
    pub fn new(
        args: &'a NodeArgs,
        saved_config: Option<SavedConfig>,
        node_health: watch::Receiver<Arc<NodeHealth>>,
    ) -> Self {
        Self {
            args,
            node_health,
            in_force: InForce::default(),
            saved_config,
            config_known: false,
            hardware_known: false,
            driver_answered: false,
            assignments: None,
            passed_devices: None,
            snapshot: DeviceSnapshot::default(),
            save_error: None,
            problem: None,
        }
    }

    /// Returns whether the configuration is known. Acting earlier would withdraw the devices and the report of the previous
    /// agent.
    pub fn config_known(&self) -> bool {
        self.config_known
    }

    /// Returns the rules that decide which driver errors are faults.
    pub fn health_rules(&self) -> Arc<gpunode_config::HealthRules> {
        let config = self.in_force.accepted.as_ref().map(|accepted| &accepted.config);
        config
            .and_then(|config| config.health.clone())
            .unwrap_or_default()
            .into()
    }

    /// Returns whether the configuration in force or the assignments still have to be saved.
    pub fn is_unsaved(&self) -> bool {
        self.save_error.is_some() || self.saved_config.as_ref().is_some_and(SavedConfig::failed)
    }

    /// Returns the snapshot last published to the kubelet.
    pub fn snapshot(&self) -> &DeviceSnapshot {
        &self.snapshot
    }

    /// Returns the state of the device plugin, for the report.
    pub fn plugin<'b>(&'b self, registered: &'b RegisteredResources) -> PluginStatus<'b> {
        PluginStatus {
            in_force: &self.in_force,
            registered,
        }
    }

    /// Puts the desired configuration in force if possible, and logs changes.
    pub async fn evaluate(&mut self, requested: &DesiredConfig, hardware: Option<&Hardware>) -> Result<()> {
        let inventory = hardware.and_then(Hardware::inventory);
        let saved = self.saved_config.as_ref().and_then(SavedConfig::content);
        let next = self.in_force.next_or_saved(requested, saved, inventory);
        if next.rejected != self.in_force.rejected
            && let Some(rejected) = &next.rejected
        {
            let kept = next.accepted.as_ref().map(|accepted| accepted.hash.as_str());
            error!(
                hash = rejected.hash,
                reason = rejected.message,
                kept,
                "configuration rejected"
            );
        }
        if next.accepted != self.in_force.accepted {
            if let Some(accepted) = &next.accepted {
                info!(hash = accepted.hash, "configuration in force");
            } else {
                info!("no configuration: advertising no devices");
            }
        }
        // Only the agent with the lock writes the file.
        if let Some(saved) = self.saved_config.as_mut().filter(|_| self.assignments.is_some()) {
            // Only known GPUs show whether a configuration fits.
            let is_sure = inventory.is_some() || *requested == DesiredConfig::Nothing;
            saved.keep(requested, is_sure && next.rejected.is_none()).await;
        }
        self.in_force = next;
        self.config_known = *requested != DesiredConfig::Unknown || self.in_force.accepted.is_some();
        self.hardware_known = hardware.is_some_and(Hardware::is_known);
        self.check_driver(hardware)
    }

    /// Fails if the driver does not load and `failOnInitError` is on. The option covers the start only: a driver that has
    /// answered once is waited for, and an unreadable GPU does not block the others. A driver that is slow has not failed.
    fn check_driver(&mut self, hardware: Option<&Hardware>) -> Result<()> {
        let Some(hardware) = hardware else { return Ok(()) };
        match &hardware.driver {
            DriverState::Released | DriverState::Waiting(_) => {}
            DriverState::NotNeeded | DriverState::Answers => self.driver_answered = true,
            DriverState::Missing(problem) | DriverState::Failed(problem) => {
                if !self.driver_answered && self.in_force.fail_on_init_error() {
                    bail!("{problem} (failOnInitError is on)")
                }
            }
        }
        Ok(())
    }

    /// Restores the device state that the previous holder of the lock saved.
    pub async fn restore_devices(&mut self, manager: &DeviceManager) -> Result<()> {
        let state_dir = self.args.host.state_dir.clone();
        let saved = timeout(DISK_TIMEOUT, spawn_blocking(move || SavedAssignments::load(&state_dir)));
        let saved = saved
            .await
            .context("read the assignments: no answer from the disk")?
            .context("read the assignments")?;
        manager.open(DeviceState::restore(saved.assignments())).await;
        self.assignments = Some(saved);
        Ok(())
    }

    /// Clears the device state, which the next agent reads from the disk.
    pub fn clear_devices(&mut self, manager: &DeviceManager) {
        (self.assignments, self.passed_devices, self.snapshot) = (None, None, DeviceSnapshot::default());
        (self.save_error, self.problem) = (None, None);
        manager.change(|state| *state = DeviceState::default());
    }

    /// Returns whether this agent could serve the node; `None` before hardware and configuration are known.
    pub fn fitness(&self, hardware: Option<&Hardware>) -> Option<Fitness> {
        let hardware = hardware.filter(|_| self.config_known)?;
        let rejected = self
            .in_force
            .rejected
            .as_ref()
            .filter(|_| self.in_force.accepted.is_none());
        let problem = hardware
            .driver
            .problem()
            .or(rejected.map(|rejected| rejected.message.as_str()));
        Some(Fitness {
            problem: problem.map(str::to_owned),
        })
    }

    /// Passes new desired devices to the device manager.
    pub fn pass_desired_devices(&mut self, manager: &DeviceManager) {
        if self.assignments.is_none() || !self.config_known || !self.hardware_known {
            return;
        }
        manager.set_pass_device_specs(self.in_force.pass_device_specs());
        let desired = &self.in_force.desired;
        if self.passed_devices.as_ref() != Some(desired) {
            manager.change(|state| state.set_desired(DesiredDevices::clone(desired)));
            manager.observe_now();
            self.passed_devices = Some(desired.clone());
        }
    }

    /// Saves the device state to the disk, then advertises it to the kubelet.
    pub async fn publish(&mut self, manager: &DeviceManager, plugins: &mut ResourceServers) {
        manager
            .metrics()
            .set_config(self.in_force.accepted.as_ref().map(|accepted| accepted.hash.as_str()));
        let Some(assignments) = &mut self.assignments else {
            return;
        };
        let (snapshot, changes) = manager.snapshot();
        if assignments.has(&snapshot.assignments) {
            // A device that turns unhealthy reaches the kubelet without waiting for the disk.
            plugins.put(snapshot.advertised.clone());
        }
        let kept = timeout(DISK_TIMEOUT, assignments.save(&snapshot.assignments)).await;
        match kept.unwrap_or_else(|slow| Err(io::Error::from(slow))) {
            Ok(()) => {
                plugins.put(snapshot.advertised.clone());
                manager
                    .metrics()
                    .set_devices(snapshot.advertised.iter().map(AdvertisedList::counts));
                manager.metrics().set_held_shares(held_shares(&snapshot));
                manager.published(changes);
                self.snapshot = snapshot;
                if self.save_error.take().is_some() {
                    info!("saved the assignments again");
                }
            }
            Err(error) => {
                // The next observation triggers the next attempt.
                let error = Some(error.to_string());
                if self.save_error != error {
                    warn!(error, folder = %self.args.host.state_dir.display(), "cannot save the assignments; the advertised devices stay unchanged");
                    self.save_error = error;
                }
                self.snapshot = DeviceSnapshot {
                    advertised: std::mem::take(&mut self.snapshot.advertised),
                    ..snapshot
                };
            }
        }
    }

    /// Logs a new reason for devices that are not advertised.
    pub fn log_problem(&mut self, registered: &RegisteredResources) {
        if self.assignments.is_none() || !self.config_known {
            return;
        }
        let problem = not_advertised(&self.snapshot, &self.node_health.borrow(), self.plugin(registered))
            .filter(|(_, message)| message != NO_ANSWER_YET);
        if problem != self.problem {
            if let Some((reason, message)) = &problem {
                warn!(reason = reason.as_str(), message, "some devices are not advertised");
            }
            self.problem = problem;
        }
    }

    /// Returns the status to report; `None` before this agent reports for the node.
    pub fn report(&self, hardware: &Hardware, registered: &RegisteredResources) -> Option<StatusReport> {
        if !self.config_known || !self.snapshot.daemons_known {
            return None;
        }
        let inputs = StatusInputs {
            hardware,
            snapshot: &self.snapshot,
            health: &self.node_health.borrow(),
            plugin: Some(self.plugin(registered)),
        };
        Some(StatusReport {
            status: status(&self.args.identity(), inputs),
            create: hardware.has_gpus(),
        })
    }
}

/// Returns the number of held shares of each advertised resource, also 0, and of those that are no longer advertised.
fn held_shares(snapshot: &DeviceSnapshot) -> impl Iterator<Item = (&str, u32)> {
    let advertised = snapshot.advertised.iter().map(|list| (list.resource.name.as_str(), 0));
    let held = snapshot
        .holders
        .iter()
        .map(|holder| (holder.resource.as_str(), holder.count));
    advertised.chain(held)
}
