//! Commands of the documentation: what a reader would type, from the code blocks of all pages.

use crate::Lab;
use anyhow::{Context, Result, ensure};
use std::{fs, path::Path, process::Command};

/// Pages that are generated from programs, or record decisions.
const GENERATED: [&str; 3] = ["reference", "adr", "pictures"];

/// First words of lines that a reader types.
const PROGRAMS: [&str; 33] = [
    "CROSS=1",
    "az",
    "cat",
    "cd",
    "curl",
    "eksctl",
    "for",
    "gcloud",
    "git",
    "go",
    "gpunode-agent",
    "gpunode-cluster",
    "helm",
    "install",
    "journalctl",
    "k3s",
    "kind",
    "kubectl",
    "kubelet",
    "ls",
    "make",
    "mkdir",
    "nvidia-smi",
    "nvkind",
    "oc",
    "promtool",
    "rustup",
    "sed",
    "sha256sum",
    "skopeo",
    "sudo",
    "tar",
    "target/release/gpunode-agent",
];

/// One command of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentedCommand {
    /// The page below the root of the repository, `docs/install.md` for example.
    pub page: String,
    /// Line of the command's beginning, counted from 1.
    pub line: usize,
    /// The command as it stands there, over several lines perhaps.
    pub text: String,
}

/// Returns the commands of `README.md` and of all pages of `docs` that people write, page by page.
///
/// # Errors
/// If a page cannot be read, or a command does not end.
pub fn documented_commands() -> Result<Vec<DocumentedCommand>> {
    let root = Lab::repository();
    let mut pages = vec!["README.md".to_owned()];
    list_pages(&root, "docs", &mut pages)?;
    let mut commands = Vec::new();
    for page in pages {
        let path = root.join(&page);
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        commands.extend(commands_of(&page, &text)?);
    }
    Ok(commands)
}

fn list_pages(root: &Path, folder: &str, pages: &mut Vec<String>) -> Result<()> {
    let entries = fs::read_dir(root.join(folder)).with_context(|| format!("list {folder}"))?;
    let mut names: Vec<String> = entries
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<Result<_>>()?;
    names.sort();
    for name in names {
        let path = format!("{folder}/{name}");
        if root.join(&path).is_dir() {
            if !GENERATED.contains(&name.as_str()) {
                list_pages(root, &path, pages)?;
            }
        } else if Path::new(&name).extension().is_some_and(|extension| extension == "md") {
            pages.push(path);
        }
    }
    Ok(())
}

fn commands_of(page: &str, text: &str) -> Result<Vec<DocumentedCommand>> {
    let mut commands = Vec::new();
    for (first, block) in blocks(text) {
        let is_session = block.iter().any(|line| line.starts_with("$ "));
        if !is_session && !block.first().is_some_and(|line| is_command(line)) {
            continue;
        }
        let mut begun: Option<DocumentedCommand> = None;
        for (number, line) in block.iter().enumerate() {
            let command = match begun.take() {
                Some(begun) => DocumentedCommand {
                    text: format!("{}\n{line}", begun.text),
                    ..begun
                },
                None if line.trim().is_empty() || line.starts_with('#') => continue,
                // Other lines of a session are what a program printed.
                None if is_session && !line.starts_with("$ ") => continue,
                None => DocumentedCommand {
                    page: page.to_owned(),
                    line: first + number,
                    text: line.trim_start_matches("$ ").to_owned(),
                },
            };
            if is_whole(&command.text)? {
                commands.push(command);
            } else {
                begun = Some(command);
            }
        }
        ensure!(begun.is_none(), "{page}: a command does not end: {begun:?}");
    }
    Ok(commands)
}

/// Returns the code blocks without a language, with the line on which each begins, without their indentation.
fn blocks(text: &str) -> Vec<(usize, Vec<&str>)> {
    let mut blocks = Vec::new();
    let mut open: Option<(bool, usize, usize, Vec<&str>)> = None;
    for (number, line) in (1..).zip(text.lines()) {
        let indent = line.len() - line.trim_start().len();
        let fence = line.trim_start().strip_prefix("```");
        match (&mut open, fence) {
            (None, Some(language)) => open = Some((language.is_empty(), indent, number + 1, Vec::new())),
            (Some(_), Some(_)) => {
                if let Some((true, _, first, lines)) = open.take() {
                    blocks.push((first, lines));
                }
            }
            (Some((_, indent, _, lines)), None) => lines.push(line.get(*indent..).unwrap_or_default()),
            (None, None) => {}
        }
    }
    blocks
}

fn is_command(line: &str) -> bool {
    line.split_whitespace()
        .next()
        .is_some_and(|word| PROGRAMS.contains(&word))
}

/// Asks bash whether lines are a whole command.
fn is_whole(lines: &str) -> Result<bool> {
    if lines.ends_with('\\') {
        return Ok(false);
    }
    let output = Command::new("bash")
        .args(["-n", "-c", lines])
        .output()
        .context("start bash")?;
    // A here document without its end is only a warning.
    Ok(output.status.success() && output.stderr.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_what_a_reader_types() -> Result<()> {
        let page = "# Page\n\n```yaml\nkubectl: no\n```\n```\nkubectl get nodes   # all\n# or\nkubectl run a \\\n  --rm\n```\n\
                    1. so\n   ```\n   $ kubectl get pods -o 'x\n   y'\n   NAME\n   ```\n```\nNAME  READY\n```\n";
        let found: Vec<(usize, String)> = commands_of("p", page)?
            .into_iter()
            .map(|command| (command.line, command.text))
            .collect();
        assert_eq!(
            found,
            [
                (7, "kubectl get nodes   # all".to_owned()),
                (9, "kubectl run a \\\n  --rm".to_owned()),
                (14, "kubectl get pods -o 'x\ny'".to_owned()),
            ]
        );
        Ok(())
    }
}
