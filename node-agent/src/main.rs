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

use anyhow::Result;
use clap::Parser as _;
use cli::{AgentCli, AgentCommand};
use gpunode_process::{exit_code, start_log};
use std::process::ExitCode;
use tokio::runtime::Builder;

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
    exit_code("agent", result)
}

/// Runs `work` on one thread: the agent nearly always waits, and memory on every node counts.
fn wait_for(work: impl Future<Output = Result<()>>) -> Result<()> {
    gpunode_process::run(Builder::new_current_thread(), work)
}
