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
        progress: Progress::new(),
        left: Vec::new(),
        notes: Vec::new(),
    };
    let survey = removal.survey(&objects).await?;
    if survey.is_empty() {
        return show("nothing of gpunode is in this cluster\n".to_owned());
    }
    if args.dry_run {
        return show(survey.text() + "nothing was changed\n");
    }
    let missing = removal.missing_rights(args.wait_resources).await?;
    anyhow::ensure!(
        missing.is_empty(),
        "uninstall: you may not {}; nothing was changed. Ask for a role such as cluster-admin",
        missing.join(", ")
    );
    if io::stdin().is_terminal() && !args.yes {
        show(survey.text())?;
        if !confirmed(&mut io::stdin().lock())? {
            return show("nothing was changed\n".to_owned());
        }
    }
    // The time of a person's answer does not count.
    removal.end = Instant::now() + LIMIT;
    removal.progress = Progress::new();
    removal.carry_out(&objects).await;
    if args.wait_resources {
        removal.remove_resources(survey.resources).await;
    } else {
        removal.note_resources(&survey.resources);
    }
    removal.report()
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
        self.delete_namespace().await;
    }

    fn report(&self) -> anyhow::Result<ExitCode> {
        let notes: String = self.notes.iter().map(|note| "note: ".to_owned() + &plain(note) + "\n").collect();
        let seconds = self.progress.elapsed().as_secs();
        if self.left.is_empty() {
            return show(format!("gpunode is gone, after {seconds} s\n{notes}"));
        }
        let (heading, lines) = (style::HEADING, self.left.iter().map(|left| plain(&left.to_string()) + "\n"));
        show(format!("\n{heading}LEFT{heading:#}\n{}{notes}", lines.collect::<String>()))?;
        Ok(ExitCode::FAILURE)
    }
}

fn show(text: String) -> anyhow::Result<ExitCode> {
    output::print(OutputFormat::Table, &(), || text)?;
    Ok(ExitCode::SUCCESS)
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
        for (answer, expected) in [("y\n", true), ("Yes\n", true), ("\n", false), ("", false), ("no\n", false)] {
            assert_eq!(super::confirmed(&mut answer.as_bytes()).expect("a reader"), expected, "{answer:?}");
        }
    }
}
