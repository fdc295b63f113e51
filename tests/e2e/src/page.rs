//! Pages of the documentation, whose commands tests run as they stand there.

use crate::Lab;
use anyhow::{Context, Result, ensure};
use std::{
    env, fs,
    path::Path,
    process::{Command, Output, Stdio},
};

/// Returns the commands of kubectl on a page of `docs`, in their order: lines of code blocks and spans of code.
pub fn page_commands(page: &str) -> Result<Vec<String>> {
    let text = read_page(page)?;
    let mut code: Vec<&str> = Vec::new();
    let mut is_block = false;
    for line in text.lines().map(str::trim) {
        if line.starts_with("```") {
            is_block = !is_block;
        } else if is_block {
            code.push(line);
        } else {
            // Spans are every second part.
            code.extend(line.split('`').skip(1).step_by(2));
        }
    }
    let commands = code.into_iter().filter(|code| code.starts_with("kubectl "));
    Ok(commands.map(str::to_owned).collect())
}

/// Adds the `matchExpressions` of a page to the `nodeSelector` of each policy of an import.
pub fn with_match_expressions(page: &str, policies: &str) -> Result<String> {
    const SELECTOR: &str = "  nodeSelector:";
    const KEY: &str = "    matchExpressions:";
    let added: Vec<String> = page_file(page, "matchExpressions")?
        .lines()
        .map(|line| format!("    {line}"))
        .collect();
    let mut lines: Vec<String> = Vec::new();
    let mut documents = 0;
    for document in policies.split_inclusive("---\n") {
        let place = if document.contains(KEY) { KEY } else { SELECTOR };
        for line in document.lines() {
            lines.push(line.to_owned());
            if line == place {
                lines.extend((place == SELECTOR).then(|| KEY.to_owned()));
                lines.extend_from_slice(&added);
                documents += 1;
            }
        }
    }
    ensure!(documents > 0, "no policy selects nodes: {policies}");
    Ok(lines.join("\n") + "\n")
}

/// Returns the block of code on a page that begins with the comment `# FILE`, without its indentation.
pub fn page_file(page: &str, file: &str) -> Result<String> {
    let text = read_page(page)?;
    let start = format!("# {file}");
    let mut lines = text.lines().skip_while(|line| line.trim() != start);
    let first = lines.next().with_context(|| format!("find {start} in {page}"))?;
    let indent = first.len() - first.trim_start().len();
    let block = lines.take_while(|line| !line.trim().starts_with("```"));
    let lines: Vec<&str> = block.map(|line| line.get(indent..).unwrap_or_default()).collect();
    Ok(lines.join("\n") + "\n")
}

fn read_page(page: &str) -> Result<String> {
    let path = Lab::repository().join("docs").join(page);
    fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
}

impl Lab {
    /// Runs a command line in a folder, with the cluster's kubectl and its plugin, to whatever end.
    pub fn try_shell(&self, folder: &Path, command: &str) -> Result<Output> {
        let programs = Self::repository().join("target/cluster/bin");
        let path = env::var("PATH").context("read PATH")?;
        Command::new("sh")
            .args(["-c", command])
            .current_dir(folder)
            .env("PATH", format!("{}:{path}", programs.display()))
            .env("KUBECONFIG", self.cluster().kubeconfig())
            // The discovery cache and kuberc are in the caller's home otherwise.
            .env("KUBECACHEDIR", folder.join("kubectl-cache"))
            .env("KUBERC", "off")
            // Tables would be broken at this width.
            .env_remove("COLUMNS")
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("start {command}"))
    }

    /// Runs a command line that must succeed, and gives what it printed.
    pub fn shell(&self, folder: &Path, command: &str) -> Result<String> {
        let output = self.try_shell(folder, command)?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{command}: {}: {text}{error}", output.status);
        Ok(text)
    }
}
