//! The operator of gpunode: turns `GpuNodePolicy` objects into labels, taints, DaemonSets and agent configurations.
//!
//! What to write is decided by the pure crate `gpunode-plan`; here are the watches, the queue, the writes and the leader
//! election around it. Every task runs for as long as the process; when one ends, the process ends with an error and the
//! kubelet starts it again.

mod admin;
mod cli;
mod events;
mod index;
mod leader_election;
mod lenient;
mod metrics;
mod pods;
mod reconcile;
mod watch;
mod work_queue;
mod write;

use admin::Admin;
use anyhow::{Context, Result, bail};
use clap::Parser;
use cli::Args;
use events::publish_events;
use gpunode_plan::AgentPodSettings;
use http::{HeaderValue, header::USER_AGENT};
use kube::{Client, Config};
use leader_election::{Candidate, Claim, guarded_client};
use metrics::Metrics;
use pods::{Parts, remove_pods};
use reconcile::{Controller, run_workers};
use std::{io::IsTerminal, process::ExitCode, sync::Arc, time::Duration};
use tokio::{
    signal::unix::{SignalKind, signal},
    task::JoinSet,
};
use tracing_subscriber::EnvFilter;
use watch::watch_everything;
use write::Writer;

/// How long the API server may send nothing before it is given up. Longer than any watch lasts.
const READ_TIMEOUT: Duration = Duration::from_secs(310);

/// Two threads, so that planning on one does not delay the renewal of the Lease on the other.
#[tokio::main(worker_threads = 2)]
async fn main() -> ExitCode {
    let args = Args::parse();
    start_log();
    match run(args).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// One line per event: for a person on a terminal, JSON for everything else. The client would warn with whole answers of
/// the API server, and log each try while there is none; what went wrong is logged here.
fn start_log() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info,kube_client=off"));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    if std::io::stderr().is_terminal() {
        log.init();
    } else {
        log.json().flatten_event(true).init();
    }
}

async fn run(args: Args) -> Result<()> {
    let Args {
        agent_image,
        namespace,
        pod_name,
        gpu_labels,
        admin_address,
    } = args;
    let mut config = Config::infer().await.context("find out how to reach the API server")?;
    // Watches and the election have pauses of their own.
    config.default_retry = false;
    // A list on a dead connection would wait for ever. A watch may be silent for 290 s, after which the server ends it;
    // the time that a connection lay idle before a request does not count.
    config.read_timeout = Some(READ_TIMEOUT);
    config.reset_reader_on_write = true;
    config.headers.push((
        USER_AGENT,
        HeaderValue::from_static(concat!("gpunode-operator/", env!("CARGO_PKG_VERSION"))),
    ));
    let client = Client::try_from(config.clone()).context("make a client for the API server")?;
    let metrics = Arc::new(Metrics::new());
    let (mut candidate, claim) = Candidate::new(client.clone(), &namespace, &pod_name);
    let guarded = guarded_client(config, claim.clone()).context("make a client for writes")?;
    let pods = AgentPodSettings {
        namespace: namespace.clone(),
        image: agent_image,
    };
    let (controller, notices) = Controller::new(pods, gpu_labels);
    let controller = Arc::new(controller);
    let admin = Admin {
        controller: controller.clone(),
        heartbeat: candidate.heartbeat(),
        claim: claim.clone(),
        metrics: metrics.clone(),
    };
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;

    let parts = (
        client.clone(),
        guarded.clone(),
        controller.clone(),
        metrics.clone(),
        claim.clone(),
    );
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        admin::serve(admin_address, admin)
            .await
            .with_context(|| format!("serve {admin_address}"))?;
        bail!("serve {admin_address}: the server ended");
    });
    tasks.spawn({
        let controller = controller.clone();
        async move {
            watch_everything(&controller, client).await;
            bail!("watch the cluster: a watch ended");
        }
    });
    tasks.spawn(work(
        controller,
        Writer::new(guarded.clone(), metrics.clone()),
        metrics.clone(),
        claim.clone(),
    ));
    tasks.spawn(async move {
        let (client, guarded, controller, metrics, claim) = parts;
        remove_pods(&Parts {
            controller: &controller,
            client,
            guarded,
            metrics: &metrics,
            claim,
        })
        .await;
        bail!("remove pods: the work ended");
    });
    tasks.spawn(async move {
        publish_events(guarded, &pod_name, claim, &metrics, notices).await;
        bail!("send events: nobody is left to ask for one");
    });

    let stopped = tokio::select! {
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
        error = candidate.run() => Err(error.into()),
        Some(ended) = tasks.join_next() => ended.context("run a task").flatten(),
    };
    tracing::info!("stopping");
    // Every write ends here; what was half done is found again by comparison.
    tasks.shutdown().await;
    candidate.vacate().await;
    stopped
}

/// Works from the moment on that this process leads.
async fn work(controller: Arc<Controller>, writer: Writer, metrics: Arc<Metrics>, mut claim: Claim) -> Result<()> {
    claim.current().await;
    controller.lead().await;
    tracing::info!("caches are warm; working");
    run_workers(&controller, &writer, &metrics, &claim).await;
    bail!("work off the queue: the workers ended");
}
