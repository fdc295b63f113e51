//! Decides on the configuration in force and the desired devices, and publishes them to the disk, the kubelet and the API
//! server.

use crate::{
    admin::metrics::AgentMetrics,
    api_server::events::{EventReason, NodeEventSender},
    cdi::{
        demand::{CdiDemand, CdiOptions},
        state::CdiState,
    },
    cli::NodeArgs,
    companions::scan::FoundFiles,
    configuration::{
        in_force::{DesiredConfig, InForce, LayoutProgress},
        operator::ChangeRequest,
        saved::SavedConfig,
    },
    container_runtime::node_runtime::with_cdi_file,
    devices::{
        advertised::AdvertisedList,
        injection::InjectionRules,
        manager::DeviceManager,
        state::{DeviceSnapshot, DeviceState, NO_ANSWER_YET},
    },
    driver::hardware::{DriverState, Hardware},
    handover::Fitness,
    health::node_health::NodeHealth,
    mig::{executor::MigAttempts, record_file::MigRecords},
    plugin::{registration::RegisteredResources, resources::ResourceServers},
    run::{
        node_companions::NodeCompanions,
        node_layouts::{LayoutInputs, NodeLayouts, PhaseChange},
    },
    runtime::channel::send_if_new,
    status::{
        conditions::{not_advertised, remarks},
        inputs::{PluginStatus, StatusInputs},
        report::status,
        writer::StatusReport,
    },
    store::{assignments::SavedAssignments, atomic_file::DISK_TIMEOUT},
};
use anyhow::{Context as _, Result, bail};
use gpunode_config::{AgentConfig, UsageConfig};
use gpunode_crds::{MigPhase, MigStatus, Reason, RuntimeStatus};
use gpunode_gpu::{
    AttemptResult, DesiredDevices, InjectionWays, Inventory, MigWork, MigWorkKind, is_companion, unread_cdi_file,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use std::{
    collections::{BTreeMap, HashSet},
    io,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{sync::watch, task::spawn_blocking, time::timeout};
use tracing::{error, info, warn};

/// Decisions of the agent so far.
pub struct AgentState<'a> {
    args: &'a NodeArgs,
    /// Health of the node's devices, for the report.
    node_health: watch::Receiver<Arc<NodeHealth>>,
    /// Use of the CDI file; none before this agent holds the lock of the node.
    cdi_demand: watch::Sender<Option<CdiDemand>>,
    /// State of the CDI file.
    cdi_state: watch::Receiver<CdiState>,
    in_force: InForce,
    /// The configuration on disk; `None` if the configuration comes from a file.
    saved_config: Option<SavedConfig>,
    config_known: bool,
    hardware_known: bool,
    driver_answered: bool,
    /// The assignments on disk; `None` before this agent holds the lock of the node.
    assignments: Option<SavedAssignments>,
    /// MIG layouts of the GPUs.
    layouts: NodeLayouts,
    /// Companions of the node.
    companions: NodeCompanions,
    /// Start of each GPU's change of MIG.
    changing_since: BTreeMap<String, Instant>,
    /// `since` of the last change of the node that this agent finished.
    finished_change: Option<Time>,
    /// Devices last passed to the device manager.
    passed_devices: Option<Arc<DesiredDevices>>,
    /// Snapshot last published to the kubelet.
    snapshot: DeviceSnapshot,
    /// Last logged error from saving the assignments.
    save_error: Option<String>,
    /// Last logged reason for devices that are not advertised.
    problem: Option<(Reason, String)>,
    /// Last logged remark about companions.
    remark: Option<(Reason, String)>,
}

impl<'a> AgentState<'a> {
    /// Starts without decisions. `saved_config` is `None` if the configuration comes from a file.
    pub fn new(
        args: &'a NodeArgs,
        saved_config: Option<SavedConfig>,
        node_health: watch::Receiver<Arc<NodeHealth>>,
        cdi_demand: watch::Sender<Option<CdiDemand>>,
        cdi_state: watch::Receiver<CdiState>,
        companions: NodeCompanions,
    ) -> Self {
        Self {
            args,
            node_health,
            cdi_demand,
            cdi_state,
            in_force: InForce::default(),
            saved_config,
            config_known: false,
            hardware_known: false,
            driver_answered: false,
            assignments: None,
            layouts: NodeLayouts::default(),
            companions,
            changing_since: BTreeMap::new(),
            finished_change: None,
            passed_devices: None,
            snapshot: DeviceSnapshot::default(),
            save_error: None,
            problem: None,
            remark: None,
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

    /// Returns the times of the figures of what containers use.
    pub fn usage(&self) -> UsageConfig {
        let accepted = self.in_force.accepted.as_ref();
        accepted.map(|accepted| accepted.config.usage()).unwrap_or_default()
    }

    /// Returns the ways in which containers get their devices.
    fn injection(&self, runtime: Option<&RuntimeStatus>) -> InjectionRules {
        let accepted = self.in_force.accepted.as_ref();
        accepted
            .map(|accepted| InjectionRules::of(&accepted.config, runtime))
            .unwrap_or_default()
    }

    /// Returns the optional parts of the CDI file; none if no strategy uses it.
    fn cdi_options(&self) -> Option<CdiOptions> {
        CdiOptions::of(&self.in_force.accepted.as_ref()?.config)
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
        let config = self.in_force.accepted.as_ref().map(|accepted| &accepted.config);
        let is_sure = self.config_known && self.in_force.rejected.is_none();
        self.layouts.set_targets(config, inventory, is_sure);
        self.check_driver(hardware)
    }

    /// Decides about the companions of the configuration in force, for the files that were found last.
    pub fn find_companions(&mut self, found: Option<&Arc<FoundFiles>>) {
        if self.config_known {
            let none = AgentConfig::default();
            let accepted = self.in_force.accepted.as_ref();
            let config = accepted.map_or(&none, |accepted| &accepted.config);
            self.companions.decide(config, found, &self.snapshot);
        }
        self.in_force.companions = self.companions.desired();
        self.in_force.are_files_awaited = self.companions.are_awaited();
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

    /// Withdraws the devices that change with the configuration in force while their pods are evicted.
    pub fn prepare(&self, change: &ChangeRequest, manager: &DeviceManager) {
        let hash = self.in_force.accepted.as_ref().map(|accepted| accepted.hash.as_str());
        manager.withdraw_switching(hash.is_some_and(|hash| change.prepares(hash)));
    }

    /// Decides about the MIG layouts of all GPUs, and publishes the work. Does nothing where no configuration has layouts, and no
    /// GPU has a record.
    pub fn lay_out(
        &mut self,
        hardware: Option<&Hardware>,
        news: &LayoutNews,
        manager: &DeviceManager,
        events: &NodeEventSender,
        outputs: &LayoutOutputs,
    ) {
        let records = news.records.as_deref();
        let are_wanted = self.layouts.are_wanted(records);
        if self.config_known {
            send_if_new(&outputs.are_wanted, are_wanted);
        }
        let are_awaited = self.assignments.is_some() && self.layouts.are_awaited(hardware, records);
        self.in_force.layouts.are_awaited = are_awaited;
        let is_idle = !are_wanted && self.layouts.is_empty() && records.is_some_and(MigRecords::is_empty);
        let Some(hardware) = hardware.filter(|_| !is_idle) else {
            return;
        };
        let now = Timestamp::now();
        if let Some(attempts) = &news.attempts {
            for (kind, result) in self.layouts.observe(attempts, now) {
                count_attempt(kind, &result, manager.metrics());
            }
        }
        let hash = self.in_force.accepted.as_ref().map_or("", |accepted| &accepted.hash);
        let approval = news.change.approved(hash, self.finished_change.as_ref()).cloned();
        let failed_drain = news.change.failed_drain(hash);
        // Nothing is decided, and nothing finished, without the assignments.
        let records = records.filter(|_| self.assignments.is_some());
        let (snapshot, _) = manager.snapshot();
        let before = self.layouts.holds();
        let changes = self.layouts.decide(&LayoutInputs {
            hardware,
            snapshot: &snapshot,
            health: &self.node_health.borrow(),
            hash,
            // Without an operator, a change is its own approval.
            approved: approval.is_some() || self.saved_config.is_none(),
            is_drained: news.change.prepares(hash),
            failed_drain: failed_drain.as_ref(),
            records,
            now,
        });
        for change in &changes {
            self.announce(change, manager.metrics(), events);
        }
        let progress = LayoutProgress {
            gpus: self.layouts.progress(),
            are_awaited,
        };
        let holds = self.layouts.holds();
        if news.evaluates || holds != before {
            let none = Inventory::default();
            let inventory = hardware.inventory().unwrap_or(&none);
            self.in_force.lay_out(inventory, &holds, progress);
        } else {
            self.in_force.layouts = progress;
        }
        if let Some(since) = approval
            && !are_awaited
            && self.layouts.are_finished(records)
        {
            self.finished_change = Some(since);
        }
        self.set_mig_metrics(hardware, manager.metrics());
        send_if_new(&outputs.work, self.layouts.work());
    }

    /// Tells people of a GPU that has its layout now, or does not get on.
    fn announce(&mut self, change: &PhaseChange, metrics: &AgentMetrics, events: &NodeEventSender) {
        let PhaseChange {
            gpu, uuid, progress, ..
        } = change;
        let MigStatus { wanted, phase, .. } = progress;
        let message = progress.message.as_deref().unwrap_or_default();
        info!(gpu, wanted, phase = phase.as_str(), message, "MIG layout");
        let event = match phase {
            MigPhase::Applying => {
                self.changing_since.entry(uuid.clone()).or_insert_with(Instant::now);
                return;
            }
            // It has had its layout before this agent began.
            MigPhase::Applied if change.before.is_none() => return,
            MigPhase::Applied => {
                if let Some(begun) = self.changing_since.remove(uuid) {
                    metrics.mig_changed(begun.elapsed());
                }
                EventReason::MigLayoutApplied
            }
            MigPhase::Blocked => EventReason::MigLayoutBlocked,
            MigPhase::Failed => EventReason::MigLayoutFailed,
            MigPhase::RebootRequired => EventReason::MigRebootRequired,
            MigPhase::Waiting | MigPhase::AwaitingApproval | MigPhase::Unsupported | MigPhase::Unknown => {
                self.changing_since.remove(uuid);
                return;
            }
        };
        let note = match phase {
            MigPhase::Applied => format!("GPU {gpu} has its MIG layout {wanted}"),
            _ => format!("GPU {gpu} does not get its MIG layout {wanted}: {message}"),
        };
        events.send(event, format!("{uuid} {}", phase.as_str()), note);
    }

    fn set_mig_metrics(&self, hardware: &Hardware, metrics: &AgentMetrics) {
        let layouts = &self.in_force.layouts.gpus;
        let gpus = hardware.inventory().map_or(&[][..], |inventory| &inventory.gpus);
        let gpus = || gpus.iter().filter(move |gpu| layouts.contains_key(&gpu.uuid));
        metrics.set_mig(
            layouts.values().map(|mig| mig.phase.as_str()),
            gpus()
                .flat_map(|gpu| &gpu.mig_devices)
                .map(|mig| mig.facts.profile.as_str()),
        );
        let divided = gpus().filter_map(|gpu| Some((gpu.index, gpu.mig_state.as_ref().filter(|state| state.enabled)?)));
        metrics.set_mig_largest_free(divided.map(|(gpu, state)| {
            let largest = state.largest_fitting();
            let slices = largest.map_or((0, 0), |profile| (profile.slices, profile.memory_slices()));
            (gpu, slices)
        }));
    }

    /// Returns the time until the next decision about a MIG layout, if nothing happens before.
    pub fn next_layout_decision(&self) -> Option<Duration> {
        let at = self.layouts.look_again()?;
        Some(at.duration_since(Timestamp::now()).try_into().unwrap_or_default())
    }

    /// Restores the device state that the previous holder of the lock saved.
    pub async fn restore_devices(&mut self, manager: &DeviceManager) -> Result<()> {
        let state_dir = self.args.host.state_dir.clone();
        let saved = timeout(DISK_TIMEOUT, spawn_blocking(move || SavedAssignments::load(&state_dir)));
        let saved = saved
            .await
            .context("read the assignments: no answer from the disk")?
            .context("read the assignments")?;
        // The files that an agent finds before it knows the claims are those of the configuration alone.
        self.companions.clear();
        self.in_force.are_files_awaited = true;
        let claimed_files = saved.claimed_files();
        self.snapshot.claimed_files.clone_from(&claimed_files);
        manager
            .open(DeviceState::restore(saved.assignments(), claimed_files))
            .await;
        self.assignments = Some(saved);
        Ok(())
    }

    /// Clears the device state, which the next agent reads from the disk.
    pub fn clear_devices(&mut self, manager: &DeviceManager) {
        (self.assignments, self.passed_devices, self.snapshot) = (None, None, DeviceSnapshot::default());
        (self.save_error, self.problem, self.remark) = (None, None, None);
        self.layouts.clear();
        self.companions.clear();
        self.cdi_demand.send_replace(None);
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

    /// Passes new desired devices to the device manager. Companions wait for no driver.
    pub fn pass_desired_devices(&mut self, manager: &DeviceManager, events: &NodeEventSender) {
        if self.assignments.is_none() || !self.config_known {
            return;
        }
        self.companions.pass(manager, &self.snapshot, events);
        if !self.hardware_known || self.awaits_layouts() {
            return;
        }
        let desired = &self.in_force.desired;
        if self.passed_devices.as_ref() != Some(desired) {
            manager.change(|state| state.set_desired(DesiredDevices::clone(desired), Instant::now()));
            manager.observe_now();
            self.passed_devices = Some(desired.clone());
        }
    }

    /// Returns true while no devices can be passed: the instances of the GPUs are not known, or get made again before the first
    /// devices are passed.
    fn awaits_layouts(&self) -> bool {
        self.in_force.layouts.are_awaited || (self.passed_devices.is_none() && self.layouts.are_restored())
    }

    /// Returns the use of the CDI file; none before it is known.
    fn cdi_demand(&self, snapshot: &DeviceSnapshot, runtime: Option<&RuntimeStatus>) -> Option<CdiDemand> {
        let options = self.cdi_options();
        if !self.config_known || (options.is_some() && runtime.is_none()) {
            return None;
        }
        let config = self.in_force.accepted.as_ref().map(|accepted| &accepted.config);
        let ways = config.map(InjectionWays::of).unwrap_or_default();
        Some(CdiDemand {
            options,
            unread: runtime.and_then(|runtime| unread_cdi_file(ways, runtime)),
            in_use: snapshot.devices_in_use(),
        })
    }

    /// Saves the device state to the disk, then advertises it to the kubelet. A device is advertised once it is known if the CDI file
    /// describes it, and the ways in which containers get their devices change then.
    pub async fn publish(
        &mut self,
        hardware: Option<&Arc<Hardware>>,
        runtime: Option<&RuntimeStatus>,
        manager: &DeviceManager,
        plugins: &mut ResourceServers,
    ) {
        manager
            .metrics()
            .set_config(self.in_force.accepted.as_ref().map(|accepted| accepted.hash.as_str()));
        if self.assignments.is_none() {
            return;
        }
        let (mut snapshot, changes) = manager.snapshot();
        self.snapshot.claimed_files.clone_from(&snapshot.claimed_files);
        // A fault waits neither for the file nor for the disk.
        let early = with_lost_health(self.snapshot.advertised.clone(), &snapshot.advertised);
        plugins.put(early.clone());
        let gpus_before = self.gpus_before_publication(&snapshot, &early, hardware, runtime);
        let is_complete = gpus_before.is_none();
        if is_complete && self.config_known && manager.set_injection(&self.injection(runtime)) {
            // This change brings the next call.
            return;
        }
        if let Some(gpus) = gpus_before {
            // Companions wait neither for the driver nor for the file.
            let lists = joined_lists(gpus, &snapshot.advertised);
            snapshot = DeviceSnapshot {
                // What the next file lacks is not known yet.
                not_injectable: std::mem::take(&mut self.snapshot.not_injectable),
                ..snapshot.before_publication(lists)
            };
        }
        let Some(assignments) = &mut self.assignments else {
            return;
        };
        let save = assignments.save(&snapshot.assignments, &snapshot.claimed_files);
        let kept = timeout(DISK_TIMEOUT, save).await;
        match kept.unwrap_or_else(|slow| Err(io::Error::from(slow))) {
            Ok(()) => {
                manager.files_saved(&snapshot.claimed_files);
                plugins.put(snapshot.advertised.clone());
                manager
                    .metrics()
                    .set_devices(snapshot.advertised.iter().map(AdvertisedList::counts));
                manager.metrics().set_held_shares(held_shares(&snapshot));
                if is_complete {
                    manager.published(changes);
                }
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
                let lists = if assignments.has_gpus(&snapshot.assignments) {
                    // Files that cannot be saved are no reason to hold GPUs back, which need nothing of the disk.
                    let lists = joined_lists(&snapshot.advertised, &early);
                    plugins.put(lists.clone());
                    lists
                } else {
                    early
                };
                self.snapshot = snapshot.before_publication(lists);
            }
        }
    }

    /// Returns the lists of which the kubelet gets those of GPUs and MIG devices until the new ones may be published; none if they may.
    fn gpus_before_publication<'b>(
        &self,
        snapshot: &DeviceSnapshot,
        early: &'b [AdvertisedList],
        hardware: Option<&Arc<Hardware>>,
        runtime: Option<&RuntimeStatus>,
    ) -> Option<&'b [AdvertisedList]> {
        if self.passed_devices.is_none() && self.awaits_layouts() {
            // A kubelet that starts with a list would start pods on instances that are not there.
            return Some(&[]);
        }
        let demand = self.cdi_demand(snapshot, runtime);
        send_if_new(&self.cdi_demand, demand.clone());
        if self.cdi_options().is_none() || !self.config_known {
            return None;
        }
        let devices = snapshot.assignments.keys().filter(|id| !is_companion(id));
        let cdi_state = self.cdi_state.borrow();
        let is_known = cdi_state.knows(hardware.cloned(), demand.as_ref(), devices);
        (!is_known).then_some(early)
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
        let remark = remarks(self.plugin(registered));
        if remark != self.remark {
            if let Some((reason, message)) = &remark {
                info!(reason = reason.as_str(), message, "companions");
            }
            self.remark = remark;
        }
    }

    /// Returns the status to report; `None` before this agent reports for the node.
    pub fn report(
        &self,
        hardware: &Hardware,
        runtime: Option<&RuntimeStatus>,
        registered: &RegisteredResources,
        is_settled: bool,
    ) -> Option<StatusReport> {
        if !self.config_known || !self.snapshot.daemons_known {
            return None;
        }
        // A driver that is away is reported by itself.
        let describes = self.cdi_options().is_some() && hardware.driver == DriverState::Answers;
        let cdi_state = self.cdi_state.borrow().clone();
        let cdi = describes.then_some(&cdi_state);
        let is_offered = |uuid: &str| self.snapshot.assignments.contains_key(uuid);
        let runtime = runtime.map(|runtime| with_cdi_file(runtime, cdi, is_offered));
        let inputs = StatusInputs {
            hardware,
            snapshot: &self.snapshot,
            health: &self.node_health.borrow(),
            runtime: runtime.as_ref(),
            plugin: Some(self.plugin(registered)),
        };
        let mut status = status(&self.args.identity(), inputs);
        status.finished_change.clone_from(&self.finished_change);
        Some(StatusReport {
            status,
            create: hardware.has_gpus(),
            is_settled,
        })
    }
}

/// News that decisions about MIG layouts depend on.
pub struct LayoutNews {
    /// Results of work, if there are new ones.
    pub attempts: Option<MigAttempts>,
    /// Records of the GPUs; none before they are read.
    pub records: Option<Arc<MigRecords>>,
    /// Change of the node that the operator has written.
    pub change: ChangeRequest,
    /// True if configuration or hardware were evaluated.
    pub evaluates: bool,
}

/// Channels to those who act on MIG layouts.
pub struct LayoutOutputs {
    /// True once the instances of the GPUs have to be known.
    pub are_wanted: watch::Sender<bool>,
    /// Work to do.
    pub work: watch::Sender<Vec<MigWork>>,
}

impl LayoutOutputs {
    /// Returns channels without work.
    pub fn new() -> Self {
        Self {
            are_wanted: watch::Sender::default(),
            work: watch::Sender::default(),
        }
    }
}

fn count_attempt(kind: MigWorkKind, result: &AttemptResult, metrics: &AgentMetrics) {
    if matches!(kind, MigWorkKind::Check | MigWorkKind::Remember | MigWorkKind::Forget) {
        return;
    }
    metrics.mig_attempt(match result {
        AttemptResult::Running | AttemptResult::Clear => return,
        AttemptResult::Done => "done",
        AttemptResult::Blocked { .. } => "blocked",
        AttemptResult::RebootRequired { .. } => "reboot_required",
        AttemptResult::Failed { .. } => "failed",
    });
}

/// Returns the earlier `lists`, in which the shares that are unhealthy in `now` are so too.
fn with_lost_health(mut lists: Vec<AdvertisedList>, now: &[AdvertisedList]) -> Vec<AdvertisedList> {
    let shares = now.iter().flat_map(|list| &list.resource.shares);
    let lost: HashSet<&str> = shares
        .filter(|share| !share.healthy)
        .map(|share| share.id.as_str())
        .collect();
    for list in &mut lists {
        for share in &mut Arc::make_mut(&mut list.resource).shares {
            share.healthy &= !lost.contains(share.id.as_str());
        }
    }
    lists
}

/// Returns the lists of GPUs and MIG devices in `gpus`, and those of companions in `companions`.
fn joined_lists(gpus: &[AdvertisedList], companions: &[AdvertisedList]) -> Vec<AdvertisedList> {
    let gpus = gpus.iter().filter(|list| !list.resource.is_companion);
    let companions = companions.iter().filter(|list| list.resource.is_companion);
    gpus.chain(companions).cloned().collect()
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

#[cfg(test)]
mod tests {
    use super::*;
    use gpunode_gpu::{AdvertisedResource, AdvertisedShare};

    fn list(shares: &[(&str, bool)]) -> AdvertisedList {
        let share = |(id, healthy): &(&str, bool)| AdvertisedShare {
            id: (*id).to_owned(),
            healthy: *healthy,
            numa_node: None,
            surplus: false,
        };
        let resource = AdvertisedResource {
            name: "nvidia.com/gpu".to_owned(),
            is_companion: false,
            shares: shares.iter().map(share).collect(),
        };
        AdvertisedList {
            resource: Arc::new(resource),
            resend: 0,
        }
    }

    #[test]
    fn a_fault_reaches_the_kubelet_while_a_new_device_waits_for_the_file() {
        let before = [list(&[("GPU-0", true), ("GPU-1", true), ("GPU-2", false)])];
        let now = [list(&[
            ("GPU-0", true),
            ("GPU-1", false),
            ("GPU-2", true),
            ("GPU-3", true),
        ])];
        assert_eq!(
            with_lost_health(before.to_vec(), &now),
            [list(&[("GPU-0", true), ("GPU-1", false), ("GPU-2", false)])]
        );
        assert!(with_lost_health(Vec::new(), &now).is_empty());
    }
}
