//! The agent of one node: finds its GPUs and offers them to the kubelet.

mod admin;
mod allocate;
mod assignments;
mod atomic_file;
mod books;
mod channel;
mod checkpoint;
mod cli;
mod clock;
mod config_file;
mod decided;
mod desk;
mod device_plugin_api;
mod directory;
mod discover;
mod driver_events;
mod driver_root;
mod events;
mod file_id;
mod gpu_node;
mod handover;
mod hardware;
mod health;
mod in_force;
mod kubelet;
mod machine;
mod metrics;
mod mps;
mod node_allocatable;
mod nvml;
mod one_thread;
mod operator_config;
mod pci;
mod plugin;
mod plugins;
mod pod_resources_api;
mod podresources;
mod release;
mod report;
mod retire;
mod run;
mod saved_config;
mod signals;
mod socket;
mod tenure;
mod utilisation;

use anyhow::{Context as _, Result};
use clap::Parser as _;
use cli::{Cli, Command};
use std::{io::IsTerminal as _, process::ExitCode};
use tokio::runtime::Builder;
use tracing::error;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let cli = Cli::parse();
    cli.check();
    start_log();
    let result = match cli.command {
        Command::Discover(args) => wait_for(discover::discover(args)),
        Command::Run(args) => wait_for(run::run(args)),
        Command::Mps(args) => wait_for(mps::supervise(args)),
        Command::MpsExec(args) => mps::exec(&args).map(|never| match never {}),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error!(reason = format!("{error:#}"), "agent stops");
            ExitCode::FAILURE
        }
    }
}

fn wait_for(work: impl Future<Output = Result<()>>) -> Result<()> {
    // One thread: the agent waits nearly always, and memory on every node counts.
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start the runtime")?;
    let result = runtime.block_on(work);
    // A driver call that hangs must not keep the process from ending.
    runtime.shutdown_background();
    result
}

/// Text on a terminal, one JSON object per line elsewhere.
fn start_log() {
    // kube_client warns with the whole answer of the API server where it cannot read one, and logs each try while there is
    // none. What became of a call is logged here.
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info,kube_client=off"));
    let logger = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    if std::io::stderr().is_terminal() {
        logger.init();
    } else {
        logger.json().flatten_event(true).init();
    }
}
