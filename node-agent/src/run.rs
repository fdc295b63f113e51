//! `gpunode-agent run`: brings configuration, hardware and kubelet together.
//!
//! | module | what it does |
//! |---|---|
//! | `main_loop` | handles one input at a time, then publishes the result |
//! | `agent_state` | decides on configuration and devices, and publishes both |
//! | `role` | standby or active, and the tasks of an active agent |

mod agent_state;
mod main_loop;
mod role;

use crate::{
    admin::{metrics::AgentMetrics, server},
    api_server::{
        events::NodeEventSender,
        gpu_node::{GpuNodeState, connect, watch_gpu_node},
        node_allocatable::NodeReader,
        release::ReleaseRequest,
    },
    cli::{NodeArgs, RunArgs},
    configuration::{file, in_force::DesiredConfig, operator, saved::SavedConfig},
    devices::manager::{self, DeviceManager},
    driver::{driver_events::DriverEvents, hardware_watch::watch_hardware, utilisation::Utilisation},
    handover::{AgentId, Handover, TakeBack, watch_own_socket},
    health,
    plugin::{
        directory::PluginDirectory,
        registration::{Kubelet, RegisteredResources},
        resources::ResourceServers,
    },
    run::{
        agent_state::AgentState,
        main_loop::{Inputs, MainLoop},
        role::Role,
    },
    runtime::signals::Signals,
    status::writer::{StatusReport, write_reports},
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
    let signals = Signals::new().context("install the signal handlers")?;
    let mut tasks: JoinSet<()> = JoinSet::new();

    let (readiness, ready) = watch::channel(Err("starting".into()));
    let metrics = AgentMetrics::new();
    let listener = server::bind(args.node.host.admin_address).await?;
    let (liveness, live) = watch::channel(Ok(()));
    tasks.spawn(server::serve(listener, ready.clone(), live, metrics.clone()));

    let probe_hardware = Arc::new(Notify::new());
    let (found, hardware) = watch::channel(None);
    let (driver_events, reported) = DriverEvents::new(metrics.clone());
    let (seen, gpu_node) = watch::channel(GpuNodeState::Unknown);
    let release = ReleaseRequest::new(
        args.config.is_none().then(|| gpu_node.clone()),
        &args.node.host.state_dir,
    );
    let (place, look) = (args.node.host.hardware(), probe_hardware.clone());
    tasks.spawn(watch_hardware(
        place,
        found,
        look,
        release,
        Some(driver_events),
        metrics.clone(),
    ));

    let (instructions, config) = watch::channel(DesiredConfig::Unknown);
    let (reports, to_report) = watch::channel(None);
    let (mut saved, mut node, mut events) = (None, None, NodeEventSender::default());
    if let Some(path) = &args.config {
        instructions.send_replace(file::read_first(path)?);
    } else {
        let client = connect().await.context("run without --config FILE")?;
        node = Some(NodeReader::new(client.clone(), args.node.node_name.clone()));
        let publisher;
        (events, publisher) = NodeEventSender::new();
        tasks.spawn(publisher.publish(client.clone(), args.node.node_name.clone(), args.node.pod_name.clone()));
        saved = Some(follow_operator(
            &mut tasks,
            client,
            &args.node,
            seen,
            instructions.clone(),
            to_report,
        ));
    }

    let (node_health_sender, node_health) = watch::channel(Arc::default());
    let manager = Arc::new(DeviceManager::new(manager::DeviceManagerInputs {
        host_root: args.node.host.host_root.clone(),
        mps_dir: args.node.host.mps_dir.clone(),
        utilisation: Utilisation::new(args.node.host.hardware()),
        node,
        health: node_health.clone(),
        metrics: metrics.clone(),
    }));
    let directory = PluginDirectory::new(args.node.device_plugin_dir.clone());
    tasks.spawn(directory.clone().watch());
    let registered = watch::Sender::new(RegisteredResources::default());
    let pod_resources = args.node.pod_resources();
    let plugins = ResourceServers::new(Kubelet {
        directory,
        manager: manager.clone(),
        registered,
        pod_resources,
    });

    let rules = watch::Sender::default();
    let health = Arc::new(Mutex::new(health::MonitorInputs {
        driver_roots: args.node.host.hardware(),
        state_dir: args.node.host.state_dir.clone(),
        events: reported,
        hardware: hardware.clone(),
        probe_now: probe_hardware.clone(),
        rules: rules.subscribe(),
        gpu_node: gpu_node.clone(),
        manager: manager.clone(),
        metrics,
        node_events: events.clone(),
        node_health: node_health_sender,
    }));
    let (fitness, fit) = watch::channel(None);
    let (turns, commands) = mpsc::channel(1);
    let served = watch::Sender::default();
    let state_dir = args.node.host.state_dir.clone();
    tasks.spawn(watch_own_socket(state_dir.clone(), served.subscribe(), liveness));
    let agent = AgentId {
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
            agent,
            take_back,
            fitness: fit,
            ready,
            commands: turns,
            served,
        }
        .run(),
    );
    let inputs = Inputs {
        signals,
        commands,
        hardware,
        config,
        devices: manager.changes(),
        registered: plugins.registered(),
        tasks,
    };
    MainLoop {
        state: AgentState::new(&args.node, saved, node_health),
        role: Role::Standby,
        args: &args,
        manager,
        plugins,
        health,
        events,
        probe_hardware,
        instructions,
        rules,
        readiness,
        reports,
        fitness,
    }
    .run(inputs)
    .await
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
