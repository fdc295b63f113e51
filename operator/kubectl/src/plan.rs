//! `kubectl gpunode plan`: shows what applying or deleting policies would change on each node, with the operator's own
//! functions.
//!
//! | module | what it does |
//! |---|---|
//! | `difference` | compares each node before and after |
//! | `simulation` | carries out the operator's plan for one node in memory |
//! | `forecast` | counts what a new configuration makes of a node's devices |
//! | `companion_forecast` | counts what it makes of a node's companions |
//! | `resource_forecast` | the count of a resource, as it is and as it would be |
//! | `layout_forecast` | names the MIG instances that go and come, and what delays or prevents that |
//! | `disruption` | finds the changes that disrupt running pods |
//! | `drain_forecast` | finds the pods that the policy's drain evicts for a change of GPUs |
//! | `eviction` | finds the pods that a taint evicts |
//! | `change` | one change of a node |
//! | `text` | prints the plan as a diff per node |

mod change;
mod companion_forecast;
mod difference;
mod disruption;
mod drain_forecast;
mod eviction;
mod forecast;
mod layout_forecast;
mod resource_forecast;
mod simulation;
mod text;

pub use simulation::patched;

use crate::{
    cli::PlanArgs,
    output,
    snapshot::{ClusterSnapshot, DECISIVE_KINDS},
    validate::{self, DocumentReport, KnownKinds, ValidationResult},
};
use difference::ClusterPlan;
use gpunode_crds::GpuNodePolicy;
use jiff::Timestamp;
use kube::ResourceExt;
use std::{
    collections::{BTreeMap, BTreeSet},
    process::ExitCode,
};

/// Exit code of a plan that disrupts running pods or meets an obstacle.
const DISRUPTIVE: u8 = 2;

/// Prints what would change. Where the API server would refuse a policy, prints its problems instead.
///
/// # Errors
/// When a file or the cluster cannot be read, no file has a policy, or the output cannot be written.
pub async fn run(args: &PlanArgs) -> anyhow::Result<ExitCode> {
    let kinds = KnownKinds::new()?;
    let mut reports = validate::read(&kinds, &args.filenames)?;
    if is_refused(&reports) {
        validate::print(&reports, args.output)?;
        return Ok(ExitCode::FAILURE);
    }
    let mut cluster = ClusterSnapshot::read(&args.source, None).await?;
    cluster.require(&DECISIVE_KINDS, "plan")?;
    let mut applied = BTreeMap::new();
    for report in &mut reports {
        if report.object.get("kind").is_none_or(|kind| kind != "GpuNodePolicy") {
            continue;
        }
        let policy: GpuNodePolicy = serde_json::from_value(report.object.clone())?;
        if let Some(old) = cluster.policies.iter().find(|old| old.name_any() == policy.name_any()) {
            refuse_change(&kinds, report, old)?;
        }
        applied.insert(policy.name_any(), policy);
    }
    if is_refused(&reports) {
        validate::print(&reports, args.output)?;
        return Ok(ExitCode::FAILURE);
    }
    anyhow::ensure!(
        !applied.is_empty() || !args.deletions.is_empty(),
        "plan: the files contain no GpuNodePolicy"
    );
    let deleted: BTreeSet<String> = args.deletions.iter().cloned().collect();
    for name in &deleted {
        anyhow::ensure!(
            !applied.contains_key(name),
            "plan: policy {name} is in a file and in --delete; name it only once"
        );
        anyhow::ensure!(
            cluster.policies.iter().any(|policy| policy.name_any() == *name),
            "plan: policy {name} does not exist; list policies with `kubectl get gpunodepolicies`"
        );
    }
    let mut plan = ClusterPlan::of(&cluster, &applied, &deleted, Timestamp::now())?;
    let tainted = plan.nodes_with_evictions();
    if args.source.nodes.is_none() && !tainted.is_empty() {
        cluster.read_pods(&args.source.cluster, &tainted).await;
        plan = ClusterPlan::of(&cluster, &applied, &deleted, Timestamp::now())?;
    }
    output::print(args.output, &plan, |width| text::plan(&plan, width))?;
    Ok(if plan.is_disruptive() {
        ExitCode::from(DISRUPTIVE)
    } else {
        ExitCode::SUCCESS
    })
}

fn is_refused(reports: &[DocumentReport]) -> bool {
    reports.iter().any(|report| report.result == ValidationResult::Invalid)
}

/// Adds the problems of a change from `old`, such as from Enforce to Preview.
fn refuse_change(kinds: &KnownKinds, report: &mut DocumentReport, old: &GpuNodePolicy) -> anyhow::Result<()> {
    report.problems = kinds.validate_change(&report.object, &serde_json::to_value(old)?);
    if !report.problems.is_empty() {
        report.result = ValidationResult::Invalid;
    }
    Ok(())
}
