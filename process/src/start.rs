//! The log, the runtime and the exit code of a program.

use anyhow::{Context as _, Result};
use std::{io::IsTerminal as _, process::ExitCode};
use tokio::runtime::Builder;
use tracing::error;
use tracing_subscriber::EnvFilter;

/// Starts the log on standard error: text on a terminal, one JSON object per line elsewhere.
pub fn start_log() {
    // The log of kube_client holds whole responses, and a line for each try while the API server is away. The callers log
    // what failed.
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

/// Runs `work` to its end on the runtime that `threads` builds.
pub fn run(mut threads: Builder, work: impl Future<Output = Result<()>>) -> Result<()> {
    let runtime = threads.enable_all().build().context("start the runtime")?;
    let result = runtime.block_on(work);
    // A call that hangs must not keep the process from ending.
    runtime.shutdown_background();
    result
}

/// Logs the error of a program that ends, and returns its exit code.
pub fn exit_code(program: &str, result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error!(reason = format!("{error:#}"), "{program} stops");
            ExitCode::FAILURE
        }
    }
}
