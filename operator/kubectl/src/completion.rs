//! `kubectl gpunode completion`: scripts for shells, and the candidates that kubectl itself requests.

use crate::{
    cli::{Cli, CompleteArgs, CompletionArgs},
    output,
};
use clap::{Command, CommandFactory};
use std::process::ExitCode;

/// Tells kubectl (cobra's `ShellCompDirective`) to complete file names where there are no candidates.
const DIRECTIVE: &str = ":0";

/// Prints the script for a shell.
///
/// # Errors
/// When the output cannot be written.
pub fn run(args: &CompletionArgs) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "kubectl-gpunode", &mut script);
    output::write(&String::from_utf8_lossy(&script))?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the candidates for the last word, one per line, then the directive.
///
/// # Errors
/// When the output cannot be written.
pub fn complete(args: &CompleteArgs) -> anyhow::Result<ExitCode> {
    let lines = candidates(&Cli::command(), &args.words).join("\n");
    output::write(&format!("{lines}\n{DIRECTIVE}\n"))?;
    Ok(ExitCode::SUCCESS)
}

fn candidates(cli: &Command, words: &[String]) -> Vec<String> {
    let (last, before) = words
        .split_last()
        .map_or(("", [].as_slice()), |(last, before)| (last.as_str(), before));
    let command = before
        .iter()
        .fold(cli, |command, word| command.find_subcommand(word).unwrap_or(command));
    let after = before.last().and_then(|word| {
        let is_it = |arg: &&clap::Arg| arg.get_long().is_some_and(|long| *word == format!("--{long}"));
        command
            .get_arguments()
            .find(|arg| is_it(arg) || arg.get_short().is_some_and(|short| *word == format!("-{short}")))
    });
    let positional = command.get_positionals().next();
    let values = after
        .or(positional)
        .map(clap::Arg::get_possible_values)
        .unwrap_or_default();
    let values = values.iter().map(|value| value.get_name().to_owned());
    let takes_value = after.is_some_and(|arg| arg.get_action().takes_values());
    let flags = command
        .get_arguments()
        .filter_map(|arg| arg.get_long())
        .map(|long| format!("--{long}"));
    let subcommands = command
        .get_subcommands()
        .filter(|it| !it.is_hide_set())
        .map(|it| it.get_name().to_owned());
    let others: Vec<String> = if takes_value {
        Vec::new()
    } else {
        subcommands.chain(flags).collect()
    };
    let offered = values.chain(
        others
            .into_iter()
            .filter(|other| !other.starts_with('-') || last.starts_with('-')),
    );
    offered.filter(|candidate| candidate.starts_with(last)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(words: &[&str]) -> Vec<String> {
        let words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
        candidates(&Cli::command(), &words)
    }

    #[test]
    fn words_are_completed_as_kubectl_asks() {
        assert_eq!(after(&["st"]), ["status"]);
        assert_eq!(after(&["status", "-o", "j"]), ["json"]);
        assert_eq!(after(&["plan", "--no"]), ["--nodes"]);
        assert_eq!(after(&["completion", "z"]), ["zsh"]);
        assert_eq!(after(&["import", "m"]), ["mig-parted"]);
        assert_eq!(after(&["export", "mig", "n", "-o", "l"]), ["layout"]);
        assert!(after(&["plan", "-f", ""]).is_empty(), "a file");
        assert!(after(&[""]).contains(&"explain".to_owned()) && !after(&[""]).contains(&"complete".to_owned()));
    }

    #[test]
    fn every_shell_gets_a_script() {
        for shell in [
            clap_complete::Shell::Bash,
            clap_complete::Shell::Zsh,
            clap_complete::Shell::Fish,
        ] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "kubectl-gpunode", &mut script);
            assert!(String::from_utf8_lossy(&script).contains("uninstall"), "{shell}");
        }
    }
}
