//! `gpunode-agent run`: brings configuration, hardware and kubelet together.
//!
//! | module | what it does |
//! |---|---|
//! | `agent_state` | decides on configuration and devices, and publishes both |
//! | `role` | standby or active, and the tasks of an active agent |

mod agent_state;
mod role;

use crate::{
    admin::{
        metrics::AgentMetrics,
        server::{self, Readiness},
    },
    api_server::{
        events::{EventReason, NodeEventSender},
        gpu_node::{GpuNodeState, connect, watch_gpu_node},
        node_allocatable::NodeReader,
        release::ReleaseRequest,
    },
    cli::{NodeArgs, RunArgs},
    configuration::{file, in_force::DesiredConfig, operator, saved::SavedConfig},
    devices::manager::{self, DeviceManager},
    driver::{
        driver_events::DriverEvents,
        hardware::{DriverState, Hardware},
        hardware_watch::watch_hardware,
        utilisation::Utilisation,
    },
    handover::{AgentId, Handover, HandoverCommand, TakeBack, watch_own_socket},
    health,
    plugin::{
        directory::PluginDirectory,
        registration::{Kubelet, RegisteredResources},
        resources::ResourceServers,
        socket::remove_stale_sockets,
    },
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
        writer::{StatusReport, write_reports},
    },
    store::atomic_file,
};
use anyhow::{Context as _, Result, bail};
use kube::Client;
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

/// Runs until SIGTERM.
pub async fn run(args: RunArgs) -> Result<()> {
    let mut signals = Signals::new().context("install the signal handlers")?;
    let mut tasks: JoinSet<()> = JoinSet::new();

    let (readiness, ready) = watch::channel(Err("starting".into()));
    let metrics = AgentMetrics::new();
    let listener = server::bind(args.node.host.admin_address).await?;
    let (liveness, live) = watch::channel(Ok(()));
    tasks.spawn(server::serve(listener, ready.clone(), live, metrics.clone()));

    let look_again = Arc::new(Notify::new());
    let (found, mut hardware) = watch::channel(None);
    let (driver_events, reported) = DriverEvents::new(metrics.clone());
    let (seen, gpu_node) = watch::channel(GpuNodeState::Unknown);
    let release = ReleaseRequest::new(
        args.config.is_none().then(|| gpu_node.clone()),
        &args.node.host.state_dir,
    );
    let (place, look) = (args.node.host.hardware(), look_again.clone());
    tasks.spawn(watch_hardware(
        place,
        found,
        look,
        release,
        Some(driver_events),
        metrics.clone(),
    ));

    let (instructions, mut instructed) = watch::channel(DesiredConfig::Unknown);
    let (reports, to_report) = watch::channel(None);
    let (mut saved, mut node, mut notices) = (None, None, NodeEventSender::default());
    if let Some(path) = &args.config {
        instructions.send_replace(file::read_first(path)?);
    } else {
        let client = connect().await.context("run without --config FILE")?;
        node = Some(NodeReader::new(client.clone(), args.node.node_name.clone()));
        let told;
        (notices, told) = NodeEventSender::new();
        tasks.spawn(told.publish(client.clone(), args.node.node_name.clone(), args.node.pod_name.clone()));
        saved = Some(follow_operator(
            &mut tasks,
            client,
            &args.node,
            seen,
            instructions.clone(),
            to_report,
        ));
    }

    let manager = Arc::new(DeviceManager::new(manager::DeviceManagerInputs {
        host_root: args.node.host.host_root.clone(),
        mps_dir: args.node.host.mps_dir.clone(),
        utilisation: Utilisation::new(args.node.host.hardware()),
        node,
        metrics: metrics.clone(),
    }));
    let mut changes = manager.changes();
    let directory = PluginDirectory::new(args.node.device_plugin_dir.clone());
    tasks.spawn(directory.clone().watch());
    let registered = watch::Sender::new(RegisteredResources::default());
    let pod_resources = args.node.pod_resources();
    let mut plugins = ResourceServers::new(Kubelet {
        directory,
        manager: manager.clone(),
        registered,
        pod_resources,
    });
    let mut registered = plugins.registered();

    let mut decided = AgentState::new(&args.node, saved);
    let rules = watch::Sender::default();
    let health = Arc::new(Mutex::new(health::MonitorInputs {
        driver_roots: args.node.host.hardware(),
        state_dir: args.node.host.state_dir.clone(),
        events: reported,
        hardware: hardware.clone(),
        probe_now: look_again.clone(),
        rules: rules.subscribe(),
        gpu_node: gpu_node.clone(),
        manager: manager.clone(),
        metrics,
        node_events: notices.clone(),
    }));
    let (fitness, fit) = watch::channel(None);
    let (turns, mut turn) = mpsc::channel(1);
    let served = watch::Sender::default();
    let state_dir = args.node.host.state_dir.clone();
    tasks.spawn(watch_own_socket(state_dir.clone(), served.subscribe(), liveness));
    let who = AgentId {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pod: args.node.pod_uid.clone(),
    };
    let take_back = TakeBack {
        policy: args.node.policy_name.clone(),
        gpu_node,
    };
    tasks.spawn(
        Handover {
            state_dir,
            who,
            take_back,
            fitness: fit,
            ready,
            commands: turns,
            served,
        }
        .follow(),
    );
    let mut tenure = Role::Standby;
    let mut save_retry = interval(SAVE_RETRY);
    save_retry.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let mut evaluate = true;
        tokio::select! {
            asked = signals.next() => match asked {
                SignalRequest::Stop => break,
                SignalRequest::Reload => {
                    info!("reload");
                    look_again.notify_one();
                    // Makes the health monitor probe the GPUs as well.
                    rules.send_modify(|_| ());
                    if let Some(path) = &args.config {
                        file::reload(path, &instructions);
                    }
                }
            },
            Some(turn) = turn.recv() => match turn {
                HandoverCommand::Hold => {
                    remove_stale_sockets(&args.node.device_plugin_dir);
                    // Faults must be known before the kubelet gets a list of devices.
                    let health = health::HealthMonitor::open(health.clone().lock_owned().await).await;
                    decided.open(&manager).await?;
                    tenure = Role::Active(ActiveTasks::begin(health, &manager, &args.node));
                    for file in atomic_file::take_set_aside() {
                        notices.send(EventReason::StateFileCorrupt, &file);
                    }
                }
                HandoverCommand::LetGo(done) => {
                    let before = mem::replace(&mut tenure, Role::LetGo);
                    _ = readiness.send_replace(Err(LET_GO.into()));
                    reports.send_replace(None);
                    plugins.withdraw().await;
                    before.end().await;
                    decided.close(&manager);
                    // The receiver is gone only if its task has ended.
                    _ = done.send(());
                }
                HandoverCommand::Answer(done) => _ = done.send(()),
                HandoverCommand::Fail(error) => return Err(error).context("take the lock of this node"),
            },
            _ = save_retry.tick(), if decided.is_unsaved() => {}
            _ = hardware.changed() => {}
            _ = instructed.changed() => {}
            _ = changes.changed() => evaluate = false,
            _ = registered.changed() => evaluate = false,
            name = plugins.failed() => bail!("serve {name}: its task ended"),
            ended = tasks.join_next() => bail!("a task ended unexpectedly: {ended:?}"),
            ended = tenure.failed() => bail!("a task ended unexpectedly: {ended}"),
        }
        // Plain `borrow` keeps the change marks: a value that has not been evaluated still wakes this loop.
        let hardware = hardware.borrow().clone();
        let instruction = instructed.borrow().clone();
        if evaluate {
            decided.evaluate(&instruction, hardware.as_deref()).await?;
            send_if_new(&rules, decided.health_rules());
        }
        decided.want(&manager);
        decided.publish(&manager, &mut plugins).await;
        let registered = registered.borrow().clone();
        decided.log_problem(&registered);
        send_if_new(&fitness, decided.fitness(hardware.as_deref()));
        send_if_new(
            &readiness,
            readiness_of(&tenure, hardware.as_deref(), &decided, &registered),
        );
        if let Some(report) = hardware.and_then(|hardware| decided.report(&hardware, &registered)) {
            send_if_new(&reports, Some(report));
        }
    }
    info!("stopping");
    plugins.withdraw().await;
    tenure.end().await;
    Ok(())
}

fn readiness_of(
    tenure: &Role,
    hardware: Option<&Hardware>,
    decided: &AgentState<'_>,
    registered: &RegisteredResources,
) -> Readiness {
    match tenure {
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
    if !decided.config_known() {
        return Err("waiting for the configuration from the API server".into());
    }
    let plugin = decided.plugin(registered);
    if let Some(unknown) = holders_unknown(decided.snapshot(), plugin) {
        return Err(unknown.into());
    }
    if !decided.snapshot().daemons_known {
        return Err("the folder of the MPS control daemons has not been read yet; no device can be allocated".into());
    }
    not_registered(decided.snapshot(), plugin).map_or(Ok(()), |reason| Err(reason.into()))
}

fn follow_operator(
    tasks: &mut JoinSet<()>,
    client: Client,
    node: &NodeArgs,
    seen: watch::Sender<GpuNodeState>,
    instructions: watch::Sender<DesiredConfig>,
    reports: watch::Receiver<Option<StatusReport>>,
) -> SavedConfig {
    let gpu_node = seen.subscribe();
    let saved = SavedConfig::load(&node.host.state_dir, &node.node_name);
    tasks.spawn(watch_gpu_node(client.clone(), node.node_name.clone(), seen));
    tasks.spawn(operator::follow(gpu_node.clone(), saved.content(), instructions));
    tasks.spawn(write_reports(client, node.node_name.clone(), reports, gpu_node));
    saved
}
