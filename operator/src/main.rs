//! The operator of gpunode: turns `GpuNodePolicy` objects into labels, taints, DaemonSets and agent configurations.
//!
//! The pure crate `gpunode-plan` decides what to write; this crate has the watches, the index, the writes and the
//! leader election around it. A watch sends an update to the index; on the leader the reconciler queues the touched
//! nodes, and on a thread of its own it plans each when its key has its turn. A worker carries the write out and sends
//! the result back as a message.
//!
//! | module | what it does |
//! |---|---|
//! | `cli` | command line arguments |
//! | `run` | makes the threads and tasks and joins them |
//! | `threads` | threads with a runtime of their own |
//! | `watch` | task: watches the cluster and sends updates to the index |
//! | `index` | what exists, what is planned, and what a change leads to; no IO |
//! | `reconcile` | task: changes the index, computes writes while this process leads |
//! | `write` | task: carries out writes and sends results to the index |
//! | `pods` | tasks: evict holders of unhealthy devices, delete rejected pods |
//! | `audit` | task: reports writes that took something away from somebody |
//! | `events` | task: sends events |
//! | `leader_election` | task of the thread `lead`: holds the Lease, so that one replica writes at a time |
//! | `admin` | task of the thread `lead`: serves `/livez`, `/readyz` and `/metrics` |
//! | `metrics` | Prometheus metrics |
//! | `work_queue` | queue of keys with two classes, due times and growing pauses |
//! | `memory` | task: gives memory back to the machine after a peak |
//! | `lenient` | parses objects of which a part is malformed |
//! | `watched` | keeps of an object what planning reads |
//! | `written_versions` | versions of objects that writes have brought already, and kinds that they want listed |

mod admin;
mod audit;
mod cli;
mod events;
mod index;
mod leader_election;
mod lenient;
mod memory;
mod metrics;
mod pods;
mod reconcile;
mod run;
mod threads;
mod watch;
mod watched;
mod work_queue;
mod write;
mod written_versions;

use clap::Parser;
use cli::OperatorArgs;
use gpunode_process::{exit_code, start_log};
use std::process::ExitCode;
use tokio::runtime::Builder;

fn main() -> ExitCode {
    memory::set_up();
    let args = OperatorArgs::parse();
    start_log();
    // One thread for watches and writes; planning and the Lease have threads of their own.
    exit_code(
        "operator",
        gpunode_process::run(Builder::new_current_thread(), run::run(args)),
    )
}
