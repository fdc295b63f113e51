//! What the kubelet of a node logs about device plugins.

use crate::Lab;
use anyhow::{Context, Result};
use std::{
    fs::{self, File},
    io::{Read, Seek, SeekFrom},
    path::PathBuf,
};

/// The kubelet's log of one node from one moment on.
#[derive(Debug, Clone)]
pub struct KubeletLog {
    path: PathBuf,
    from: u64,
}

impl KubeletLog {
    /// What is logged from now on.
    pub fn from_now(lab: &Lab, node: &str) -> Result<Self> {
        let path = lab.cluster().node(node)?.kubelet_log();
        let from = fs::metadata(&path).with_context(|| format!("find {}", path.display()))?.len();
        Ok(Self { path, from })
    }

    /// Lines that say that the stream of a plugin has ended: an admission at that moment would have failed, though node
    /// status may never have shown it.
    pub fn lost_endpoints(&self) -> Result<Vec<String>> {
        let mut file = File::open(&self.path).with_context(|| format!("open {}", self.path.display()))?;
        file.seek(SeekFrom::Start(self.from)).context("skip what was logged before")?;
        let mut text = Vec::new();
        file.read_to_end(&mut text).context("read the kubelet's log")?;
        Ok(String::from_utf8_lossy(&text)
            .lines()
            .filter(|line| line.contains("Endpoint became unhealthy"))
            .map(str::to_owned)
            .collect())
    }
}
