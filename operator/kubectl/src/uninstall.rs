//! `kubectl gpunode uninstall`: everything of gpunode leaves the cluster, with the caller's own rights, whether its operator
//! runs or not, and whatever was removed before.

mod agents;
mod installed;
mod nodes;
mod objects;
mod operator;
mod progress;
mod requests;
mod resources;
mod rights;
mod strangers;
mod survey;
mod undo;

use crate::{
    cli::{OutputFormat, UninstallArgs},
    cluster,
    output::{self, plain, style},
};
use installed::Installed;
use kube::Client;
use progress::{Left, Progress};
use serde::Serialize;
use std::{
    io::{self, BufRead, IsTerminal, Write},
    process::ExitCode,
    time::{Duration, Instant},
};

/// Longest time of a removal, but for dead resources.
const LIMIT: Duration = Duration::from_secs(115);

/// One removal.
pub struct Removal {
    client: Client,
    namespace: String,
    end: Instant,
    progress: Progress,
    left: Vec<Left>,
    notes: Vec<String>,
}

/// Removes gpunode and says what could not be removed.
///
/// # Errors
/// When the cluster cannot be read, or the caller may not do what is needed; then nothing was changed.
pub async fn run(args: &UninstallArgs) -> anyhow::Result<ExitCode> {
    let client = cluster::connect(&args.cluster).await?;
    let objects = installed::objects(&args.namespace)?;
    let mut removal = Removal {
        client,
        namespace: args.namespace.clone(),
        end: Instant::now() + LIMIT,
        progress: Progress::new(args.output),
        left: Vec::new(),
        notes: Vec::new(),
    };
    let survey = removal.survey(&objects).await?;
    if args.dry_run {
        output::print(args.output, &survey, || survey.text() + "nothing was changed\n")?;
        return Ok(ExitCode::SUCCESS);
    }
    if survey.is_empty() {
        return removal.report(args.output, "nothing of gpunode is in this cluster");
    }
    let missing = removal.missing_rights(args.wait_resources).await?;
    anyhow::ensure!(
        missing.is_empty(),
        "uninstall: you may not {}; nothing was changed. Ask for a role such as cluster-admin",
        missing.join(", ")
    );
    if io::stdin().is_terminal() && !args.yes {
        anyhow::ensure!(
            args.output == OutputFormat::Table,
            "uninstall: with -o nothing is asked, so nothing was changed; say --yes, or --dry-run to see what would go"
        );
        output::write(&survey.text())?;
        if !confirmed(&mut io::stdin().lock())? {
            output::write("nothing was changed\n")?;
            return Ok(ExitCode::SUCCESS);
        }
    }
    // The time of a person's answer does not count.
    removal.end = Instant::now() + LIMIT;
    removal.progress = Progress::new(args.output);
    removal.carry_out(&objects).await;
    if args.wait_resources {
        removal.remove_resources(survey.resources).await;
    } else {
        removal.note_resources(&survey.resources);
    }
    let seconds = removal.progress.elapsed().as_secs();
    removal.report(args.output, &format!("gpunode is gone, after {seconds} s"))
}

/// How a removal ended.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Report<'a> {
    /// What stays, and why.
    left: &'a [Left],
    notes: &'a [String],
}

impl Removal {
    /// The order matters: nobody writes again what is gone, and an interrupted removal leaves what the next one finds.
    async fn carry_out(&mut self, objects: &[Installed]) {
        self.stop_operator().await;
        self.delete_policies().await;
        self.delete_daemonsets().await;
        self.undo_nodes().await;
        self.await_agents().await;
        self.delete_installed(objects).await;
        self.delete_kinds().await;
        self.delete_namespace(objects).await;
    }

    /// Says how it ended: by `gone` where nothing is left.
    fn report(&self, output: OutputFormat, gone: &str) -> anyhow::Result<ExitCode> {
        let report = Report {
            left: &self.left,
            notes: &self.notes,
        };
        output::print(output, &report, || {
            let notes: String = self
                .notes
                .iter()
                .map(|note| "note: ".to_owned() + &plain(note) + "\n")
                .collect();
            if self.left.is_empty() {
                return format!("{gone}\n{notes}");
            }
            let (heading, lines) = (
                style::HEADING,
                self.left.iter().map(|left| plain(&left.to_string()) + "\n"),
            );
            format!("\n{heading}LEFT{heading:#}\n{}{notes}", lines.collect::<String>())
        })?;
        Ok(if self.left.is_empty() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }
}

fn confirmed(answer: &mut impl BufRead) -> io::Result<bool> {
    let mut out = anstream::stdout().lock();
    write!(out, "Remove all of it? [y/N] ")?;
    out.flush()?;
    let mut line = String::new();
    answer.read_line(&mut line)?;
    Ok(matches!(line.trim().to_lowercase().as_str(), "y" | "yes"))
}

#[cfg(test)]
mod tests {
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
