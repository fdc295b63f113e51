//! `kubectl gpunode status`: the fleet in one table, then the policies, what waits and what stands in their way; of single
//! nodes who holds which device.

mod devices;
mod fleet;
mod node;
mod offered;
mod policy;
#[cfg(test)]
mod sample;
mod text;

use crate::{cli::StatusArgs, cluster, output};
use fleet::Fleet;
use gpunode_crds::{GpuNode, GpuNodePolicy};
use k8s_openapi::api::core::v1::Node;
use std::process::ExitCode;

/// Prints the state of the cluster; its problems are part of what is shown, and no failure.
///
/// # Errors
/// When the cluster cannot be read or the output cannot be written.
pub async fn run(args: &StatusArgs) -> anyhow::Result<ExitCode> {
    let client = cluster::connect(&args.cluster).await?;
    // Policies come first: when gpunode is not installed, that is the error to show.
    let policies = cluster::list::<GpuNodePolicy>(&client).await?;
    let gpu_nodes = cluster::list::<GpuNode>(&client).await?;
    let nodes = cluster::list::<Node>(&client).await?;
    let fleet = Fleet::new(&gpu_nodes, &nodes, &policies);
    if args.nodes.is_empty() {
        output::print(args.output, &fleet, || text::fleet(&fleet))?;
    } else {
        let fleet = fleet.only(&args.nodes, &nodes)?;
        output::print(args.output, &fleet, || text::nodes(&fleet))?;
    }
    Ok(ExitCode::SUCCESS)
}
