//! `kubectl gpunode import`: configurations of NVIDIA's programs as policies, without a cluster.
//!
//! | module | what it does |
//! |---|---|
//! | `policies` | policies, or a part of one, from the configurations of a mig-parted file |

mod policies;
#[cfg(test)]
mod tests;

use crate::{
    cli::{ImportArgs, ImportFormat, ImportMigPartedArgs, ImportOutput},
    output,
    validate::read_file,
};
use anyhow::Context;
use gpunode_config::mig_parted_layouts;
use std::process::ExitCode;

/// Prints policies, or the part of one that a configuration becomes.
///
/// # Errors
/// When the file cannot be read or has no counterpart, or the output cannot be written.
pub fn run(args: &ImportArgs) -> anyhow::Result<ExitCode> {
    match &args.format {
        ImportFormat::MigParted(args) => output::write(&mig_parted(args)?)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn mig_parted(args: &ImportMigPartedArgs) -> anyhow::Result<String> {
    let file = read_file(&args.file)?;
    let name = if file.name == "-" { "standard input" } else { &file.name };
    let mut layouts = mig_parted_layouts(&file.contents).with_context(|| format!("import {name}"))?;
    if let Some(chosen) = &args.config {
        let known = layouts.keys().cloned().collect::<Vec<_>>().join(", ");
        layouts.retain(|name, _| name == chosen);
        anyhow::ensure!(
            !layouts.is_empty(),
            "import {name}: it has no configuration {chosen}; it has {known}"
        );
    }
    match args.output {
        ImportOutput::Policy => {
            anyhow::ensure!(
                args.node_selector.is_empty() || layouts.len() <= 1,
                "import {name}: choose one of its configurations with --config for --node-selector; several policies for the same \
                 nodes are a conflict"
            );
            policies::policies(&layouts, args.strategy, &args.node_selector)
        }
        ImportOutput::Layout => {
            let mut layouts = layouts.iter();
            match (layouts.next(), layouts.next()) {
                (Some((name, layout)), None) => policies::part(name, layout, args.strategy),
                _ => anyhow::bail!("import {name}: choose one of its configurations with --config for -o layout"),
            }
        }
    }
}
