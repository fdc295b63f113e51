//! Checks by Prometheus' own code, built by Go below `target/` on their first use.

use crate::repository;
use anyhow::{Context, Result, ensure};
use std::{
    fs::File,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Set for promtool itself. It compiles for minutes, so that the checks run with `tools/check` otherwise: the same parser, engine
/// and lint with a part of promtool's arguments.
const PROMTOOL: &str = "GPUNODE_PROMTOOL";

/// Runs promtool, or what stands for it, in `target/monitoring`; answers what it prints if it succeeds.
pub fn promtool(arguments: &[&str], input: &str) -> Result<String> {
    let folder = repository().join("target/monitoring");
    std::fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    let program = built(&folder.canonicalize().context("find the folder of the programs")?)?;
    let mut child = Command::new(program)
        .args(arguments)
        .current_dir(&folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("start promtool")?;
    let mut stdin = child.stdin.take().context("take the input of promtool")?;
    // It reads all of its input before it prints.
    stdin.write_all(input.as_bytes()).context("write to promtool")?;
    drop(stdin);
    let output = child.wait_with_output().context("wait for promtool")?;
    let [printed, errors] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    ensure!(
        output.status.success(),
        "promtool {} failed:\n{printed}{errors}",
        arguments.join(" ")
    );
    Ok(printed + &errors)
}

/// Builds the program; Go does nothing where nothing changed.
fn built(folder: &Path) -> Result<PathBuf> {
    let lock = File::create(folder.join(".lock")).context("create the lock of the programs")?;
    lock.lock().context("lock the programs")?;
    let (name, package) = match std::env::var_os(PROMTOOL) {
        Some(_) => ("promtool", "github.com/prometheus/prometheus/cmd/promtool"),
        None => ("check", "./check"),
    };
    let program = folder.join(name);
    let output = Command::new("go")
        // Without the discovery of a dozen clouds it compiles in a fraction of the time.
        .args(["build", "-trimpath", "-buildvcs=false", "-tags", "remove_all_sd", "-o"])
        .arg(&program)
        .arg(package)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tools"))
        .env("CGO_ENABLED", "0")
        .output()
        .context("start go; install Go 1.26")?;
    ensure!(
        output.status.success(),
        "go build failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(program)
}
