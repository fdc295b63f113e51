//! Installing gpunode, and what is left of it.

use crate::{Lab, NODES, is_fact};
use anyhow::{Result, ensure};
use serde_json::Value;
use std::process::Command;

impl Lab {
    /// Installs gpunode from `manifests/default`, and waits until its agents have reported.
    pub fn install(&self) -> Result<()> {
        let name = self
            .cluster()
            .folder()
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default();
        let output = Command::new(Lab::repository().join("tests/cluster/install-gpunode.sh"))
            .arg(name)
            .output()?;
        ensure!(
            output.status.success(),
            "install gpunode: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    }

    /// Checks that nothing of gpunode is left on the nodes, whose snapshot was `before`. A snapshot leaves out what comes and goes
    /// without policies, which has to go as well.
    pub fn nothing_is_left_on_nodes(&self, before: &[(String, Value)]) -> Result<()> {
        let now = self.snapshot()?;
        ensure!(now == before, "before: {before:?}\n   now: {now:?}");
        for node in NODES {
            let metadata = self.node(node)?["metadata"].clone();
            let mut labels = metadata["labels"]
                .as_object()
                .into_iter()
                .flat_map(|labels| labels.keys());
            ensure!(
                !labels.any(|key| is_fact(key)),
                "{node} has labels {}",
                metadata["labels"]
            );
            let record = &metadata["annotations"]["gpunode.dev/owned"];
            ensure!(record.is_null(), "{node} has the record {record}");
        }
        Ok(())
    }
}
