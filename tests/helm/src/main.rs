//! Writes the generated files of the chart into its folder.
#![allow(clippy::print_stderr, reason = "a command line program")]

use anyhow::Context;
use std::process::ExitCode;

fn main() -> ExitCode {
    match write() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gpunode-chart: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn write() -> anyhow::Result<()> {
    for file in gpunode_helm_tests::generated_files()? {
        let path = gpunode_helm_tests::chart().join(&file.path);
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
        }
        std::fs::write(&path, &file.text).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}
