//! Verdicts of GitOps tools on gpunode's objects: of the kstatus library and of Argo CD's health script.
//!
//! The Go program in `judge/` asks both. It is built below `target/` on its first use.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::Value;
use std::{
    fs::File,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

/// Verdicts of GitOps tools on one object.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct Verdict {
    /// The status that kstatus computes: `InProgress`, `Current`, `Failed` or `Terminating`.
    pub kstatus: String,
    /// Health that Argo CD shows.
    pub argocd: Health,
}

/// The health of an object in Argo CD.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct Health {
    /// `Progressing`, `Healthy`, `Suspended` or `Degraded`; empty where no script knows the kind.
    pub status: String,
    /// Message that Argo CD shows with it.
    pub message: String,
}

/// The folder of the repository.
pub fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Asks for the verdict on each object.
pub fn judge(objects: &[Value]) -> Result<Vec<Verdict>> {
    let mut lines = Vec::new();
    for object in objects {
        serde_json::to_writer(&mut lines, object).context("write an object")?;
        lines.push(b'\n');
    }
    let mut judge = Command::new(built()?)
        .arg(repository().join("manifests/argocd/argocd-cm.yaml"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("start the judge")?;
    // A pipe holds less than all objects and all answers.
    let mut stdin = judge.stdin.take().context("take the judge's input")?;
    let writer = std::thread::spawn(move || stdin.write_all(&lines));
    let output = judge.wait_with_output().context("wait for the judge")?;
    succeeded("judge", &output)?;
    writer
        .join()
        .ok()
        .context("write to the judge")?
        .context("write to the judge")?;
    let verdicts: Vec<Verdict> = String::from_utf8(output.stdout)
        .context("read the judge's answer")?
        .lines()
        .map(|line| serde_json::from_str(line).with_context(|| format!("read the verdict {line}")))
        .collect::<Result<_>>()?;
    ensure!(
        verdicts.len() == objects.len(),
        "the judge answered {} of {} objects",
        verdicts.len(),
        objects.len()
    );
    Ok(verdicts)
}

/// Builds the judge; Go does nothing where nothing changed.
fn built() -> Result<PathBuf> {
    let folder = repository().join("target/gitops");
    std::fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    let folder = folder
        .canonicalize()
        .with_context(|| format!("find {}", folder.display()))?;
    let lock = File::create(folder.join(".lock")).context("create the lock of the judge")?;
    lock.lock().context("lock the judge")?;
    let program = folder.join("judge");
    let output = Command::new("go")
        .args(["build", "-trimpath", "-buildvcs=false", "-o"])
        .arg(&program)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("judge"))
        .env("CGO_ENABLED", "0")
        .output()
        .context("start go; install Go 1.26")?;
    succeeded("go build", &output)?;
    Ok(program)
}

fn succeeded(what: &str, output: &Output) -> Result<()> {
    ensure!(
        output.status.success(),
        "{what} failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}
