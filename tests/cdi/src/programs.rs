//! Builds the Go programs in `check/` and `toolkit/` below `target/cdi`.

use anyhow::{Context as _, Result, ensure};
use std::{
    fs::File,
    path::{Path, PathBuf},
    process::{Command, Output},
};

/// A program to build.
pub(crate) struct GoProgram<'a> {
    /// Name of the file.
    pub(crate) name: &'a str,
    /// Folder of the module.
    pub(crate) module: &'a str,
    /// Arguments of `go build`, the package last.
    pub(crate) arguments: &'a [&'a str],
    /// True for a program that loads NVML, which takes a C compiler.
    pub(crate) uses_c: bool,
}

impl GoProgram<'_> {
    /// Builds it; Go does nothing where nothing changed.
    pub(crate) fn built(&self) -> Result<PathBuf> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/cdi");
        std::fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
        let folder = folder
            .canonicalize()
            .with_context(|| format!("find {}", folder.display()))?;
        // Two builds at once would write the same file.
        let lock = File::create(folder.join(".lock")).context("create the lock of the programs")?;
        lock.lock().context("lock the programs")?;
        let program = folder.join(self.name);
        let output = Command::new("go")
            .args(["build", "-trimpath", "-buildvcs=false", "-o"])
            .arg(&program)
            .args(self.arguments)
            .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(self.module))
            .env("CGO_ENABLED", if self.uses_c { "1" } else { "0" })
            .output()
            .context("start go; install Go 1.26")?;
        succeeded(&format!("go build of {}", self.name), &output)?;
        Ok(program)
    }
}

/// Fails with the error output of a program that failed.
pub(crate) fn succeeded(what: &str, output: &Output) -> Result<()> {
    ensure!(
        output.status.success(),
        "{what} ended with {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}
