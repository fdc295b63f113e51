//! `kubectl gpunode status`: nodes, policies, rollouts, waiting devices and problems; with node names, every device and its
//! holders.
//!
//! | module | what it does |
//! |---|---|
//! | `fleet` | summarises the nodes and policies of a cluster |
//! | `node` | summarises one node |
//! | `problems` | describes the problems of one node, with the next step |
//! | `faults` | names and describes faults of devices |
//! | `mig` | summarises how far the GPUs of a node are with their MIG layouts |
//! | `resources` | compares what an agent advertises with what the Node has |
//! | `devices` | summarises the devices of one node and their holders |
//! | `in_use` | sums memory, cores and shares in use |
//! | `node_usage` | what the containers on a node use, or why it cannot be told |
//! | `usage` | reads what containers use from the agents |
//! | `check` | checks that gpunode runs |
//! | `discovery` | counts how far an upgrade of discovery is |
//! | `amount` | a part of a whole, such as 3 of 10 shares |
//! | `policy` | summarises one policy |
//! | `rollout` | counts how far each policy's configuration is |
//! | `text` | prints a summary as tables |
//! | `watch` | prints the state again when it changes |

mod amount;
mod check;
mod devices;
mod discovery;
mod faults;
mod fleet;
mod in_use;
mod mig;
mod node;
mod node_usage;
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
    snapshot::operator::{self, OperatorRules},
};
use discovery::DiscoveryProgress;
use fleet::FleetSummary;
use gpunode_crds::{GpuNode, GpuNodePolicy};
use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::{DaemonSet, Deployment},
    core::v1::Node,
};
use kube::{Client, ResourceExt, api::ListParams};
use std::{
    process::ExitCode,
    time::{Duration, Instant},
};
use usage::read_usage;
use watch::{WatchOutput, watch};

/// Namespace of the agents, unless that of the operator is known.
const NAMESPACE: &str = "gpunode-system";
/// Longest wait of `--check`: an operator that starts is ready in seconds, and its agents some seconds later.
const CHECK_LIMIT: Duration = Duration::from_secs(30);
/// Time between two checks.
const CHECK_PAUSE: Duration = Duration::from_secs(1);

/// Prints the state of the cluster, once or each time it changes. Problems are part of the output and not a failure.
///
/// # Errors
/// When the first read of the cluster fails, or the output cannot be written.
pub async fn run(args: &StatusArgs) -> anyhow::Result<ExitCode> {
    let client = cluster::connect(&args.cluster).await?;
    if args.watch {
        let place = match args.output {
            OutputFormat::Table | OutputFormat::Wide if output::is_screen() => WatchOutput::Screen,
            OutputFormat::Table | OutputFormat::Wide => WatchOutput::Log,
            OutputFormat::Json | OutputFormat::Yaml => WatchOutput::Documents,
        };
        watch(place, async || read_state(&client, args).await).await?;
    } else {
        let problem = if args.check {
            what_does_not_run(&client).await?
        } else {
            None
        };
        output::write(&read_state(&client, args).await?)?;
        if let Some(problem) = problem {
            anyhow::bail!("status --check: {problem}");
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Waits until gpunode runs, and returns why it does not.
async fn what_does_not_run(client: &Client) -> anyhow::Result<Option<String>> {
    let end = Instant::now() + CHECK_LIMIT;
    loop {
        let selected = |labels: &str| ListParams::default().labels(labels);
        let operators = cluster::list_some::<Deployment>(client, selected(operator::OPERATOR)).await?;
        let discovery = cluster::list_some::<DaemonSet>(client, selected(discovery::SELECTOR)).await?;
        let problem = check::what_does_not_run(&operators.objects, &discovery.objects);
        if problem.is_none() || Instant::now() >= end {
            return Ok(problem);
        }
        tokio::time::sleep(CHECK_PAUSE).await;
    }
}

/// Reads the state of the cluster and formats it.
async fn read_state(client: &Client, args: &StatusArgs) -> anyhow::Result<String> {
    // Policies come first: their error is the one to show when gpunode is not installed.
    let policies = cluster::list_permitted::<GpuNodePolicy>(client, ListParams::default()).await?;
    let gpu_nodes = cluster::list_permitted::<GpuNode>(client, ListParams::default()).await?;
    if policies.is_forbidden() && gpu_nodes.is_forbidden() {
        let forbidden = [policies.unreadable.clone(), gpu_nodes.unreadable.clone()].concat();
        cluster::require(
            &forbidden,
            &["GpuNodePolicy", "GpuNode"],
            "show the state of the cluster",
        )?;
    }
    let nodes = cluster::list_permitted::<Node>(client, ListParams::default()).await?;
    let selected = ListParams::default().labels(operator::OPERATOR);
    // Without it, the policies' conditions still name images that are not allowed.
    let operators = cluster::list_some::<Deployment>(client, selected).await.ok();
    let operator = operators.as_ref().and_then(|found| found.objects.first());
    let namespace = operator.and_then(ResourceExt::namespace);
    let rules = operator.map(OperatorRules::of);
    let rules = rules.unwrap_or_default();
    let mut fleet = FleetSummary::new(&gpu_nodes, &nodes, &policies, rules, Timestamp::now());
    let selected = ListParams::default().labels(discovery::SELECTOR);
    let daemonsets = cluster::list_permitted::<DaemonSet>(client, selected).await?;
    fleet.discovery = DiscoveryProgress::of(&daemonsets.objects);
    let mut unreadable = daemonsets.unreadable;
    let forbidden = unreadable.iter_mut().filter(|it| it.is_every());
    forbidden.for_each(|it| it.message.push_str("; the progress of discovery is left out"));
    fleet.unreadable.extend(unreadable);
    let text = if args.nodes.is_empty() {
        output::render(args.output, &fleet, |width| text::fleet(&fleet, width))?
    } else {
        let mut fleet = fleet.only(&args.nodes, &nodes)?;
        // Figures that always change would make each look of a watch another state.
        if !args.watch {
            let namespace = namespace.as_deref().unwrap_or(NAMESPACE);
            read_usage(client, namespace, &mut fleet.nodes, &gpu_nodes.objects).await;
        }
        output::render(args.output, &fleet, |width| text::nodes(&fleet, width))?
    };
    let separator = if args.watch && args.output == OutputFormat::Yaml {
        "---\n"
    } else {
        ""
    };
    Ok(format!("{separator}{text}"))
}
