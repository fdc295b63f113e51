//! `kubectl gpunode`: arguments in, exit code out.
#![allow(clippy::print_stderr, reason = "a command line program")]

use clap::Parser;
use kubectl_gpunode::{
    cli::{Cli, Command},
    plan, status, uninstall, validate,
};
use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Status(args) => status::run(&args).await,
        Command::Validate(args) => validate::run(&args),
        Command::Plan(args) => plan::run(&args).await,
        Command::Uninstall(args) => uninstall::run(&args).await,
    };
    outcome.unwrap_or_else(|error| {
        anstream::eprintln!("kubectl gpunode: {}", in_words(&error));
        ExitCode::FAILURE
    })
}

/// The error and its causes; libraries repeat a cause in the words of the error that it caused.
fn in_words(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |text, cause| {
        if text.is_empty() {
            cause
        } else if text.contains(&cause) {
            text
        } else {
            format!("{text}: {cause}")
        }
    })
}
