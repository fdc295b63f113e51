//! The agent of one node: finds its GPUs and advertises them to the kubelet.
//!
//! | module | what it does |
//! |---|---|
//! | `cli` | the command line |
//! | `run` | `gpunode-agent run`: advertises the GPUs of a node to its kubelet |
//! | `discover` | `gpunode-agent discover`: reports the GPUs of a node that has no policy |
//! | `inventory` | `gpunode-agent inventory`: prints the GPUs of a node |
//! | `inspect` | `gpunode-agent inspect`: says if pods of a node would get GPUs, and what to do |
//! | `mps` | `gpunode-agent mps`: keeps MPS control daemons running |
//! | `driver` | the hardware and the NVIDIA driver |
//! | `container_runtime` | the container runtime and its settings |
//! | `gpu_processes` | reports processes on GPUs that no container accounts for |
//! | `usage` | reads what containers use of the GPUs that they hold |
//! | `health` | monitors the devices for faults |
//! | `configuration` | decides which configuration is in force |
//! | `mig` | gives GPUs their MIG layouts |
//! | `companions` | finds the files of companions |
//! | `cdi` | the CDI file, by which container runtimes give containers their devices |
//! | `devices` | allocates devices and tracks their holders |
//! | `plugin` | device plugin servers and their registration |
//! | `status` | `GpuNode.status` |
//! | `handover` | passes the node's registration from one agent to the next |
//! | `kubelet` | reads pods and devices from the kubelet |
//! | `api_server` | reads objects from the API server and writes events |
//! | `admin` | serves probes and metrics over HTTP |
//! | `store` | files that outlive the agent |
//! | `runtime` | clock, channels, threads and signals of the process |

mod admin;
mod api_server;
mod cdi;
mod cli;
mod companions;
mod configuration;
mod container_runtime;
mod devices;
mod discover;
mod driver;
#[cfg(test)]
mod fuzz;
mod gpu_processes;
mod handover;
mod health;
mod inspect;
mod inventory;
mod kubelet;
mod mig;
mod mps;
mod plugin;
mod run;
mod runtime;
mod status;
mod store;
mod usage;

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
        AgentCommand::Inspect(args) => wait_for(inspect::inspect(args)),
        AgentCommand::Inventory(args) => inventory::print(&args.roots()),
        AgentCommand::Mps(args) => wait_for(mps::supervise(args.settings())),
        AgentCommand::MpsExec(args) => mps::exec(&args).map(|never| match never {}),
    };
    exit_code("agent", result)
}

/// Runs `work` on one thread: the agent mostly waits, and memory counts on every node.
fn wait_for(work: impl Future<Output = Result<()>>) -> Result<()> {
    gpunode_process::run(Builder::new_current_thread(), work)
}
