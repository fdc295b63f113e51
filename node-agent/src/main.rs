//! The agent of one node: finds its GPUs and offers them to the kubelet.
//!
//! | module | what it does |
//! |---|---|
//! | `cli` | the command line |
//! | `run` | `gpunode-agent run`: offers the GPUs of a node |
//! | `discover` | `gpunode-agent discover`: reports the GPUs of a node without policy |
//! | `mps` | `gpunode-agent mps`: keeps MPS control daemons running |
//! | `driver` | the hardware and its driver |
//! | `health` | follows whether the devices work |
//! | `configuration` | which configuration is in force |
//! | `devices` | who holds which device, and what may be given out |
//! | `plugin` | device plugin servers and their registration |
//! | `status` | `GpuNode.status` |
//! | `handover` | one registered agent per node, and its successor |
//! | `kubelet` | what the kubelet says of pods and devices |
//! | `api_server` | what the agent reads from the API server and tells it |
//! | `admin` | probes and metrics over HTTP |
//! | `store` | files that outlive the agent |
//! | `runtime` | clock, channels, threads and signals of this process |

mod admin;
mod api_server;
mod cli;
mod configuration;
mod devices;
mod discover;
mod driver;
mod handover;
mod health;
mod kubelet;
mod mps;
mod plugin;
mod run;
mod runtime;
mod status;
mod store;

use anyhow::{Context as _, Result};
use clap::Parser as _;
use cli::{AgentCli, AgentCommand};
use std::{io::IsTerminal as _, process::ExitCode};
use tokio::runtime::Builder;
use tracing::error;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let cli = AgentCli::parse();
    cli.check();
    start_log();
    let result = match cli.command {
        AgentCommand::Discover(args) => wait_for(discover::discover(args)),
        AgentCommand::Run(args) => wait_for(run::run(args)),
        AgentCommand::Mps(args) => wait_for(mps::supervise(args.settings())),
        AgentCommand::MpsExec(args) => mps::exec(&args).map(|never| match never {}),
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
