//! `kubectl gpunode`: arguments in, exit code out.
#![allow(clippy::print_stderr, reason = "a command line program")]

use clap::Parser;
use kubectl_gpunode::{
    cli::{Cli, PluginCommand},
    completion, doctor, dump, explain, export, import, mig, plan, status, topo, uninstall, validate,
};
use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = match Cli::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Ignores a closed output. Code 1 replaces clap's 2, which means a disruptive plan.
            let _ = error.print();
            return if error.use_stderr() {
                ExitCode::FAILURE
            } else {
                ExitCode::SUCCESS
            };
        }
    };
    let outcome = match arguments.command {
        PluginCommand::Status(args) => status::run(&args).await,
        PluginCommand::Validate(args) => validate::run(&args),
        PluginCommand::Plan(args) => plan::run(&args).await,
        PluginCommand::Explain(args) => explain::run(&args).await,
        PluginCommand::Doctor(args) => doctor::run(&args).await,
        PluginCommand::Topo(args) => topo::run(&args).await,
        PluginCommand::Mig(args) => mig::run(&args),
        PluginCommand::Import(args) => import::run(&args),
        PluginCommand::Export(args) => export::run(&args).await,
        PluginCommand::Dump(args) => dump::run(&args).await,
        PluginCommand::Completion(args) => completion::run(&args),
        PluginCommand::Complete(args) => completion::complete(&args),
        PluginCommand::Uninstall(args) => uninstall::run(&args).await,
    };
    outcome.unwrap_or_else(|error| {
        anstream::eprintln!("kubectl gpunode: {}", error_text(&error));
        ExitCode::FAILURE
    })
}

/// Joins an error and its causes, and leaves out a cause that the error already contains.
fn error_text(error: &anyhow::Error) -> String {
    error
        .chain()
        .map(ToString::to_string)
        .fold(String::new(), |text, cause| {
            if text.is_empty() {
                cause
            } else if text.contains(&cause) {
                text
            } else {
                format!("{text}: {cause}")
            }
        })
}
