//! `kubectl gpunode explain`: why a node has its labels, taints and configuration, by the functions that the operator uses.

mod text;

use crate::{cli::ExplainArgs, cluster::UnreadableObject, output, snapshot::ClusterSnapshot};
use gpunode_plan::{Explanation, NodeFacts, explain};
use jiff::Timestamp;
use kube::ResourceExt;
use serde::Serialize;
use std::process::ExitCode;

/// What programs are told.
#[derive(Serialize)]
struct ExplainOutput<'a> {
    #[serde(flatten)]
    explanation: &'a Explanation,
    /// What could not be read and may explain it differently.
    unreadable: &'a [UnreadableObject],
}

/// Prints why a node looks as it does.
///
/// # Errors
/// When there is no such node, the cluster or the file cannot be read, or the output cannot be written.
pub async fn run(args: &ExplainArgs) -> anyhow::Result<ExitCode> {
    let snapshot = ClusterSnapshot::read(&args.source, Some(&args.node)).await?;
    let node = snapshot.nodes.iter().find(|node| node.name_any() == args.node);
    let Some(node) = node else {
        anyhow::bail!(
            "explain node {}: there is no such node; `kubectl get nodes` lists them",
            args.node
        )
    };
    let gpu_node = snapshot
        .gpu_nodes
        .iter()
        .find(|gpu_node| gpu_node.name_any() == args.node);
    let policies = snapshot.policy_set(&snapshot.policies);
    let explanation = explain(&policies, &NodeFacts::of(node), gpu_node, Timestamp::now());
    let config = gpu_node.and_then(|gpu_node| gpu_node.spec.config.as_ref());
    let answer = ExplainOutput {
        explanation: &explanation,
        unreadable: &snapshot.unreadable,
    };
    output::print(args.output, &answer, || {
        text::explanation(&explanation, config, &snapshot.unreadable)
    })?;
    Ok(ExitCode::SUCCESS)
}
