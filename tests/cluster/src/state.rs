//! Record of a started cluster: enough to find all its parts again.

use std::fs;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::{cgroup::CgroupVersion, cluster_file::ClusterFile, files, layout::Layout, subnet::Subnet};

/// The state file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) subnet: Subnet,
    pub(crate) cgroup: CgroupVersion,
    pub(crate) cluster: ClusterFile,
}

impl State {
    /// The state of a cluster, if one has started.
    pub(crate) fn load(layout: &Layout) -> Result<Option<Self>> {
        let path = layout.state();
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("read {}", path.display())),
        };
        let state = serde_json::from_str(&text).with_context(|| format!("parse {}", path.display()))?;
        Ok(Some(state))
    }

    pub(crate) fn save(&self, layout: &Layout) -> Result<()> {
        let text = serde_json::to_string_pretty(self).context("write down the cluster's state")?;
        files::replace(&layout.state(), text.as_bytes())
    }
}
