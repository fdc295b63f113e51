//! `gpunode-agent run`: makes the tasks that bring configuration, hardware and kubelet together, and joins them.
//!
//! | module | what it does |
//! |---|---|
//! | `main_loop` | handles one input at a time, then publishes the result |
//! | `agent_state` | decides on configuration and devices, and publishes both |
//! | `node_companions` | decides on the companions of the node |
//! | `node_layouts` | decides about the MIG layouts of all GPUs, pure |
//! | `role` | standby or active, and the tasks of an active agent |

mod agent_state;
mod main_loop;
mod node_companions;
mod node_layouts;
mod role;

use crate::{
    admin::{
        metrics::AgentMetrics,
        server::{self, AgentServer, Liveness},
    },
    api_server::{
        events::{EventPublisher, NodeEventSender, PendingEvent},
        gpu_node::{GpuNodeState, connect},
        gpu_node_watch::GpuNodeWatch,
        node_allocatable::NodeReader,
        release::ReleaseRequest,
    },
    cdi::{file::CdiFile, keeper::CdiKeeper, state::CdiState},
    cli::{NodeArgs, RunArgs},
    companions::{scan::FileScanner, watch::CompanionWatch},
    configuration::{file, in_force::DesiredConfig, operator::OperatorConfigWatch, saved::SavedConfig},
    container_runtime::runtime_watch::RuntimeWatch,
    devices::manager::{DeviceManager, DeviceManagerInputs},
    driver::{
        driver_events::DriverEvents, hardware_probe::DriverRoots, hardware_watch::HardwareWatch,
        utilisation::Utilisation,
    },
    gpu_processes::GpuProcessWatch,
    handover::{AgentId, Handover, HandoverCommand, OwnSocketProbe, TakeBack},
    health::{MonitorInputs, node_health::NodeHealth},
    mig::executor::MigExecutor,
    plugin::{
        directory::PluginDirectory, other_sockets::watch_other_sockets, registration::Kubelet,
        resources::ResourceServers,
    },
    run::{
        agent_state::{AgentState, LayoutOutputs},
        main_loop::{MainLoop, MainLoopInputs, MainLoopOutputs},
        node_companions::NodeCompanions,
        role::Role,
    },
    runtime::{blocking_thread::BlockingThread, signals::Signals},
    status::{start_mark::StartMark, writer::StatusReporter},
    usage::sampler::{self, UsageSampler},
};
use anyhow::{Context as _, Result};
use kube::Client;
use std::sync::Arc;
use tokio::{
    sync::{Mutex, Notify, mpsc, watch},
    task::JoinSet,
};

/// Runs until SIGTERM.
pub async fn run(args: RunArgs) -> Result<()> {
    let (node, host) = (&args.node, &args.node.host);
    let signals = Signals::new().context("install the signal handlers")?;
    let listener = server::bind(host.admin_address).await?;
    let outputs = MainLoopOutputs::new();
    // Before the first configuration, which must wake the main loop.
    let desired_config = outputs.desired_config.subscribe();
    let client = if let Some(path) = &args.config {
        outputs.desired_config.send_replace(file::read_first(path)?);
        None
    } else {
        Some(connect().await.context("run without --config FILE")?)
    };

    let mut tasks = JoinSet::new();
    let metrics = AgentMetrics::new();
    let (probe_hardware, scan_files) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (liveness_sender, liveness) = watch::channel(Ok(()));
    let (hardware_sender, hardware) = watch::channel(None);
    let (alone, mig_outputs) = (watch::Sender::new(false), LayoutOutputs::new());
    let (runtime_sender, container_runtime) = watch::channel(None);
    let (gpu_node_sender, gpu_node) = watch::channel(GpuNodeState::Unknown);
    let (node_health_sender, node_health) = watch::channel(Arc::default());
    let driver_roots = host.driver.roots();
    let (driver_events, driver_event_queue) = DriverEvents::new(metrics.clone(), driver_roots.calls.clone());
    let (node_events, node_event_queue) = NodeEventSender::new();

    let usage_report = sampler::reports();
    let admin_server = AgentServer {
        readiness: outputs.readiness.subscribe(),
        liveness,
        metrics: metrics.clone(),
        usage: Some(usage_report.subscribe()),
    };
    let release = ReleaseRequest::new(client.is_some().then(|| gpu_node.clone()), &host.state_dir);
    let hardware_watch = HardwareWatch {
        roots: driver_roots.clone(),
        hardware: hardware_sender,
        probe_now: probe_hardware.clone(),
        release: release.clone(),
        mps_dir: host.mps_dir.clone(),
        driver_events: Some(driver_events),
        alone: alone.subscribe(),
        layouts: mig_outputs.are_wanted.subscribe(),
        metrics: metrics.clone(),
    };
    let runtime_watch = RuntimeWatch {
        roots: driver_roots.clone(),
        hardware: hardware.clone(),
        runtime: runtime_sender,
    };
    let wanted_files = watch::Sender::default();
    let found_files = watch::Sender::default();
    let companion_watch = CompanionWatch {
        scanner: FileScanner {
            host_root: host.driver.host_root.clone(),
            roots: node.companion_roots.clone(),
        },
        wanted: wanted_files.subscribe(),
        found: found_files.clone(),
        scan_now: scan_files.clone(),
    };
    let cdi_state = watch::Sender::default();
    let manager = device_manager(
        node,
        client.clone(),
        Utilisation::new(driver_roots.clone(), hardware.clone()),
        &driver_roots,
        (node_health.clone(), cdi_state.subscribe()),
        metrics.clone(),
    );
    let plugins = device_plugins(node, manager.clone(), &mut tasks);
    let (cdi_demand_sender, cdi_demand) = watch::channel(None);
    let cdi = CdiKeeper {
        roots: driver_roots.clone(),
        state_dir: host.state_dir.clone(),
        file: CdiFile::new(&node.cdi_dir),
        hardware: hardware.clone(),
        demand: cdi_demand,
        state: cdi_state,
        disk: BlockingThread::default(),
    };
    let gpu_processes = GpuProcessWatch {
        driver_roots: driver_roots.clone(),
        hardware: hardware.clone(),
        health: node_health.clone(),
        manager: manager.clone(),
        device_plugin_dir: node.device_plugin_dir.clone(),
        mps_dir: host.mps_dir.clone(),
        metrics: metrics.clone(),
        node_events: node_events.clone(),
    };
    let usage = UsageSampler {
        driver_roots: driver_roots.clone(),
        hardware: hardware.clone(),
        health: node_health.clone(),
        manager: manager.clone(),
        device_plugin_dir: node.device_plugin_dir.clone(),
        mps_dir: host.mps_dir.clone(),
        config: outputs.usage.subscribe(),
        metrics: metrics.clone(),
        report: usage_report,
    };
    let mig = MigExecutor {
        roots: driver_roots.clone(),
        state_dir: host.state_dir.clone(),
        hardware: hardware.clone(),
        work: mig_outputs.work.subscribe(),
        attempts: watch::Sender::default(),
        records: watch::Sender::default(),
        devices: manager.clone(),
        alone,
        probe_hardware: probe_hardware.clone(),
        thread: BlockingThread::default(),
    };
    let health_inputs = MonitorInputs {
        driver_roots,
        state_dir: host.state_dir.clone(),
        events: driver_event_queue,
        hardware: hardware.clone(),
        probe_now: probe_hardware.clone(),
        rules: outputs.health_rules.subscribe(),
        gpu_node: gpu_node.clone(),
        release,
        manager: manager.clone(),
        metrics,
        node_events: node_events.clone(),
        node_health: node_health_sender,
    };

    tasks.spawn(admin_server.run(listener));
    tasks.spawn(hardware_watch.run());
    tasks.spawn(runtime_watch.run());
    tasks.spawn(companion_watch.run());
    let saved_config = client
        .map(|client| spawn_api_server_tasks(node, client, gpu_node_sender, node_event_queue, &outputs, &mut tasks));
    // Before the first probe, which then reads instances at once.
    let first_config = match &*outputs.desired_config.borrow() {
        DesiredConfig::Config(candidate) => Some(candidate.clone()),
        DesiredConfig::Unknown | DesiredConfig::Nothing => saved_config.as_ref().and_then(SavedConfig::content),
    };
    let has_layouts = first_config.is_some_and(|config| config.has_layouts());
    mig_outputs.are_wanted.send_replace(has_layouts);
    let inputs = MainLoopInputs {
        signals,
        commands: spawn_handover(node, gpu_node, liveness_sender, &outputs, &mut tasks),
        hardware,
        desired_config,
        container_runtime,
        device_changes: manager.changes(),
        cdi_state: cdi.state.subscribe(),
        found_files: found_files.subscribe(),
        change: outputs.change.subscribe(),
        mig_attempts: mig.attempts.subscribe(),
        mig_records: mig.records.subscribe(),
        registered: plugins.registered(),
        tasks,
    };
    MainLoop {
        state: AgentState::new(
            node,
            saved_config,
            node_health,
            cdi_demand_sender,
            cdi.state.subscribe(),
            NodeCompanions::new(wanted_files),
        ),
        role: Role::Standby,
        args: &args,
        inputs,
        outputs,
        manager,
        plugins,
        cdi,
        gpu_processes,
        usage,
        mig,
        mig_outputs,
        health_inputs: Arc::new(Mutex::new(health_inputs)),
        node_events,
        probe_hardware,
        scan_files,
    }
    .run()
    .await?;
    StartMark::clear(&host.state_dir);
    Ok(())
}

fn device_manager(
    node: &NodeArgs,
    client: Option<Client>,
    utilisation: Utilisation,
    roots: &DriverRoots,
    (health, cdi): (watch::Receiver<Arc<NodeHealth>>, watch::Receiver<CdiState>),
    metrics: AgentMetrics,
) -> Arc<DeviceManager> {
    let inputs = DeviceManagerInputs {
        roots: roots.clone(),
        mps_dir: node.host.mps_dir.clone(),
        utilisation,
        node: client.map(|client| NodeReader::new(client, node.node_name.clone())),
        health,
        cdi,
        metrics,
    };
    Arc::new(DeviceManager::new(inputs))
}

fn device_plugins(node: &NodeArgs, manager: Arc<DeviceManager>, tasks: &mut JoinSet<()>) -> ResourceServers {
    let directory = PluginDirectory::new(node.device_plugin_dir.clone());
    tasks.spawn(directory.clone().watch());
    tasks.spawn(watch_other_sockets(directory.clone(), manager.clone()));
    ResourceServers::new(Kubelet {
        directory,
        manager,
        registered: watch::Sender::default(),
        pod_resources: node.pod_resources(),
    })
}

/// Returns the saved configuration, which the agent uses until the API server answers.
fn spawn_api_server_tasks(
    node: &NodeArgs,
    client: Client,
    gpu_node: watch::Sender<GpuNodeState>,
    node_events: mpsc::Receiver<PendingEvent>,
    outputs: &MainLoopOutputs,
    tasks: &mut JoinSet<()>,
) -> SavedConfig {
    let saved_config = SavedConfig::load(&node.host.state_dir, &node.node_name);
    let config_watch = OperatorConfigWatch {
        gpu_node: gpu_node.subscribe(),
        saved: saved_config.content(),
        desired_config: outputs.desired_config.clone(),
        change: outputs.change.clone(),
    };
    let reporter = StatusReporter {
        client: client.clone(),
        node_name: node.node_name.clone(),
        reports: outputs.status_reports.subscribe(),
        gpu_node: gpu_node.subscribe(),
        start_mark: Some(StartMark::set(&node.host.state_dir)),
    };
    let gpu_node_watch = GpuNodeWatch {
        client: client.clone(),
        node_name: node.node_name.clone(),
        gpu_node,
    };
    let event_publisher = EventPublisher {
        client,
        node_name: node.node_name.clone(),
        pod_name: node.pod_name.clone(),
        events: node_events,
    };
    tasks.spawn(gpu_node_watch.run());
    tasks.spawn(config_watch.run());
    tasks.spawn(reporter.run());
    tasks.spawn(event_publisher.run());
    saved_config
}

/// Returns the commands of the hand-over to the main loop.
fn spawn_handover(
    node: &NodeArgs,
    gpu_node: watch::Receiver<GpuNodeState>,
    liveness: watch::Sender<Liveness>,
    outputs: &MainLoopOutputs,
    tasks: &mut JoinSet<()>,
) -> mpsc::Receiver<HandoverCommand> {
    let (command_sender, commands) = mpsc::channel(1);
    let socket_served = watch::Sender::default();
    let socket_probe = OwnSocketProbe {
        state_dir: node.host.state_dir.clone(),
        socket_served: socket_served.subscribe(),
        liveness,
    };
    let handover = Handover {
        state_dir: node.host.state_dir.clone(),
        agent: AgentId {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pod: node.pod_uid.clone(),
        },
        take_back: TakeBack {
            policy: node.policy_name.clone(),
            gpu_node,
        },
        fitness: outputs.fitness.subscribe(),
        readiness: outputs.readiness.subscribe(),
        commands: command_sender,
        socket_served,
    };
    tasks.spawn(socket_probe.run());
    tasks.spawn(handover.run());
    commands
}
