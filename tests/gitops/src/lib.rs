//! Verdicts of GitOps tools on gpunode's objects: of the kstatus library and of Argo CD's health script.
//!
//! The Go program in `judge/` asks both. `judge/merge` applies objects as the API server does server-side. Both are built below
//! `target/` on their first use.

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
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
    let program = built("judge", &["."])?;
    answers(&program, "manifests/argocd/argocd-cm.yaml", objects)
}

/// Versions of structured-merge-diff, which merges objects in the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergeLibrary {
    /// 6.3.2, which keeps an emptied block.
    V632,
    /// The version of this Kubernetes, 6.3.3, which makes an emptied granular block null.
    Current,
}

/// A server-side apply by force.
#[derive(Clone, Debug, Serialize)]
pub struct ApplyStep {
    /// Field manager.
    pub manager: String,
    /// Object that it applies.
    pub object: Value,
    /// True for the schema as it was before its blocks became atomic.
    pub granular: bool,
}

/// Applies policies one after the other; answers the object after each step.
pub fn merge(library: MergeLibrary, steps: &[ApplyStep]) -> Result<Vec<Value>> {
    let program = match library {
        MergeLibrary::V632 => built("merge-6.3.2", &["-modfile=smd-6.3.2.mod", "./merge"]),
        MergeLibrary::Current => built("merge", &["./merge"]),
    }?;
    answers(&program, "manifests/crds/gpunodepolicies.yaml", steps)
}

/// Runs a program that answers each line of its input with one line.
fn answers<T: DeserializeOwned>(program: &Path, file: &str, questions: &[impl Serialize]) -> Result<Vec<T>> {
    let mut lines = Vec::new();
    for question in questions {
        serde_json::to_writer(&mut lines, question).context("write a question")?;
        lines.push(b'\n');
    }
    let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut judge = Command::new(program)
        .arg(repository().join(file))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("start {name}"))?;
    // A pipe holds less than all objects and all answers.
    let mut stdin = judge
        .stdin
        .take()
        .with_context(|| format!("take the input of {name}"))?;
    let writer = std::thread::spawn(move || stdin.write_all(&lines));
    let output = judge.wait_with_output().with_context(|| format!("wait for {name}"))?;
    succeeded(&name, &output)?;
    writer
        .join()
        .ok()
        .and_then(Result::ok)
        .with_context(|| format!("write to {name}"))?;
    let answers: Vec<T> = String::from_utf8(output.stdout)
        .with_context(|| format!("read the answer of {name}"))?
        .lines()
        .map(|line| serde_json::from_str(line).with_context(|| format!("read the answer {line}")))
        .collect::<Result<_>>()?;
    ensure!(
        answers.len() == questions.len(),
        "{name} answered {} of {} questions",
        answers.len(),
        questions.len()
    );
    Ok(answers)
}

/// Builds a program of the module `judge`; Go does nothing where nothing changed.
fn built(name: &str, arguments: &[&str]) -> Result<PathBuf> {
    let folder = repository().join("target/gitops");
    std::fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    let folder = folder
        .canonicalize()
        .with_context(|| format!("find {}", folder.display()))?;
    let lock = File::create(folder.join(".lock")).context("create the lock of the programs")?;
    lock.lock().context("lock the programs")?;
    let program = folder.join(name);
    let output = Command::new("go")
        .args(["build", "-trimpath", "-buildvcs=false", "-o"])
        .arg(&program)
        .args(arguments)
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
