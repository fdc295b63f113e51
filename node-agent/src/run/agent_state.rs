//! What a run of the agent has decided: which configuration is in force, what the desk is to offer, and what the kubelet and
//! the API server are told of it.

use crate::{
    cli::NodeArgs,
    configuration::{
        in_force::{DesiredConfig, InForce},
        saved::SavedConfig,
    },
    devices::{
        manager::DeviceManager,
        offer::AdvertisedList,
        state::{DeviceSnapshot, DeviceState, NOT_ASKED},
    },
    driver::hardware::{DriverState, Hardware},
    handover::Fitness,
    plugin::{registration::RegisteredResources, resources::ResourceServers},
    status::{
        report::{PluginStatus, StatusInputs, not_offered, status},
        writer::StatusReport,
    },
    store::{assignments::SavedAssignments, atomic_file::DISK_TIMEOUT},
};
use anyhow::{Context as _, Result, bail};
use gpunode_crds::Reason;
use gpunode_gpu::DesiredDevices;
use std::{io, sync::Arc};
use tokio::{task::spawn_blocking, time::timeout};
use tracing::{error, info, warn};

/// What the agent has decided so far.
pub struct AgentState<'a> {
    args: &'a NodeArgs,
    in_force: InForce,
    saved: Option<SavedConfig>,
    config_known: bool,
    hardware_known: bool,
    driver_answered: bool,
    /// The assignments on disk; none before this agent holds the lock of the node.
    assignments: Option<SavedAssignments>,
    /// What the desk was told to offer.
    given: Option<Arc<DesiredDevices>>,
    /// What the kubelet was told last.
    snapshot: DeviceSnapshot,
    /// Why the assignments could not be saved, said once.
    unsaved: Option<String>,
    /// What was last said about devices that are not offered.
    problem: Option<(Reason, String)>,
}

impl<'a> AgentState<'a> {
    /// Nothing is decided yet. `saved` is none where the configuration comes from a file.
    pub fn new(args: &'a NodeArgs, saved: Option<SavedConfig>) -> Self {
        Self {
            args,
            in_force: InForce::default(),
            saved,
            config_known: false,
            hardware_known: false,
            driver_answered: false,
            assignments: None,
            given: None,
            snapshot: DeviceSnapshot::default(),
            unsaved: None,
            problem: None,
        }
    }

    /// Whether it is known what the configuration is. Until then a restarted agent would take back what the one before it
    /// offered and reported.
    pub fn config_known(&self) -> bool {
        self.config_known
    }

    /// Which errors of the driver break a device.
    pub fn health_rules(&self) -> Arc<gpunode_config::HealthRules> {
        let config = self.in_force.accepted.as_ref().map(|accepted| &accepted.config);
        config
            .and_then(|config| config.health.clone())
            .unwrap_or_default()
            .into()
    }

    /// Whether the configuration in force or the assignments have yet to be saved.
    pub fn is_unsaved(&self) -> bool {
        self.unsaved.is_some() || self.saved.as_ref().is_some_and(SavedConfig::failed)
    }

    /// What the kubelet was told last.
    pub fn snapshot(&self) -> &DeviceSnapshot {
        &self.snapshot
    }

    /// What the device plugin does.
    pub fn plugin<'b>(&'b self, registered: &'b RegisteredResources) -> PluginStatus<'b> {
        PluginStatus {
            in_force: &self.in_force,
            registered,
        }
    }

    /// Puts in force what can be put in force, and says what changed.
    pub async fn evaluate(&mut self, instruction: &DesiredConfig, hardware: Option<&Hardware>) -> Result<()> {
        let inventory = hardware.and_then(Hardware::inventory);
        let before_start = self.saved.as_ref().and_then(SavedConfig::content);
        let next = self.in_force.next_or_saved(instruction, before_start, inventory);
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
                info!("no configuration: nothing is offered");
            }
        }
        // Two agents must not write the same file.
        if let Some(saved) = self.saved.as_mut().filter(|_| self.assignments.is_some()) {
            // Whether a configuration fits is known once the GPUs are.
            let is_sure = inventory.is_some() || *instruction == DesiredConfig::Nothing;
            saved.keep(instruction, is_sure && next.rejected.is_none()).await;
        }
        self.in_force = next;
        self.config_known = *instruction != DesiredConfig::Unknown || self.in_force.accepted.is_some();
        self.hardware_known = hardware.is_some_and(Hardware::is_known);
        self.check_driver(hardware)
    }

    /// `failOnInitError` is about the driver at the start: one that has answered once is only waited for, and a GPU that
    /// cannot be read does not keep the others back.
    fn check_driver(&mut self, hardware: Option<&Hardware>) -> Result<()> {
        let Some(hardware) = hardware else { return Ok(()) };
        match hardware.driver.problem() {
            None if hardware.driver == DriverState::Released => {}
            None => self.driver_answered = true,
            Some(problem) if !self.driver_answered && self.in_force.fail_on_init_error() => {
                bail!("{problem} (failOnInitError is on)")
            }
            Some(_) => {}
        }
        Ok(())
    }

    /// Takes over from the agent before this one, which held the lock until now.
    pub async fn open(&mut self, manager: &DeviceManager) -> Result<()> {
        let state_dir = self.args.host.state_dir.clone();
        let saved = timeout(DISK_TIMEOUT, spawn_blocking(move || SavedAssignments::load(&state_dir)));
        let saved = saved
            .await
            .context("read the assignments: the disk does not answer")?
            .context("read the assignments")?;
        manager.open(DeviceState::restore(saved.assignments())).await;
        self.assignments = Some(saved);
        Ok(())
    }

    /// Forgets what another agent takes over: it is on disk.
    pub fn close(&mut self, manager: &DeviceManager) {
        (self.assignments, self.given, self.snapshot) = (None, None, DeviceSnapshot::default());
        (self.unsaved, self.problem) = (None, None);
        manager.change(|state| *state = DeviceState::default());
    }

    /// Whether this agent could offer what there is; none before that is known.
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

    /// Tells the desk what is to be offered, where that is new.
    pub fn want(&mut self, manager: &DeviceManager) {
        if self.assignments.is_none() || !self.config_known || !self.hardware_known {
            return;
        }
        manager.pass_device_specs(self.in_force.pass_device_specs());
        let wanted = &self.in_force.wanted;
        if self.given.as_ref() != Some(wanted) {
            manager.change(|state| state.want(DesiredDevices::clone(wanted)));
            manager.observe_now();
            self.given = Some(wanted.clone());
        }
    }

    /// Brings what the books say to the disk, and then to the kubelet.
    pub async fn publish(&mut self, manager: &DeviceManager, plugins: &mut ResourceServers) {
        manager
            .metrics()
            .set_config(self.in_force.accepted.as_ref().map(|accepted| accepted.hash.as_str()));
        let Some(assignments) = &mut self.assignments else {
            return;
        };
        let (snapshot, changes) = manager.snapshot();
        if assignments.has(&snapshot.assignments) {
            // A device that breaks waits for no disk.
            plugins.put(snapshot.offers.clone());
        }
        let kept = timeout(DISK_TIMEOUT, assignments.keep(&snapshot.assignments)).await;
        match kept.unwrap_or_else(|slow| Err(io::Error::from(slow))) {
            Ok(()) => {
                plugins.put(snapshot.offers.clone());
                manager
                    .metrics()
                    .set_devices(snapshot.offers.iter().map(AdvertisedList::counts));
                manager.published(changes);
                self.snapshot = snapshot;
                if self.unsaved.take().is_some() {
                    info!("the assignments are saved again");
                }
            }
            Err(error) => {
                // The next observation brings the next try.
                let error = Some(error.to_string());
                if self.unsaved != error {
                    warn!(error, folder = %self.args.host.state_dir.display(), "save the assignments; the lists stay as they are");
                    self.unsaved = error;
                }
                self.snapshot = DeviceSnapshot {
                    offers: std::mem::take(&mut self.snapshot.offers),
                    ..snapshot
                };
            }
        }
    }

    /// Says which devices are not offered, and why, where that is new.
    pub fn log_problem(&mut self, registered: &RegisteredResources) {
        if self.assignments.is_none() || !self.config_known {
            return;
        }
        let problem = not_offered(&self.snapshot, self.plugin(registered)).filter(|(_, message)| message != NOT_ASKED);
        if problem != self.problem {
            if let Some((reason, message)) = &problem {
                warn!(reason = reason.as_str(), message, "devices are not offered");
            }
            self.problem = problem;
        }
    }

    /// What there is to report; none before this agent speaks for the node.
    pub fn report(&self, hardware: &Hardware, registered: &RegisteredResources) -> Option<StatusReport> {
        if !self.config_known || !self.snapshot.daemons_known {
            return None;
        }
        let facts = StatusInputs {
            hardware,
            snapshot: &self.snapshot,
            plugin: Some(self.plugin(registered)),
        };
        Some(StatusReport {
            status: status(&self.args.identity(), facts),
            create: hardware.has_gpus(),
        })
    }
}
