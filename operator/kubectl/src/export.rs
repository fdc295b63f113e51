//! `kubectl gpunode export`: what a node has in the form of a configuration.
//!
//! | module | what it does |
//! |---|---|
//! | `node_layout` | the groups of a layout that a node has |

mod node_layout;
#[cfg(test)]
mod tests;

use crate::{
    cli::{ExportArgs, ExportMigArgs, ExportOutput, ExportSubject},
    cluster, output,
    snapshot::ClusterSnapshot,
};
use anyhow::Context;
use gpunode_config::{AgentConfig, MigConfig, MigStrategy, mig_parted_file};
use gpunode_crds::GpuNode;
use kube::ResourceExt;
use node_layout::{GroupSelection, node_layout};
use std::process::ExitCode;

/// Name of the configuration in a file of mig-parted, as `nvidia-mig-parted export` names it.
const CURRENT: &str = "current";

/// Prints the layout of a node.
///
/// # Errors
/// When there is no such node or none of its GPUs has MIG, the cluster or the file cannot be read, or the output cannot be
/// written.
pub async fn run(args: &ExportArgs) -> anyhow::Result<ExitCode> {
    let ExportSubject::Mig(args) = &args.subject;
    let snapshot = ClusterSnapshot::read(&args.source, Some(&args.node)).await?;
    snapshot.require(&["GpuNode"], &format!("export MIG of node {}", args.node))?;
    for object in snapshot.unreadable.iter().filter(|object| object.name == args.node) {
        cluster::warn(object);
    }
    let mut gpu_nodes = snapshot.gpu_nodes.iter();
    let Some(gpu_node) = gpu_nodes.find(|gpu_node| gpu_node.name_any() == args.node) else {
        anyhow::bail!(
            "export MIG of node {}: no agent reports a GPU there; list GPU nodes with `kubectl gpunode status`",
            args.node
        )
    };
    let (text, warnings) = exported(gpu_node, args)?;
    for warning in &warnings {
        output::warn(warning);
    }
    output::write(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the layout of a node as text, and what it lacks.
fn exported(gpu_node: &GpuNode, args: &ExportMigArgs) -> anyhow::Result<(String, Vec<String>)> {
    let status = gpu_node.status.clone().unwrap_or_default();
    let selection = match args.output {
        ExportOutput::Layout => GroupSelection::Products,
        ExportOutput::MigParted => GroupSelection::Indices,
    };
    let found = node_layout(&status.gpus, selection);
    anyhow::ensure!(
        !found.groups.is_empty(),
        "export MIG of node {}: none of its GPUs has MIG",
        args.node
    );
    let text = match args.output {
        ExportOutput::MigParted => mig_parted_file(CURRENT, &found.groups)?,
        ExportOutput::Layout => {
            let is_divided = found.groups.iter().any(|group| group.disabled.is_none());
            let otherwise = if is_divided {
                MigStrategy::Mixed
            } else {
                MigStrategy::None
            };
            let reported = status.mig_strategy.filter(|strategy| *strategy != MigStrategy::None);
            let config = AgentConfig {
                mig: Some(MigConfig {
                    strategy: reported.unwrap_or(otherwise),
                    layout: found.groups,
                }),
                ..AgentConfig::default()
            };
            serde_yaml::to_string(&config).context("write the layout")?
        }
    };
    Ok((text, found.warnings))
}
