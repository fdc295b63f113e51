//! `kubectl gpunode status`: the fleet in one table, then the policies, what waits and what stands in their way; of single
//! nodes who holds which device.

mod amount;
mod devices;
mod fleet;
mod node;
mod policy;
mod problems;
mod resources;
mod rollout;
#[cfg(test)]
mod sample;
mod text;
mod usage;
mod watch;

use crate::{
    cli::{OutputFormat, StatusArgs},
    cluster, output,
};
use fleet::FleetSummary;
use gpunode_crds::{GpuNode, GpuNodePolicy};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use std::process::ExitCode;
use watch::{WatchOutput, watch};

/// Prints the state of the cluster, once or whenever it changes; its problems are part of what is shown, and no failure.
///
/// # Errors
/// When the cluster cannot be read at first or the output cannot be written.
pub async fn run(args: &StatusArgs) -> anyhow::Result<ExitCode> {
    let client = cluster::connect(&args.cluster).await?;
    if args.watch {
        let place = match args.output {
            OutputFormat::Table if output::is_screen() => WatchOutput::Screen,
            OutputFormat::Table => WatchOutput::Log,
            OutputFormat::Json | OutputFormat::Yaml => WatchOutput::Documents,
        };
        watch(place, async || look(&client, args).await).await?;
    } else {
        output::write(&look(&client, args).await?)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The state of the cluster, as it is to be shown.
async fn look(client: &Client, args: &StatusArgs) -> anyhow::Result<String> {
    // Policies come first: when gpunode is not installed, that is the error to show.
    let policies = cluster::list::<GpuNodePolicy>(client).await?;
    let gpu_nodes = cluster::list::<GpuNode>(client).await?;
    let nodes = cluster::list::<Node>(client).await?;
    let fleet = FleetSummary::new(&gpu_nodes, &nodes, &policies, Timestamp::now());
    let text = if args.nodes.is_empty() {
        output::render(args.output, &fleet, || text::fleet(&fleet))?
    } else {
        let fleet = fleet.only(&args.nodes, &nodes)?;
        output::render(args.output, &fleet, || text::nodes(&fleet))?
    };
    let separator = if args.watch && args.output == OutputFormat::Yaml {
        "---\n"
    } else {
        ""
    };
    Ok(format!("{separator}{text}"))
}
