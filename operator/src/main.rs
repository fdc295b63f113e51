//! The operator of gpunode: turns `GpuNodePolicy` objects into labels, taints, DaemonSets and agent configurations.
//!
//! The pure crate `gpunode-plan` decides what to write; this crate has the watches, the index, the writes and the leader
//! election around it. A watch sends an update to the index; the reconciler plans the touched nodes again and queues their keys;
//! on the leader it computes the write of each key and hands it to a worker, which sends the result back as a message.
//!
//! | module | what it does |
//! |---|---|
//! | `cli` | command line arguments |
//! | `run` | makes the tasks and joins them |
//! | `watch` | task: watches the cluster and sends updates to the index |
//! | `index` | what exists, what is planned, and what a change leads to; no IO |
//! | `reconcile` | task: changes the index, computes writes while this process leads |
//! | `write` | task: carries out writes and sends results to the index |
//! | `pods` | tasks: evict holders of unhealthy devices, delete rejected pods |
//! | `events` | task: sends events |
//! | `leader_election` | task: holds the Lease, so that one replica writes at a time |
//! | `admin` | task: serves `/livez`, `/readyz` and `/metrics` |
//! | `metrics` | Prometheus metrics |
//! | `work_queue` | queue of keys with due times and growing pauses |
//! | `lenient` | parses objects of which a part is malformed |

mod admin;
mod cli;
mod events;
mod index;
mod leader_election;
mod lenient;
mod metrics;
mod pods;
mod reconcile;
mod run;
mod watch;
mod work_queue;
mod write;

use clap::Parser;
use cli::OperatorArgs;
use std::{io::IsTerminal, process::ExitCode};
use tracing_subscriber::EnvFilter;

/// Two threads, so that planning on one does not delay the renewal of the Lease on the other.
#[tokio::main(worker_threads = 2)]
async fn main() -> ExitCode {
    let args = OperatorArgs::parse();
    start_log();
    match run::run(args).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Logs one line per event: text on a terminal, JSON elsewhere. The client's own log is off: it holds whole responses, and a line
/// for each try while the API server is away. The operator logs what failed.
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
