//! Main loop of `gpunode-agent run`: handles one input at a time, then brings the decisions up to date and publishes them.

use crate::{
    admin::server::Readiness,
    api_server::events::{EventReason, NodeEventSender},
    cli::RunArgs,
    configuration::{file, in_force::DesiredConfig},
    devices::manager::DeviceManager,
    driver::hardware::{DriverState, Hardware},
    handover::{Fitness, HandoverCommand},
    health,
    plugin::{registration::RegisteredResources, resources::ResourceServers, socket::remove_stale_sockets},
    run::{
        agent_state::AgentState,
        role::{ActiveTasks, Role},
    },
    runtime::{
        channel::send_if_new,
        signals::{SignalRequest, Signals},
    },
    status::{
        conditions::{holders_unknown, not_registered},
        writer::StatusReport,
    },
    store::atomic_file,
};
use anyhow::{Context as _, Result, bail};
use gpunode_config::HealthRules;
use std::{mem, sync::Arc, time::Duration};
use tokio::{
    sync::{Mutex, Notify, mpsc, watch},
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};
use tracing::info;

/// Pause before another attempt to save the configuration or the assignments.
const SAVE_RETRY: Duration = Duration::from_mins(1);

/// Readiness text of an agent that has handed over and awaits its termination.
const LET_GO: &str = "LetGo: another agent of this node has taken over";

/// Channels and streams that wake the main loop.
pub struct Inputs {
    /// SIGTERM, SIGINT and SIGHUP.
    pub signals: Signals,
    /// Commands of the hand-over.
    pub commands: mpsc::Receiver<HandoverCommand>,
    /// Result of the last hardware probe; `None` before the first.
    pub hardware: watch::Receiver<Option<Arc<Hardware>>>,
    /// Desired configuration.
    pub config: watch::Receiver<DesiredConfig>,
    /// Number of the last change to the device state.
    pub devices: watch::Receiver<u64>,
    /// Resources that the kubelet has accepted.
    pub registered: watch::Receiver<RegisteredResources>,
    /// Tasks that run as long as the agent.
    pub tasks: JoinSet<()>,
}

/// State and outputs of the main loop.
pub struct MainLoop<'a> {
    /// Decisions so far.
    pub state: AgentState<'a>,
    /// Standby, active or done.
    pub role: Role,
    /// Arguments of the command.
    pub args: &'a RunArgs,
    /// Allocates devices.
    pub manager: Arc<DeviceManager>,
    /// Device plugin servers.
    pub plugins: ResourceServers,
    /// Inputs of the health monitor, which one active role at a time takes.
    pub health: Arc<Mutex<health::MonitorInputs>>,
    /// Events of the Node.
    pub events: NodeEventSender,
    /// Requests another hardware probe.
    pub probe_hardware: Arc<Notify>,
    /// Desired configuration, for a reload of the file.
    pub instructions: watch::Sender<DesiredConfig>,
    /// Rules of the health monitor.
    pub rules: watch::Sender<Arc<HealthRules>>,
    /// Text of `/readyz`.
    pub readiness: watch::Sender<Readiness>,
    /// Status to report.
    pub reports: watch::Sender<Option<StatusReport>>,
    /// Ability to serve the node, for the hand-over.
    pub fitness: watch::Sender<Option<Fitness>>,
}

impl MainLoop<'_> {
    /// Runs until SIGTERM.
    pub async fn run(mut self, mut inputs: Inputs) -> Result<()> {
        let mut save_retry = interval(SAVE_RETRY);
        save_retry.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let mut evaluate = true;
            tokio::select! {
                request = inputs.signals.next() => match request {
                    SignalRequest::Stop => break,
                    SignalRequest::Reload => self.reload(),
                },
                Some(command) = inputs.commands.recv() => self.on_command(command).await?,
                _ = save_retry.tick(), if self.state.is_unsaved() => {}
                _ = inputs.hardware.changed() => {}
                _ = inputs.config.changed() => {}
                _ = inputs.devices.changed() => evaluate = false,
                _ = inputs.registered.changed() => evaluate = false,
                name = self.plugins.failed() => bail!("serve {name}: its task ended"),
                ended = inputs.tasks.join_next() => bail!("a task ended unexpectedly: {ended:?}"),
                ended = self.role.failed() => bail!("a task ended unexpectedly: {ended}"),
            }
            // Plain `borrow` keeps the change marks: a value that has not been evaluated still wakes this loop.
            let hardware = inputs.hardware.borrow().clone();
            let config = inputs.config.borrow().clone();
            if evaluate {
                self.state.evaluate(&config, hardware.as_deref()).await?;
                send_if_new(&self.rules, self.state.health_rules());
            }
            self.publish(hardware.as_deref(), &inputs.registered).await;
        }
        info!("stopping");
        self.plugins.withdraw().await;
        self.role.end().await;
        Ok(())
    }

    /// Reloads the configuration file, and probes hardware and GPUs again.
    fn reload(&self) {
        info!("reload");
        self.probe_hardware.notify_one();
        // Makes the health monitor probe the GPUs as well.
        self.rules.send_modify(|_| ());
        if let Some(path) = &self.args.config {
            file::reload(path, &self.instructions);
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
        let health = health::HealthMonitor::open(self.health.clone().lock_owned().await).await;
        self.state.open(&self.manager).await?;
        self.role = Role::Active(ActiveTasks::begin(health, &self.manager, &self.args.node));
        for file in atomic_file::take_set_aside() {
            self.events.send(EventReason::StateFileCorrupt, &file);
        }
        Ok(())
    }

    /// Withdraws from the kubelet, stops the tasks, and clears the device state.
    async fn hand_over(&mut self) {
        let before = mem::replace(&mut self.role, Role::LetGo);
        _ = self.readiness.send_replace(Err(LET_GO.into()));
        self.reports.send_replace(None);
        self.plugins.withdraw().await;
        before.end().await;
        self.state.close(&self.manager);
    }

    /// Publishes devices, readiness and status, where they changed.
    async fn publish(&mut self, hardware: Option<&Hardware>, registered: &watch::Receiver<RegisteredResources>) {
        self.state.want(&self.manager);
        self.state.publish(&self.manager, &mut self.plugins).await;
        // Read after the publication, which may have changed it.
        let registered = registered.borrow().clone();
        self.state.log_problem(&registered);
        send_if_new(&self.fitness, self.state.fitness(hardware));
        send_if_new(
            &self.readiness,
            readiness_of(&self.role, hardware, &self.state, &registered),
        );
        if let Some(report) = hardware.and_then(|hardware| self.state.report(hardware, &registered)) {
            send_if_new(&self.reports, Some(report));
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
