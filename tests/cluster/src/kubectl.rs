//! The cluster's kubectl.

use std::{
    ffi::OsStr,
    process::{Command, Output},
};

use anyhow::{Context, Result};

use crate::{layout::Layout, run};

/// Runs kubectl as the administrator.
pub(crate) struct Kubectl<'a>(&'a Layout);

impl<'a> Kubectl<'a> {
    pub(crate) fn new(layout: &'a Layout) -> Self {
        Kubectl(layout)
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(self.0.bin().join("kubectl"));
        command
            .arg("--kubeconfig")
            .arg(self.0.admin_kubeconfig())
            // The discovery cache and kuberc are in the caller's home otherwise, outside the cluster's folder.
            .arg("--cache-dir")
            .arg(self.0.folder().join("kubectl-cache"))
            .env("KUBERC", "off");
        command
    }

    /// Runs it to its end, whatever that is.
    pub(crate) fn run<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Result<Output> {
        self.command().args(arguments).output().context("start kubectl")
    }

    /// Standard output of a run that must succeed.
    pub(crate) fn output<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Result<String> {
        run::output(self.command().args(arguments))
    }
}
