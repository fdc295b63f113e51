//! `gpunode-bench-fleet`: measures the figures of `docs/scale.md` on a running control plane, and compares them with their
//! targets. Exits with 1 if one is missed.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "what the program is for")]

use anyhow::{Context, Result, ensure};
use clap::{Parser, ValueEnum};
use gpunode_fleet_tests::{
    FLEET_FIGURES, Fleet, configuration_change, expired_watches, failover, figure_table, filled, growth_table, idle,
    index_table, label_change, many_policies, number, read_index_figures, refusals, scale_row, scale_table,
    silent_agents, slow_api_server,
};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

/// Pairs of a change by the operators and one by a bare client.
const PAIRS: usize = 3;
const IDLE: Duration = Duration::from_mins(1);
/// Numbers of nodes and of policies of the table.
const TABLE_NODES: [usize; 4] = [10, 100, 1000, 5000];
const TABLE_POLICIES: [usize; 3] = [1, 10, 50];

/// Measures gpunode on a fleet of simulated nodes.
#[derive(Parser)]
struct BenchArgs {
    /// Name of a running cluster without controllers.
    #[arg(long, default_value = "fleet")]
    cluster: String,
    /// Number of nodes.
    #[arg(long, default_value_t = 5000)]
    nodes: usize,
    /// Scenarios to run, separated by commas; all of them if empty.
    #[arg(long, value_delimiter = ',')]
    only: Vec<Scenario>,
    /// One of so many agents that never answers, at least one.
    #[arg(long, default_value_t = 500)]
    silent_one_in: usize,
    /// Measures the table of numbers of nodes and policies instead.
    #[arg(long)]
    table: bool,
    /// Reads the output of the measurement of the index instead, for which no cluster is needed.
    #[arg(long)]
    index: Option<PathBuf>,
    /// Document to fill: by the table, by the figures of the index, or by those of all scenarios.
    #[arg(long)]
    document: Option<PathBuf>,
}

/// A scenario of the bench.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Scenario {
    /// A label and a taint of all nodes, against a bare client.
    Labels,
    /// Fifty policies edited at once.
    Policies,
    /// A restart of the API server.
    Expired,
    /// A leader that is killed or stopped.
    Failover,
    /// Lists that the API server refuses.
    Refusals,
    /// An API server that is slow to answer.
    Slow,
    /// Heartbeats alone, which go on afterwards.
    Idle,
    /// A configuration of all agents. Towards the end, since resources that are gone leave the records minutes later.
    Configuration,
    /// The same with agents that never answer.
    Silent,
}

fn main() -> Result<()> {
    let args = BenchArgs::parse();
    if let Some(path) = &args.index {
        return tell_index(path, args.document.as_deref());
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("start a runtime")?;
    // On this thread, which lives as long as the operators.
    runtime.block_on(async {
        if args.table {
            Box::pin(measure_table(&args)).await
        } else {
            Box::pin(measure_figures(&args)).await
        }
    })
}

async fn measure_figures(args: &BenchArgs) -> Result<()> {
    let mut fleet = Fleet::on_cluster(&args.cluster, args.nodes).await?;
    let mut measured = BTreeMap::new();
    let mut failures = Vec::new();
    for scenario in Scenario::value_variants() {
        if !args.only.is_empty() && !args.only.contains(scenario) {
            continue;
        }
        println!("\n######## {scenario:?}");
        // One that fails leaves its figures missing, and the others go on.
        if let Err(error) = Box::pin(measure(&mut fleet, *scenario, args, &mut measured)).await {
            println!("failed: {error:#}");
            failures.push(format!("{scenario:?}: {error:#}"));
        }
        fleet.clean().await?;
    }
    println!("\n######## figures, {} nodes", args.nodes);
    let mut missed = Vec::new();
    for figure in FLEET_FIGURES {
        if let Some(value) = measured.get(figure.key) {
            println!("{}", figure.line(*value));
            if !figure.is_met(*value) {
                missed.push(figure.key);
            }
        }
    }
    if let Some(path) = args.document.as_ref().filter(|_| args.only.is_empty()) {
        fill(path, "the figures", &figure_table(&measured))?;
    }
    ensure!(failures.is_empty(), "failed: {}", failures.join("; "));
    ensure!(missed.is_empty(), "missed: {}", missed.join(", "));
    Ok(())
}

async fn measure(
    fleet: &mut Fleet,
    scenario: Scenario,
    args: &BenchArgs,
    measured: &mut BTreeMap<&'static str, f64>,
) -> Result<()> {
    match scenario {
        Scenario::Labels => {
            let found = label_change(fleet, PAIRS).await?;
            println!("{found:#?}");
            measured.extend([
                ("label-ratio", found.ratio),
                ("label-writes", number(found.most_writes)),
                ("leader-cpu", found.leader),
                ("standby-cpu", found.standby),
                ("memory-steady", found.resident),
            ]);
        }
        Scenario::Policies => {
            let found = many_policies(fleet).await?;
            println!("{found:#?}");
            measured.extend([
                ("memory-policies", found.resident),
                ("lease-late", found.lease_late),
                ("livez-p99", found.livez),
                ("served-p99", found.served),
            ]);
        }
        Scenario::Expired => {
            let found = expired_watches(fleet).await?;
            println!("{found:#?}");
            measured.extend([
                ("memory-peak", found.start_peak.max(found.expired_peak)),
                ("memory-after", found.resident_ratio),
                ("expired-ratio", found.ratio),
                ("expired-writes", number(found.writes)),
            ]);
        }
        Scenario::Configuration => {
            let found = configuration_change(fleet).await?;
            println!("{found:#?}");
            measured.extend([
                ("configuration-spec-writes", found.spec_writes_per_node),
                ("configuration-status-writes", found.status_writes_per_node),
                ("configuration-ratio", found.ratio),
            ]);
        }
        Scenario::Silent => {
            let found = silent_agents(fleet, args.silent_one_in).await?;
            println!("{found:#?}");
            measured.extend([
                ("silent-spec-writes", number(found.most_spec_writes)),
                ("silent-budget", found.budget),
            ]);
        }
        Scenario::Slow => {
            let found = slow_api_server(fleet).await?;
            println!("{found:#?}");
            measured.extend([
                ("slow-lease", found.renewals),
                ("slow-livez-p99", found.livez),
                ("slow-requests", number(found.most_requests)),
            ]);
        }
        Scenario::Failover => {
            let found = failover(fleet, 3).await?;
            println!("{found:#?}");
            measured.extend([
                ("failover-restart", found.restart_ratio),
                ("failover-standby", found.standby),
                ("failover-stop", found.hand_over),
                ("failover-writes", number(found.most_writes)),
            ]);
        }
        Scenario::Refusals => println!("{:#?}", refusals(fleet).await?),
        Scenario::Idle => {
            let found = idle(fleet, IDLE).await?;
            println!("{found:#?}");
            measured.insert("idle-cpu", found.leader);
        }
    }
    Ok(())
}

async fn measure_table(args: &BenchArgs) -> Result<()> {
    let mut rows = Vec::new();
    let mut fleet = Fleet::on_cluster(&args.cluster, TABLE_NODES[0]).await?;
    for nodes in TABLE_NODES {
        fleet.resize(nodes).await?;
        for policies in TABLE_POLICIES {
            println!("\n######## {nodes} nodes, {policies} policies");
            let row = scale_row(&fleet, policies).await?;
            println!("{row:?}");
            rows.push(row);
        }
    }
    let table = scale_table(&rows);
    let growth = growth_table(&rows);
    println!("{table}\n{growth}");
    if let Some(path) = &args.document {
        fill(path, "the table", &table)?;
        fill(path, "the growth", &growth)?;
    }
    Ok(())
}

/// Prints what the measurement of the index printed as a table, and fills the document.
fn tell_index(output: &Path, document: Option<&Path>) -> Result<()> {
    let text = fs::read_to_string(output).with_context(|| format!("read {}", output.display()))?;
    let measured = read_index_figures(&text).with_context(|| format!("read the figures in {}", output.display()))?;
    let table = index_table(&measured);
    println!("{table}");
    document.map_or(Ok(()), |path| fill(path, "the index", &table))
}

fn fill(path: &Path, name: &str, text: &str) -> Result<()> {
    let document = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    let document = filled(&document, name, text).with_context(|| format!("fill {}", path.display()))?;
    fs::write(path, document).with_context(|| format!("write {}", path.display()))
}
