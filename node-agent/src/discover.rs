//! `gpunode-agent discover`: reports the GPUs of a node that no policy governs.
//!
//! It reports while the GpuNode has no configuration and no device plugin of this node is registered. It retires the
//! assignments that a device plugin left behind. On a node without GPUs it asks the API server once
//! whether the node had some before, and reports that they are missing; otherwise it stays idle.
//!
//! | module | what it does |
//! |---|---|
//! | `earlier_gpu_node` | looks for the `GpuNode` of a node that has no GPU any more |
//! | `leftovers` | retires the assignments of an earlier device plugin |

mod earlier_gpu_node;
mod leftovers;

use crate::{
    admin::{
        metrics::AgentMetrics,
        server::{self, AgentServer},
    },
    api_server::{
        gpu_node::{GpuNodeState, connect},
        gpu_node_watch::GpuNodeWatch,
        release::ReleaseRequest,
    },
    cli::NodeArgs,
    container_runtime::runtime_watch::RuntimeWatch,
    devices::state::DeviceSnapshot,
    discover::{earlier_gpu_node::EarlierGpuNode, leftovers::LeftoverRetirement},
    driver::{hardware::Hardware, hardware_watch::HardwareWatch},
    handover,
    health::node_health::NodeHealth,
    runtime::{
        channel::send_if_new,
        signals::{SignalRequest, Signals},
    },
    status::{
        inputs::StatusInputs,
        report::status,
        writer::{StatusReport, StatusReporter},
    },
};
use anyhow::{Context as _, Result, bail};
use gpunode_crds::RuntimeStatus;
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};
use tracing::info;

/// Interval between checks for a device plugin on the node.
const CHECK_LOCK: Duration = Duration::from_secs(5);

/// Runs until SIGTERM.
pub async fn discover(args: NodeArgs) -> Result<()> {
    let mut signals = Signals::new().context("install the signal handlers")?;
    let mut tasks: JoinSet<()> = JoinSet::new();

    let (readiness_sender, readiness) = watch::channel(Err("the first hardware probe has not finished".into()));
    let listener = server::bind(args.host.admin_address).await?;
    let metrics = AgentMetrics::new();
    let server = AgentServer {
        readiness,
        liveness: server::always_live(),
        metrics: metrics.clone(),
        usage: None,
    };
    tasks.spawn(server.run(listener));

    let probe_now = Arc::new(Notify::new());
    let (hardware_sender, mut hardware) = watch::channel(None);
    let (gpu_node_sender, mut gpu_node) = watch::channel(GpuNodeState::Unknown);
    let roots = args.host.driver.roots();
    let (runtime_sender, mut container_runtime) = watch::channel(None);
    let mut runtime_watch = Some(RuntimeWatch {
        roots: roots.clone(),
        hardware: hardware.clone(),
        runtime: runtime_sender,
    });
    let hardware_watch = HardwareWatch {
        roots,
        hardware: hardware_sender,
        probe_now: probe_now.clone(),
        release: ReleaseRequest::new(Some(gpu_node.clone()), &args.host.state_dir),
        mps_dir: args.host.mps_dir.clone(),
        alone: watch::Sender::new(false).subscribe(),
        layouts: watch::Sender::new(false).subscribe(),
        driver_events: None,
        metrics: metrics.clone(),
    };
    tasks.spawn(hardware_watch.run());

    let (snapshot_sender, mut snapshot) = watch::channel(None);
    let retirement = LeftoverRetirement {
        args: args.clone(),
        hardware: hardware.clone(),
        snapshot: snapshot_sender,
    };
    tasks.spawn(retirement.run());
    let mut check_lock = interval(CHECK_LOCK);
    check_lock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (report_sender, reports) = watch::channel(None);
    let mut reporting = false;
    let (found_sender, mut found_earlier) = watch::channel(false);
    let mut earlier = Some(EarlierGpuNode {
        node_name: args.node_name.clone(),
        found: found_sender,
    });
    loop {
        tokio::select! {
            signal = signals.next() => match signal {
                SignalRequest::Stop => break,
                SignalRequest::Reload => probe_now.notify_one(),
            },
            _ = hardware.changed() => {}
            _ = gpu_node.changed(), if reporting => {}
            _ = snapshot.changed(), if reporting => {}
            _ = container_runtime.changed(), if reporting => {}
            _ = found_earlier.changed(), if !reporting => {}
            _ = check_lock.tick(), if reporting => {}
            ended = tasks.join_next() => bail!("a task ended unexpectedly: {ended:?}"),
        }
        let Some(hardware) = hardware.borrow_and_update().clone() else {
            continue;
        };
        _ = readiness_sender.send_replace(Ok(()));
        let (answering, silent) = hardware.counts();
        metrics.set_found(answering, silent);
        let lost_all = !hardware.has_gpus() && hardware.is_known();
        if lost_all
            && !reporting
            && let Some(earlier) = earlier.take()
        {
            tasks.spawn(earlier.run());
        }
        if (hardware.has_gpus() || *found_earlier.borrow_and_update()) && !reporting {
            let client = connect().await?;
            // A node without GPUs has nothing to report about its runtime.
            if let Some(runtime_watch) = runtime_watch.take() {
                tasks.spawn(runtime_watch.run());
            }
            let gpu_node_watch = GpuNodeWatch {
                client: client.clone(),
                node_name: args.node_name.clone(),
                gpu_node: gpu_node_sender.clone(),
            };
            tasks.spawn(gpu_node_watch.run());
            let reporter = StatusReporter {
                client,
                node_name: args.node_name.clone(),
                reports: reports.clone(),
                gpu_node: gpu_node.clone(),
                // It is settled at once.
                start_mark: None,
            };
            tasks.spawn(reporter.run());
            reporting = true;
        }
        let governed = match &*gpu_node.borrow_and_update() {
            GpuNodeState::Present(object) => object.spec.config.is_some(),
            GpuNodeState::Unknown | GpuNodeState::Absent => false,
        };
        let may_report = reporting && !governed && !handover::is_held(&args.host.state_dir);
        // A status without the running daemons would make the operator remove the pod that runs them.
        let snapshot = snapshot.borrow_and_update().clone().filter(|_| may_report);
        let runtime = container_runtime.borrow_and_update().clone();
        send_if_new(
            &report_sender,
            snapshot.map(|snapshot| report(&args, &hardware, runtime.as_deref(), &snapshot)),
        );
    }
    info!("stopping");
    Ok(())
}

fn report(
    args: &NodeArgs,
    hardware: &Hardware,
    runtime: Option<&RuntimeStatus>,
    snapshot: &DeviceSnapshot,
) -> StatusReport {
    let status = status(
        &args.identity(),
        StatusInputs {
            hardware,
            snapshot,
            health: &NodeHealth::default(),
            runtime,
            plugin: None,
        },
    );
    // A GpuNode that somebody deletes after the last GPU has gone stays away.
    let create = hardware.has_gpus();
    StatusReport {
        status,
        create,
        is_settled: true,
    }
}
