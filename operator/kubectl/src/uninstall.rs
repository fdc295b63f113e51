//! `kubectl gpunode uninstall`: removes gpunode from the cluster with the caller's own rights, whether the operator runs or
//! not, and whatever was removed before.
//!
//! | module | what it does |
//! |---|---|
//! | `survey` | lists what a removal would delete, and what it would keep |
//! | `survey_text` | prints the survey, with what is alike in one line |
//! | `permissions` | checks that the caller may do all of it |
//! | `operator` | stops the operator |
//! | `objects` | deletes policies, permissions and CRDs |
//! | `agents` | deletes the DaemonSets and waits for their pods to end |
//! | `nodes` | restores every node |
//! | `undo` | computes the patch that restores one node |
//! | `resources` | removes stale resources from node status |
//! | `namespace` | deletes the namespace, or keeps it |
//! | `foreign` | finds objects in the namespace that are not gpunode's |
//! | `deletion` | waits for deleted objects to disappear |
//! | `removal` | one removal: its requests, deadline and results |
//! | `scope` | everything, or what is on the nodes |
//! | `requests` | requests that take "not found" as done |
//! | `progress` | prints a line for each step |
//! | `leftover` | something that stays, and why |
//! | `installed` | the objects of `manifests/default` |

mod agents;
mod deletion;
mod foreign;
mod installed;
mod leftover;
mod namespace;
mod nodes;
mod objects;
mod operator;
mod permissions;
mod progress;
mod removal;
mod requests;
mod resources;
mod scope;
mod survey;
mod survey_text;
mod undo;

use crate::{
    cli::{OutputFormat, UninstallArgs},
    cluster,
    output::{self, TextWidth, plain, style, wrapped},
};
use installed::InstalledObject;
use leftover::Leftover;
use progress::RemovalProgress;
use removal::Removal;
use requests::RemovalRequests;
use scope::RemovalScope;
use serde::Serialize;
use std::{
    collections::BTreeSet,
    io::{self, BufRead, IsTerminal, Write},
    process::ExitCode,
};
use survey::survey;
use survey_text::{by_kind, survey_text};

/// Printed where a person or `--dry-run` stops the removal.
const UNCHANGED: &str = "nothing was changed\n";

/// Removes gpunode and reports what could not be removed.
///
/// # Errors
/// When the cluster cannot be read, or the caller lacks a permission; then nothing was changed.
pub async fn run(args: &UninstallArgs) -> anyhow::Result<ExitCode> {
    let client = cluster::connect(&args.cluster).await?;
    let scope = RemovalScope::of(args);
    let objects = match scope {
        RemovalScope::Everything => installed::objects(&args.namespace)?,
        RemovalScope::Nodes => Vec::new(),
    };
    let requests = RemovalRequests {
        client,
        namespace: args.namespace.clone(),
    };
    let mut removal = Removal::new(requests, RemovalProgress::new(args.output));
    let survey = survey(&removal, &objects, scope).await?;
    if args.dry_run {
        output::print(args.output, &survey, |width| {
            survey_text(&survey, args.all, width) + UNCHANGED
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    if survey.is_empty() {
        return report(&removal, args.output, scope.nothing());
    }
    let missing = permissions::missing(&removal, scope, args.wait_resources).await?;
    let missing = with_reads(missing, &survey.forbidden);
    anyhow::ensure!(
        missing.is_empty(),
        "uninstall: you are not allowed to {}; nothing was changed. Ask for a role such as cluster-admin",
        missing.join(", ")
    );
    if io::stdin().is_terminal() && !args.yes {
        anyhow::ensure!(
            args.output.is_text(),
            "uninstall: -o json and -o yaml do not ask; nothing was changed. Add --yes, or --dry-run to see what would be removed"
        );
        output::write(&survey_text(&survey, args.all, TextWidth::of_output(args.output)))?;
        if !confirmed(&mut io::stdin().lock())? {
            output::write(UNCHANGED)?;
            return Ok(ExitCode::SUCCESS);
        }
    }
    removal.restart(RemovalProgress::new(args.output));
    match scope {
        RemovalScope::Everything => remove_all(&mut removal, &objects).await,
        RemovalScope::Nodes => restore_nodes(&mut removal).await,
    }
    if args.wait_resources {
        resources::remove_resources(&mut removal, survey.resources).await;
    } else {
        resources::note_resources(&mut removal, &survey.resources);
    }
    let seconds = removal.progress.elapsed().as_secs();
    report(&removal, args.output, &scope.done(seconds))
}

/// Adds the forbidden reads to the missing permissions, which name the API group too, such as `list daemonsets.apps`.
fn with_reads(mut missing: Vec<String>, forbidden: &BTreeSet<String>) -> Vec<String> {
    let is_said = |read: &String| {
        missing
            .iter()
            .any(|known| known.split('.').next() == Some(read.as_str()))
    };
    let unsaid: Vec<String> = forbidden.iter().filter(|read| !is_said(read)).cloned().collect();
    missing.extend(by_kind(&unsaid, false));
    missing
}

/// Removes gpunode in an order in which nobody recreates what is gone, and after which an interrupted removal can continue.
async fn remove_all(removal: &mut Removal, objects: &[InstalledObject]) {
    operator::stop_operator(removal).await;
    objects::delete_policies(removal).await;
    agents::delete_daemonsets(removal).await;
    nodes::undo_nodes(removal).await;
    agents::await_agents(removal).await;
    objects::delete_installed(removal, objects).await;
    objects::delete_kinds(removal).await;
    namespace::delete_namespace(removal, objects).await;
}

/// Takes everything back from the nodes, in the same order.
async fn restore_nodes(removal: &mut Removal) {
    operator::stop_operator(removal).await;
    agents::delete_daemonsets(removal).await;
    nodes::undo_nodes(removal).await;
    agents::await_agents(removal).await;
}

/// The result of a removal.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RemovalReport<'a> {
    left: &'a [Leftover],
    notes: &'a [String],
}

/// Prints the result: `success` where nothing is left.
fn report(removal: &Removal, output: OutputFormat, success: &str) -> anyhow::Result<ExitCode> {
    let (left, notes) = (removal.leftovers.as_slice(), removal.notes.as_slice());
    output::print(output, &RemovalReport { left, notes }, |width| {
        let line = |text: &str| wrapped(&plain(text), width, 2) + "\n";
        let notes: String = notes.iter().map(|note| line(&format!("note: {note}"))).collect();
        if left.is_empty() {
            return format!("{success}\n{notes}");
        }
        let heading = style::HEADING;
        let lines: String = left.iter().map(|left| line(&left.to_string())).collect();
        format!("\n{heading}NOT REMOVED{heading:#}\n{lines}{notes}")
    })?;
    Ok(if left.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn confirmed(answer: &mut impl BufRead) -> io::Result<bool> {
    let mut out = anstream::stdout().lock();
    write!(out, "Remove all of this? [y/N] ")?;
    out.flush()?;
    let mut line = String::new();
    answer.read_line(&mut line)?;
    Ok(matches!(line.trim().to_lowercase().as_str(), "y" | "yes"))
}

#[cfg(test)]
mod tests {
    #[test]
    fn each_missing_right_is_named_once() {
        let missing = ["delete nodes", "list daemonsets.apps", "list nodes"].map(str::to_owned);
        let forbidden = [
            "list daemonsets",
            "list gpunodes",
            "list nodes",
            "read ClusterRole a",
            "read ClusterRole b",
        ];
        let all = super::with_reads(missing.clone().into(), &forbidden.map(str::to_owned).into());
        assert_eq!(all[..3], missing);
        assert_eq!(all[3..], ["list gpunodes", "read ClusterRole a, b"]);
    }

    #[test]
    fn only_a_yes_is_a_yes() {
        for (answer, expected) in [
            ("y\n", true),
            ("Yes\n", true),
            ("\n", false),
            ("", false),
            ("no\n", false),
        ] {
            assert_eq!(
                super::confirmed(&mut answer.as_bytes()).expect("a reader"),
                expected,
                "{answer:?}"
            );
        }
    }
}
