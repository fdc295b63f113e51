//! `kubectl gpunode explain`: shows why a node has its labels, taints and configuration, with the operator's own functions.
//!
//! | module | what it does |
//! |---|---|
//! | `gpu_layouts` | names the source of each GPU's MIG layout |
//! | `text` | prints an explanation as tables |

mod gpu_layouts;
mod text;

use crate::{
    cli::ExplainArgs,
    cluster::UnreadableObject,
    output,
    snapshot::{ClusterSnapshot, DECISIVE_KINDS},
};
use gpu_layouts::{ExplainedLayout, explained_layouts};
use gpunode_plan::{Explanation, GpuNodeFacts, NodeContext, NodeFacts, explain};
use jiff::Timestamp;
use kube::ResourceExt;
use serde::Serialize;
use std::process::ExitCode;

/// The output for programs.
#[derive(Serialize)]
struct ExplainOutput<'a> {
    #[serde(flatten)]
    explanation: &'a Explanation,
    /// MIG layouts of its GPUs; none where the configuration has no layout.
    #[serde(skip_serializing_if = "<[ExplainedLayout]>::is_empty")]
    mig: &'a [ExplainedLayout],
    /// Unreadable objects, which could change the explanation.
    unreadable: &'a [UnreadableObject],
}

/// Prints why a node has its labels, taints and configuration.
///
/// # Errors
/// When there is no such node, the cluster or the file cannot be read, or the output cannot be written.
pub async fn run(args: &ExplainArgs) -> anyhow::Result<ExitCode> {
    let snapshot = ClusterSnapshot::read(&args.source, Some(&args.node)).await?;
    snapshot.require(&DECISIVE_KINDS, &format!("explain node {}", args.node))?;
    let node = snapshot.nodes.iter().find(|node| node.name_any() == args.node);
    let Some(node) = node else {
        anyhow::bail!(
            "explain node {}: the node does not exist; list nodes with `kubectl get nodes`",
            args.node
        )
    };
    let gpu_node = snapshot
        .gpu_nodes
        .iter()
        .find(|gpu_node| gpu_node.name_any() == args.node);
    let policies = snapshot.policy_set(&snapshot.policies);
    let facts = gpu_node.cloned().map(GpuNodeFacts::of);
    let explanation = explain(
        &policies,
        NodeContext::new(&NodeFacts::of(node), facts.as_ref(), Timestamp::now()),
    );
    let config = gpu_node.and_then(|gpu_node| gpu_node.spec.config.as_ref());
    let layouts = gpu_node.map(explained_layouts).unwrap_or_default();
    let answer = ExplainOutput {
        explanation: &explanation,
        mig: &layouts,
        unreadable: &snapshot.unreadable,
    };
    output::print(args.output, &answer, |width| {
        text::explanation(
            &explanation,
            config.map(|config| (config, layouts.as_slice())),
            &snapshot.unreadable,
            args.all,
            width,
        )
    })?;
    Ok(ExitCode::SUCCESS)
}
