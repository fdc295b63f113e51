//! A recorded program: this crate's own.

use anyhow::{Result, ensure};
use std::{collections::BTreeSet, fs, process::Command};

#[test]
#[ignore = "needs root: make test"]
fn a_program_runs_as_ever_and_its_executed_functions_are_recorded() -> Result<()> {
    let (program, folder) = (env!("CARGO_BIN_EXE_gpunode-function-order"), tempfile::tempdir()?);
    let record = folder.path().join("record");
    let output = Command::new(program)
        .arg("record")
        .arg("--to")
        .arg(&record)
        .args([program, "patterns", "/nonexistent", "/nonexistent"])
        .output()?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(1), "{:?}: {error}", output.status);
    ensure!(error.contains("read /nonexistent"), "{error}");

    let text = fs::read_to_string(&record)?;
    let names: Vec<&str> = text.lines().collect();
    let once: BTreeSet<&str> = names.iter().copied().collect();
    ensure!(names.len() == once.len(), "a function is there twice");
    let has = |module: &str, name: &str| once.iter().any(|it| it.contains(module) && it.contains(name));
    ensure!(has("functions", "4read"), "{once:?}");
    ensure!(
        !has("recorder", "6attach"),
        "a function that was not executed is recorded"
    );
    Ok(())
}
