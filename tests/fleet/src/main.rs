//! `gpunode-bench-fleet`: measures the figures of `docs/scale.md` on a running control plane, and compares them with their
//! targets. Exits with 1 if one is missed.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "what the program is for")]

use anyhow::{Context, Result, ensure};
use clap::{Parser, ValueEnum};
use gpunode_fleet_tests::{
    FLEET_FIGURES, Fleet, configuration_change, expired_watches, failover, figure_table, filled, idle, label_change,
    many_policies, number, refusals, scale_row, scale_table,
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
    /// Measures the table of numbers of nodes and policies instead.
    #[arg(long)]
    table: bool,
    /// Document to fill: by the table, or by the figures of all scenarios.
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
    /// Heartbeats alone, which go on afterwards.
    Idle,
    /// One change of configuration. Last, since resources that are gone leave the records minutes later.
    Configuration,
}

fn main() -> Result<()> {
    let args = BenchArgs::parse();
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
        if let Err(error) = Box::pin(measure(&mut fleet, *scenario, &mut measured)).await {
            failures.push(format!("{scenario:?}: {error:#}"));
        }
        clean(&fleet).await?;
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

/// Takes the policies back with operators that work.
async fn clean(fleet: &Fleet) -> Result<()> {
    let _pair = fleet.start_pair().await?;
    fleet.clean().await
}

async fn measure(fleet: &mut Fleet, scenario: Scenario, measured: &mut BTreeMap<&'static str, f64>) -> Result<()> {
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
        Scenario::Failover => {
            let found = failover(fleet).await?;
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
    println!("{table}");
    match &args.document {
        Some(path) => fill(path, "the table", &table),
        None => Ok(()),
    }
}

fn fill(path: &Path, name: &str, text: &str) -> Result<()> {
    let document = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    let document = filled(&document, name, text).with_context(|| format!("fill {}", path.display()))?;
    fs::write(path, document).with_context(|| format!("write {}", path.display()))
}
