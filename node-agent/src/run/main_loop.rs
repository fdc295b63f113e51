//! Main loop of `gpunode-agent run`: handles one input at a time, then brings the decisions up to date and publishes them.

use crate::{
    admin::server::Readiness,
    api_server::events::{EventReason, NodeEventSender},
    cdi::{keeper::CdiKeeper, state::CdiState},
    cli::RunArgs,
    companions::scan::FoundFiles,
    configuration::{file, in_force::DesiredConfig, operator::ChangeRequest},
    devices::manager::DeviceManager,
    driver::hardware::{DriverState, Hardware},
    gpu_processes::GpuProcessWatch,
    handover::{Fitness, HandoverCommand},
    health::{HealthMonitor, MonitorInputs},
    mig::{
        executor::{MigAttempts, MigExecutor},
        record_file::MigRecords,
    },
    plugin::{registration::RegisteredResources, resources::ResourceServers, socket::remove_stale_sockets},
    run::{
        agent_state::{AgentState, LayoutNews, LayoutOutputs},
        role::{ActiveTasks, Role},
    },
    runtime::{
        channel::{send_if_new, take},
        signals::{SignalRequest, Signals},
    },
    status::{
        conditions::{holders_unknown, not_registered},
        writer::StatusReport,
    },
    store::atomic_file,
    usage::sampler::UsageSampler,
};
use anyhow::{Context as _, Result, bail};
use gpunode_config::{HealthRules, UsageConfig};
use gpunode_crds::RuntimeStatus;
use std::{mem, sync::Arc, time::Duration};
use tokio::{
    sync::{Mutex, Notify, mpsc, watch},
    task::JoinSet,
    time::{Interval, MissedTickBehavior, interval, sleep},
};
use tracing::info;

/// Pause before another attempt to save the configuration or the assignments.
const SAVE_RETRY: Duration = Duration::from_mins(1);

/// Readiness text of an agent that has handed over and awaits its termination.
const LET_GO: &str = "LetGo: another agent of this node has taken over";

/// Channels and streams that wake the main loop.
pub struct MainLoopInputs {
    /// SIGTERM, SIGINT and SIGHUP.
    pub signals: Signals,
    pub commands: mpsc::Receiver<HandoverCommand>,
    /// Result of the last hardware probe; `None` before the first.
    pub hardware: watch::Receiver<Option<Arc<Hardware>>>,
    pub desired_config: watch::Receiver<DesiredConfig>,
    /// Settings of the container runtime; `None` before they were read.
    pub container_runtime: watch::Receiver<Option<Arc<RuntimeStatus>>>,
    /// Number of the last change to the device state.
    pub device_changes: watch::Receiver<u64>,
    /// State of the CDI file.
    pub cdi_state: watch::Receiver<CdiState>,
    /// Files of companions; none before the first scan.
    pub found_files: watch::Receiver<Option<Arc<FoundFiles>>>,
    /// Change of the node that the operator has written.
    pub change: watch::Receiver<ChangeRequest>,
    /// Results of work on MIG layouts.
    pub mig_attempts: watch::Receiver<MigAttempts>,
    /// Records of MIG layouts; none before they are read.
    pub mig_records: watch::Receiver<Option<Arc<MigRecords>>>,
    /// Resources that the kubelet has accepted.
    pub registered: watch::Receiver<RegisteredResources>,
    /// Tasks that run as long as the agent.
    pub tasks: JoinSet<()>,
}

/// Values that the main loop publishes.
pub struct MainLoopOutputs {
    /// Desired configuration, after a reload of the file.
    pub desired_config: watch::Sender<DesiredConfig>,
    pub health_rules: watch::Sender<Arc<HealthRules>>,
    /// Times of the figures of what containers use.
    pub usage: watch::Sender<UsageConfig>,
    /// Change of the node that the operator has written.
    pub change: watch::Sender<ChangeRequest>,
    /// Text of `/readyz`.
    pub readiness: watch::Sender<Readiness>,
    /// Status to report; `None` while this agent does not report for the node.
    pub status_reports: watch::Sender<Option<StatusReport>>,
    /// Ability to serve the node, for the hand-over.
    pub fitness: watch::Sender<Option<Fitness>>,
}

impl MainLoopOutputs {
    /// Returns the values of an agent that starts.
    pub fn new() -> Self {
        Self {
            desired_config: watch::Sender::default(),
            health_rules: watch::Sender::default(),
            usage: watch::Sender::default(),
            change: watch::Sender::default(),
            readiness: watch::Sender::new(Err("starting".into())),
            status_reports: watch::Sender::default(),
            fitness: watch::Sender::default(),
        }
    }
}

/// One input of the main loop.
enum LoopInput {
    /// Signal of the operating system or an administrator.
    Signal(SignalRequest),
    Command(HandoverCommand),
    /// The configuration or the assignments could not be saved a while ago.
    SaveRetry,
    /// New hardware, or another desired configuration.
    HardwareOrConfig,
    /// Another state of the devices, of their registration, of the CDI file or of the container runtime, or other files of companions.
    Devices,
    /// Records of MIG layouts, an approval, or the time of the next decision about them.
    Layouts,
    /// A result of work on MIG layouts.
    MigAttempt,
    /// A task that runs as long as the agent has ended, as this text says.
    Ended(String),
}

/// State and outputs of the main loop.
pub struct MainLoop<'a> {
    pub state: AgentState<'a>,
    /// Standby, active or done.
    pub role: Role,
    pub args: &'a RunArgs,
    pub inputs: MainLoopInputs,
    pub outputs: MainLoopOutputs,
    /// Allocates devices.
    pub manager: Arc<DeviceManager>,
    /// Device plugin servers.
    pub plugins: ResourceServers,
    /// Keeper of the CDI file, which runs while this agent is active.
    pub cdi: CdiKeeper,
    /// Watch of the processes on GPUs, which runs while this agent is active.
    pub gpu_processes: GpuProcessWatch,
    /// Reads what containers use while this agent is active.
    pub usage: UsageSampler,
    /// Changes MIG while this agent is active.
    pub mig: MigExecutor,
    /// Work for it.
    pub mig_outputs: LayoutOutputs,
    /// Inputs of the health monitor, which one active role at a time takes.
    pub health_inputs: Arc<Mutex<MonitorInputs>>,
    pub node_events: NodeEventSender,
    /// Requests another hardware probe.
    pub probe_hardware: Arc<Notify>,
    /// Requests another look for the files of companions.
    pub scan_files: Arc<Notify>,
}

impl MainLoop<'_> {
    /// Runs until SIGTERM.
    pub async fn run(mut self) -> Result<()> {
        let mut save_retry = interval(SAVE_RETRY);
        save_retry.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let input = self.next_input(&mut save_retry).await;
            let evaluates = !matches!(input, LoopInput::Devices | LoopInput::Layouts | LoopInput::MigAttempt);
            let has_attempts = matches!(input, LoopInput::MigAttempt);
            match input {
                LoopInput::Signal(SignalRequest::Stop) => break,
                LoopInput::Signal(SignalRequest::Reload) => self.reload(),
                LoopInput::Command(command) => self.on_command(command).await?,
                LoopInput::SaveRetry
                | LoopInput::HardwareOrConfig
                | LoopInput::Devices
                | LoopInput::Layouts
                | LoopInput::MigAttempt => {}
                LoopInput::Ended(task) => bail!("{task}"),
            }
            self.update(evaluates, has_attempts).await?;
        }
        info!("stopping");
        self.plugins.withdraw().await;
        self.role.end().await;
        Ok(())
    }

    async fn next_input(&mut self, save_retry: &mut Interval) -> LoopInput {
        let inputs = &mut self.inputs;
        let next_decision = self.state.next_layout_decision();
        tokio::select! {
            request = inputs.signals.next() => LoopInput::Signal(request),
            Some(command) = inputs.commands.recv() => LoopInput::Command(command),
            _ = save_retry.tick(), if self.state.is_unsaved() => LoopInput::SaveRetry,
            _ = inputs.hardware.changed() => LoopInput::HardwareOrConfig,
            _ = inputs.desired_config.changed() => LoopInput::HardwareOrConfig,
            _ = inputs.device_changes.changed() => LoopInput::Devices,
            _ = inputs.registered.changed() => LoopInput::Devices,
            _ = inputs.cdi_state.changed() => LoopInput::Devices,
            _ = inputs.container_runtime.changed() => LoopInput::Devices,
            _ = inputs.found_files.changed() => LoopInput::Devices,
            _ = inputs.change.changed() => LoopInput::Layouts,
            _ = inputs.mig_attempts.changed() => LoopInput::MigAttempt,
            _ = inputs.mig_records.changed() => LoopInput::Layouts,
            () = sleep(next_decision.unwrap_or_default()), if next_decision.is_some() => LoopInput::Layouts,
            name = self.plugins.failed() => LoopInput::Ended(format!("serve {name}: its task ended")),
            ended = inputs.tasks.join_next() => LoopInput::Ended(format!("a task ended unexpectedly: {ended:?}")),
            ended = self.role.failed() => LoopInput::Ended(format!("a task ended unexpectedly: {ended}")),
        }
    }

    /// Brings the decisions up to date if the input may change them, and publishes the result.
    async fn update(&mut self, evaluates: bool, has_attempts: bool) -> Result<()> {
        // Whatever the input was, nothing is decided on hardware or a configuration that were not evaluated.
        let (hardware, is_new_hardware) = take(&mut self.inputs.hardware);
        let (desired_config, is_new_config) = take(&mut self.inputs.desired_config);
        let evaluates = evaluates || is_new_hardware || is_new_config;
        if evaluates {
            self.state.evaluate(&desired_config, hardware.as_deref()).await?;
            send_if_new(&self.outputs.health_rules, self.state.health_rules());
            send_if_new(&self.outputs.usage, self.state.usage());
        }
        let (found_files, _) = take(&mut self.inputs.found_files);
        self.state.find_companions(found_files.as_ref());
        self.state.prepare(&self.inputs.change.borrow(), &self.manager);
        self.lay_out(hardware.as_deref(), evaluates, has_attempts);
        self.publish(hardware.as_ref()).await;
        Ok(())
    }

    /// Brings the decisions about MIG layouts up to date.
    fn lay_out(&mut self, hardware: Option<&Hardware>, evaluates: bool, has_attempts: bool) {
        let news = LayoutNews {
            attempts: has_attempts.then(|| self.inputs.mig_attempts.borrow().clone()),
            records: self.inputs.mig_records.borrow().clone(),
            change: self.inputs.change.borrow().clone(),
            evaluates,
        };
        self.state
            .lay_out(hardware, &news, &self.manager, &self.node_events, &self.mig_outputs);
    }

    /// Reloads the configuration file, and probes hardware and GPUs again.
    fn reload(&self) {
        info!("reload");
        self.probe_hardware.notify_one();
        self.scan_files.notify_one();
        // Makes the health monitor probe the GPUs as well.
        self.outputs.health_rules.send_modify(|_| ());
        if let Some(path) = &self.args.config {
            file::reload(path, &self.outputs.desired_config);
        }
    }

    async fn on_command(&mut self, command: HandoverCommand) -> Result<()> {
        match command {
            HandoverCommand::Activate => self.become_active().await?,
            HandoverCommand::Deactivate(done) => {
                self.hand_over().await;
                // The receiver is gone only if its task has ended.
                _ = done.send(());
            }
            HandoverCommand::Ping(done) => _ = done.send(()),
            HandoverCommand::Stop(error) => return Err(error).context("take the lock of this node"),
        }
        Ok(())
    }

    /// Restores the saved state, and starts the tasks of an active agent.
    async fn become_active(&mut self) -> Result<()> {
        remove_stale_sockets(&self.args.node.device_plugin_dir);
        // Faults must be known before the kubelet gets a list of devices.
        let monitor = HealthMonitor::open(self.health_inputs.clone().lock_owned().await).await;
        self.state.restore_devices(&self.manager).await?;
        self.role = Role::Active(ActiveTasks::begin(
            monitor,
            &self.manager,
            self.cdi.clone(),
            self.gpu_processes.clone(),
            self.usage.clone(),
            self.mig.clone(),
            &self.args.node,
        ));
        for file in atomic_file::take_set_aside() {
            self.node_events.send(EventReason::StateFileCorrupt, file.clone(), file);
        }
        Ok(())
    }

    /// Withdraws from the kubelet, stops the tasks, and clears the device state.
    async fn hand_over(&mut self) {
        let active = mem::replace(&mut self.role, Role::LetGo);
        _ = self.outputs.readiness.send_replace(Err(LET_GO.into()));
        self.outputs.status_reports.send_replace(None);
        self.plugins.withdraw().await;
        active.end().await;
        self.usage.end();
        self.cdi.state.send_replace(CdiState::default());
        self.mig.attempts.send_replace(MigAttempts::new());
        self.mig.records.send_replace(None);
        self.mig_outputs.work.send_replace(Vec::new());
        self.state.clear_devices(&self.manager);
    }

    /// Publishes devices, readiness and status, where they changed.
    async fn publish(&mut self, hardware: Option<&Arc<Hardware>>) {
        let runtime = self.inputs.container_runtime.borrow().clone();
        self.state.pass_desired_devices(&self.manager, &self.node_events);
        self.state
            .publish(hardware, runtime.as_deref(), &self.manager, &mut self.plugins)
            .await;
        let hardware: Option<&Hardware> = hardware.map(Arc::as_ref);
        // Read after the publication, which may have changed it.
        let registered = self.inputs.registered.borrow().clone();
        self.state.log_problem(&registered);
        send_if_new(&self.outputs.fitness, self.state.fitness(hardware));
        let readiness = readiness_of(&self.role, hardware, &self.state, &registered);
        let is_settled = readiness.is_ok();
        send_if_new(&self.outputs.readiness, readiness);
        let report =
            hardware.and_then(|hardware| self.state.report(hardware, runtime.as_deref(), &registered, is_settled));
        if let Some(report) = report {
            send_if_new(&self.outputs.status_reports, Some(report));
        }
    }
}

fn readiness_of(
    role: &Role,
    hardware: Option<&Hardware>,
    state: &AgentState<'_>,
    registered: &RegisteredResources,
) -> Readiness {
    match role {
        Role::Standby => {
            return Err("WaitingForPredecessor: another agent of this node is registered".into());
        }
        Role::LetGo => return Err(LET_GO.into()),
        Role::Active(_) => {}
    }
    match hardware.map(|hardware| &hardware.driver) {
        None => return Err("the first hardware probe has not finished".into()),
        // An agent that has released its GPUs is ready: no devices is what the operator asked for.
        Some(DriverState::Released) => return Ok(()),
        Some(_) => {}
    }
    if !state.config_known() {
        return Err("waiting for the configuration from the API server".into());
    }
    let plugin = state.plugin(registered);
    if let Some(unknown) = holders_unknown(state.snapshot(), plugin) {
        return Err(unknown.into());
    }
    if !state.snapshot().daemons_known {
        return Err("the folder of the MPS control daemons has not been read yet; no device can be allocated".into());
    }
    not_registered(state.snapshot(), plugin).map_or(Ok(()), |reason| Err(reason.into()))
}
