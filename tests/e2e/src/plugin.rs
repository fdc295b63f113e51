//! `kubectl gpunode`, as `make programs` built it.

use crate::Lab;
use anyhow::{Context, Result, ensure};
use std::process::{Command, Output, Stdio};

impl Lab {
    /// `kubectl gpunode` on the cluster, to be started.
    pub fn gpunode_command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(Lab::repository().join("target/cluster/bin/kubectl-gpunode"));
        command
            .args(arguments)
            .arg("--kubeconfig")
            .arg(self.cluster().kubeconfig())
            .stdin(Stdio::null());
        command
    }

    /// Runs `kubectl gpunode` to whatever end, without a terminal.
    pub fn try_gpunode(&self, arguments: &[&str]) -> Result<Output> {
        self.gpunode_command(arguments)
            .output()
            .context("start kubectl-gpunode")
    }

    /// Runs `kubectl gpunode`, which must succeed, and gives what it printed.
    pub fn gpunode(&self, arguments: &[&str]) -> Result<String> {
        let output = self.try_gpunode(arguments)?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "kubectl gpunode {arguments:?}: {}: {text}{error}",
            output.status
        );
        Ok(text)
    }
}
